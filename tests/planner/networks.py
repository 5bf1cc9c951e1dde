"""Computation graphs in Kusumoto et al.'s text format, written from the published architectures of the networks.

The graphs in github.com/pfnet-research/recompute carry no licence, so the tests do not hold copies of them but write
the same numbers anew: VGG-19 (Simonyan & Zisserman, arXiv:1409.1556) and ResNet-50 (He et al.,
arXiv:1512.03385) at batch 32 with 224 x 224 images in float32, and a small U-Net (Ronneberger et al.,
arXiv:1505.04597) of our own proportions.
"""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass, field

# What the backward function of each type reads besides the gradient of its output.
READS = {"ReLU": "output", "MaxPooling2D": "input output", "AveragePooling2D": "input output"}


@dataclass
class Network:
    """Collects variables and functions; methods take and return variable ids."""

    batch: int = 32
    shapes: dict[int, tuple[int, ...]] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    functions: list[tuple[str, list[int], int]] = field(default_factory=list)

    def variable(self, shape: tuple[int, ...], name: str = "_") -> int:
        self.names.append(name)
        self.shapes[len(self.names) - 1] = shape
        return len(self.names) - 1

    def call(self, kind: str, inputs: list[int], shape: tuple[int, ...]) -> int:
        made = self.variable(shape)
        self.functions.append((kind, inputs, made))
        return made

    def image(self, channels: int, size: int) -> int:
        return self.variable((self.batch, channels, size, size), "0")

    def same(self, kind: str, x: int) -> int:
        return self.call(kind, [x], self.shapes[x])

    def conv(self, x: int, channels: int, kernel: int, stride: int = 1, *, bias: bool = True, up: bool = False) -> int:
        batch, before, height, width = self.shapes[x]
        number = len(self.functions)
        weights = [self.variable((channels, before, kernel, kernel), f"/{number}/W")]
        if bias:
            weights.append(self.variable((channels,), f"/{number}/b"))
        size = (height * 2, width * 2) if up else (math.ceil(height / stride), math.ceil(width / stride))
        kind = "Deconvolution2DFunction" if up else "Convolution2DFunction"
        return self.call(kind, [x, *weights], (batch, channels, *size))

    def norm(self, x: int) -> int:
        number = len(self.functions)
        scale, shift = (self.variable((self.shapes[x][1],), f"/{number}/{part}") for part in ("gamma", "beta"))
        return self.call("BatchNormalization", [x, scale, shift], self.shapes[x])

    def pool(self, x: int, kind: str = "MaxPooling2D", by: int = 2) -> int:
        batch, channels, height, width = self.shapes[x]
        return self.call(kind, [x], (batch, channels, height // by, width // by))

    def linear(self, x: int, width: int) -> int:
        number = len(self.functions)
        weight = self.variable((width, self.shapes[x][1]), f"/{number}/W")
        bias = self.variable((width,), f"/{number}/b")
        return self.call("LinearFunction", [x, weight, bias], (self.batch, width))

    def flatten(self, x: int) -> int:
        return self.call("Reshape", [x], (self.batch, math.prod(self.shapes[x][1:])))

    def loss(self, x: int) -> int:
        return self.call("SoftmaxCrossEntropy", [x, self.variable((self.batch,), "1")], ())

    def text(self, seed: int | None = None) -> str:
        """The graph as text; with a seed, the functions stand in a random order."""
        lines = [f"{len(self.names)} {2 * len(self.functions)}"]
        lines += [f"{v} {4 * math.prod(self.shapes[v])} {name}" for v, name in enumerate(self.names)]
        order = list(range(len(self.functions)))
        if seed is not None:
            random.Random(seed).shuffle(order)
        for backward in (False, True):
            for rank in order:
                kind, inputs, made = self.functions[rank]
                if backward:
                    roles = READS.get(kind, "input").split()
                    reads = [f"{made} gradient"]
                    reads += [f"{v} input" for v in inputs if "input" in roles]
                    reads += [f"{made} output"] if "output" in roles else []
                    makes = inputs
                else:
                    reads, makes = [f"{v} _" for v in inputs], [made]
                lines += ["backward" if backward else "forward", f"{len(reads)} {len(makes)}", *reads]
                lines += [*map(str, makes), kind, json.dumps({"rank": rank})]
        return "\n".join(lines) + "\n"


def vgg19() -> Network:
    net = Network()
    x = net.image(3, 224)
    for channels, layers in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)):
        for _ in range(layers):
            x = net.same("ReLU", net.conv(x, channels, 3))
        x = net.pool(x)
    x = net.flatten(x)
    for _ in range(2):
        x = net.same("Dropout", net.same("ReLU", net.linear(x, 4096)))
    net.loss(net.linear(x, 1000))
    return net


def resnet50() -> Network:
    net = Network()
    x = net.pool(net.same("ReLU", net.norm(net.conv(net.image(3, 224), 64, 7, 2))))
    for channels, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            stride = 2 if block == 0 and channels > 64 else 1
            y = net.same("ReLU", net.norm(net.conv(x, channels, 1, stride, bias=False)))
            y = net.same("ReLU", net.norm(net.conv(y, channels, 3, bias=False)))
            y = net.norm(net.conv(y, 4 * channels, 1, bias=False))
            if block == 0:
                x = net.norm(net.conv(x, 4 * channels, 1, stride, bias=False))
            x = net.same("ReLU", net.call("Add", [y, x], net.shapes[y]))
    net.loss(net.linear(net.flatten(net.pool(x, "AveragePooling2D", 7)), 1000))
    return net


def small_unet() -> Network:
    net = Network(batch=4)
    x = net.image(3, 64)
    skips = []
    for channels in (8, 16, 32):
        for _ in range(2):
            x = net.same("ReLU", net.conv(x, channels, 3))
        skips.append(x)
        x = net.pool(x)
    x = net.same("ReLU", net.conv(x, 64, 3))
    for channels, skip in zip((32, 16, 8), reversed(skips), strict=True):
        x = net.conv(x, channels, 2, up=True)
        batch, _, height, width = net.shapes[x]
        x = net.call("Concat", [skip, x], (batch, 2 * channels, height, width))
        for _ in range(2):
            x = net.same("ReLU", net.conv(x, channels, 3))
    net.loss(net.conv(x, 2, 1))
    return net
