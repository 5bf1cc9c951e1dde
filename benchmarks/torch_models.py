"""Networks in torch for `benchmarks.planner_rivals`, without random or stateful layers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint_sequential


def _norm(channels: int) -> nn.Module:
    return nn.BatchNorm2d(channels, track_running_stats=False)


class Bottleneck(nn.Module):
    """A block of ResNet-50: 1x1, 3x3 and 1x1 convolution (He et al., arXiv:1512.03385)."""

    def __init__(self, before: int, inner: int, stride: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            *(nn.Conv2d(before, inner, 1, bias=False), _norm(inner), nn.ReLU()),
            *(nn.Conv2d(inner, inner, 3, stride, 1, bias=False), _norm(inner), nn.ReLU()),
            *(nn.Conv2d(inner, 4 * inner, 1, bias=False), _norm(4 * inner)),
        )
        self.skip: nn.Module = nn.Identity()
        if stride > 1 or before != 4 * inner:
            self.skip = nn.Sequential(nn.Conv2d(before, 4 * inner, 1, stride, bias=False), _norm(4 * inner))

    def forward(self, value: Tensor) -> Tensor:
        return functional.relu(self.branch(value) + self.skip(value))


class Block(nn.Module):
    """A block of GPT-2 (Radford et al., 2019), attention written out."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.joined, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, value: Tensor) -> Tensor:
        batch, length, width = value.shape
        split = self.joined(self.norm1(value)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        queries, keys, values = split.unbind(0)
        future = torch.ones(length, length, dtype=torch.bool, device=value.device).triu(1)
        scores = (queries @ keys.transpose(-1, -2)) * (width // self.heads) ** -0.5
        context = scores.masked_fill(future, float("-inf")).softmax(-1) @ values
        value = value + self.projection(context.transpose(1, 2).reshape(batch, length, width))
        widened = self.wide(self.norm2(value))
        narrowed: Tensor = self.narrow(functional.gelu(widened, approximate="tanh"))
        return value + narrowed


class Double(nn.Sequential):
    """Two 3x3 convolutions of a U-Net, each with normalisation and ReLU (Ronneberger et al., arXiv:1505.04597)."""

    def __init__(self, before: int, after: int) -> None:
        layers: list[nn.Module] = []
        for channels in (before, after):
            layers += [nn.Conv2d(channels, after, 3, 1, 1, bias=False), _norm(after), nn.ReLU()]
        super().__init__(*layers)


class UNet(nn.Module):
    """Encoder and decoder of four levels with long skip connections."""

    def __init__(self, width: int = 32, levels: int = 4) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(levels + 1)]
        self.down = nn.ModuleList(Double(a, b) for a, b in zip([3, *widths], widths, strict=False))
        self.rise = nn.ModuleList(nn.ConvTranspose2d(2 * a, a, 2, 2) for a in widths[:-1])
        self.up = nn.ModuleList(Double(2 * a, a) for a in widths[:-1])
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, value: Tensor) -> Tensor:
        skips: list[Tensor] = []
        for level, encode in enumerate(self.down):
            value = encode(functional.max_pool2d(value, 2) if level else value)
            skips.append(value)
        for level in reversed(range(len(self.up))):
            value = self.up[level](torch.cat([self.rise[level](value), skips[level]], 1))
        return functional.softplus(self.head(value)).mean()


class Chain(nn.Module):
    """Parts one after the other, those in the middle under `checkpoint_sequential` if there are segments."""

    def __init__(self, first: nn.Module, blocks: list[nn.Module], last: nn.Module) -> None:
        super().__init__()
        self.first, self.blocks, self.last = first, nn.Sequential(*blocks), last
        self.segments = 0

    def forward(self, value: Tensor) -> Tensor:
        value = self.first(value)
        if self.segments:
            value = checkpoint_sequential(  # type: ignore[no-untyped-call]
                self.blocks, self.segments, value, use_reentrant=False, preserve_rng_state=False
            )
        else:
            value = self.blocks(value)
        result: Tensor = self.last(value)
        return result


class CrossEntropy(nn.Module):
    """Loss of logits, (..., classes), against class 0: which one makes no difference to memory or time."""

    def forward(self, value: Tensor) -> Tensor:
        logits = value.flatten(0, -2)
        return functional.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.int64, device=value.device))


def resnet50() -> Chain:
    """ResNet-50 with its loss."""
    blocks: list[nn.Module] = []
    before = 64
    for inner, count in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for number in range(count):
            blocks.append(Bottleneck(before, inner, 2 if inner > 64 and not number else 1))
            before = 4 * inner
    first = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), _norm(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000), CrossEntropy())
    return Chain(first, blocks, head)


class Tokens(nn.Module):
    """Embedding of tokens and places."""

    def __init__(self, vocabulary: int, length: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.zeros(length, width))

    def forward(self, value: Tensor) -> Tensor:
        embedded: Tensor = self.words(value) + self.places
        return embedded


def gpt2(layers: int = 12, width: int = 768, vocabulary: int = 50257, length: int = 1024) -> Chain:
    """GPT-2 small with its loss; the head has a table of its own."""
    blocks: list[nn.Module] = [Block(width, width // 64) for _ in range(layers)]
    head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False), CrossEntropy())
    return Chain(Tokens(vocabulary, length, width), blocks, head)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "GPT-2 small": (gpt2, lambda: torch.zeros(4, 1024, dtype=torch.int64)),
    "ResNet-50": (resnet50, lambda: torch.zeros(32, 3, 224, 224)),
    "U-Net": (UNet, lambda: torch.zeros(8, 3, 256, 256)),
}
"""Each network and what it is fed."""
