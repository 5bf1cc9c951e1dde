"""Times the forms that gradients of convolutions can take, and says which one the rules choose.

    python -m benchmarks.gradient_forms [--threads 2] [--repeats 5] [--only r50] [--device cuda] [--samples 64]

Prints, per shape, milliseconds in stock onnxruntime for each form of the weight gradient and of the data gradient, the
forward convolution beside them, and the largest sum of temporaries of the weight gradient in MiB; of depthwise shapes
also both gradients by the same copies. The chosen form is marked. The thresholds of ``conv_weight_gradient`` and
``conv_data_gradient`` in ``ckplan.autodiff.rules`` come from this table.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

import numpy as np
import onnx_ir as ir
import onnxruntime

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.reading import shape_of
from ckplan.autodiff.rules.convolution import conv_data_gradient, conv_forms, conv_weight_gradient, depthwise_rows
from ckplan.autodiff.rules.windows import Window
from ckplan.meter.running.session import open_session

#: Samples, channels, size, filters, kernel, stride, padding, groups.
SHAPES: dict[str, tuple[int, int, int, int, int, int, int, int]] = {
    "r50 stem": (8, 3, 224, 64, 7, 2, 3, 1),
    "r50 3x3 56": (8, 64, 56, 64, 3, 1, 1, 1),
    "r50 3x3 56/2": (8, 128, 56, 128, 3, 2, 1, 1),
    "r50 3x3 14": (8, 256, 14, 256, 3, 1, 1, 1),
    "r50 3x3 7": (8, 512, 7, 512, 3, 1, 1, 1),
    "r50 1x1 56": (8, 64, 56, 256, 1, 1, 0, 1),
    "r50 1x1 7": (8, 2048, 7, 512, 1, 1, 0, 1),
    "r50 1x1 56/2": (8, 256, 56, 512, 1, 2, 0, 1),
    "vgg first": (8, 3, 224, 64, 3, 1, 1, 1),
    "vgg second": (4, 64, 224, 64, 3, 1, 1, 1),
    "densenet 3x3": (8, 128, 28, 32, 3, 1, 1, 1),
    "inception 5x5": (8, 48, 35, 64, 5, 1, 2, 1),
    "unet 3x3": (8, 32, 112, 64, 3, 1, 1, 1),
    "mobilenet stem": (8, 3, 224, 32, 3, 2, 1, 1),
    "mobilenet dw 56": (8, 144, 56, 144, 3, 1, 1, 144),
    "mobilenet dw 56/2": (8, 144, 56, 144, 3, 2, 1, 144),
    "mobilenet dw 14": (8, 384, 14, 384, 3, 1, 1, 384),
    "convnext dw 7x7": (8, 96, 28, 96, 7, 1, 3, 96),
    "resnext 3x3 56": (8, 128, 56, 128, 3, 1, 1, 32),
    "resnext 3x3 14": (8, 512, 14, 512, 3, 1, 1, 32),
    "vit patches": (8, 3, 224, 768, 16, 16, 0, 1),
}


def window_for(size: int, kernel: int, stride: int, padding: int) -> Window:
    """The geometry of a square convolution."""
    places = (size + 2 * padding - kernel) // stride + 1
    pair = (1, 1)
    return Window((size, size), (places, places), (kernel, kernel), (stride, stride), pair, (padding, padding))


@dataclass(frozen=True)
class How:
    """How forms are timed.

    Attributes:
        threads: of onnxruntime, on the CPU.
        repeats: runs, of which the shortest counts.
        device: where they run.
    """

    threads: int
    repeats: int
    device: str


def run(shapes: list[list[int]], emit: Callable[..., ir.Value], how: How) -> tuple[float, list[ir.Node]]:
    """Return the shortest of some runs in ms, inputs and outputs on the device, and the nodes."""
    inputs = [
        ir.Value(name=f"in{i}", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(s)) for i, s in enumerate(shapes)
    ]
    graph = ir.Graph(inputs, [], nodes=[], opset_imports={"": 21}, name="g")
    graph.outputs.append(emit(Builder(graph, {"": 21}), *inputs))
    proto = ir.to_proto(ir.Model(graph, ir_version=10))
    session, _ = open_session(proto.SerializeToString(), how.device, threads=how.threads)
    rng, binding = np.random.default_rng(0), session.io_binding()
    for i, s in enumerate(shapes):
        fed = onnxruntime.OrtValue.ortvalue_from_numpy(rng.standard_normal(s, dtype=np.float32), how.device, 0)
        binding.bind_ortvalue_input(f"in{i}", fed)
    for output in session.get_outputs():
        binding.bind_output(output.name, how.device)
    times = []
    for _ in range(1 + how.repeats):
        start = time.perf_counter()
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        times.append(time.perf_counter() - start)
    return min(times[1:]) * 1e3, list(graph)


def temporaries(nodes: list[ir.Node]) -> float:
    """Return the largest sum of live results in MiB when the nodes run in order; Reshape is free."""
    last: dict[ir.Value, int] = {}
    root: dict[ir.Value, ir.Value] = {}
    for step, node in enumerate(nodes):
        for value in node.inputs:
            if value is not None:
                last[root.get(value, value)] = step
        if node.op_type == "Reshape" and node.inputs[0] is not None:
            root[node.outputs[0]] = root.get(node.inputs[0], node.inputs[0])
    live: dict[ir.Value, int] = {}
    peak = 0
    for step, node in enumerate(nodes):
        if node.op_type != "Reshape":
            live[node.outputs[0]] = 4 * int(np.prod(shape_of(node.outputs[0])))
        peak = max(peak, sum(live.values()))
        live = {value: size for value, size in live.items() if last.get(value, len(nodes)) > step}
    return peak / 2**20


def row(name: str, samples: int | None, how: How) -> str:
    """Time all forms for one shape."""
    n, c, size, o, k, stride, padding, groups = SHAPES[name]
    n = samples or n
    window = window_for(size, k, stride, padding)
    kernel, x, dy = [o, c // groups, k, k], [n, c, size, size], [n, o, *window.outputs]

    def convolution(op: Builder, x: ir.Value, w: ir.Value) -> ir.Value:
        return op.Conv(x, w, strides=window.strides, pads=[*window.begin, *window.begin], group=groups)

    forward, _ = run([x, kernel], convolution, how)
    cells = []
    chosen = conv_weight_gradient.weight_gradient_form(n, c, o, groups, window)
    for form, emit in conv_forms.FORMS.items():
        if (form in ("dot", "row") and not c == o == groups) or (form in conv_forms.WITHOUT_EINSUM and groups > 1):
            continue
        call = functools.partial(emit, kernel=kernel, groups=groups, window=window)
        took, nodes = run([x, dy], call, how)
        mark = "*" if form == chosen else ""
        cells.append(f"{form}{mark} {took:.1f} ({temporaries(nodes):.0f} MiB, {len(nodes)} nodes)")
    for form in get_args(conv_data_gradient.Form):
        if form == "flipped" and (groups > 1 or stride > 1):
            continue
        if form == "product" and not conv_data_gradient.reads_apart(window):
            continue
        call = functools.partial(conv_data_gradient.data_gradient, groups=groups, window=window, form=form)
        took, _ = run([dy, kernel], call, how)
        mark = "*" if conv_data_gradient.data_gradient_form(n, kernel, groups, window) == form else ""
        cells.append(f"{form}{mark} {took:.1f}")
    if c == o == groups and stride == 1:

        def both(op: Builder, x: ir.Value, dy: ir.Value, weight: ir.Value) -> ir.Value:
            dx, dw = depthwise_rows.gradients(op, x, dy, weight, window)
            op.graph.outputs.append(dw)
            return dx

        took, nodes = run([x, dy, kernel], both, how)
        cells.append(f"both by rows {took:.1f} ({temporaries(nodes):.0f} MiB, {len(nodes)} nodes)")
    return f"{name:18} forward {forward:.1f} | {' | '.join(cells)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--samples", type=int, help="samples in place of those of the shapes")
    parser.add_argument("--only", default="", help="only shapes whose name contains this")
    arguments = parser.parse_args()
    how = How(arguments.threads, arguments.repeats, arguments.device)
    for name in SHAPES:
        if arguments.only in name:
            print(row(name, arguments.samples, how), flush=True)


if __name__ == "__main__":
    main()
