"""A loss head alone, whole and in chunks: memory by two meters, processor time, and how far numbers differ.

    python -m benchmarks.loss_head [--samples 2048] [--classes 32000] [--features 512] [--chunks 8 8x2 16 16x2]
                                   [--loss plain smoothed z both]

A linear layer tied to a table of words, and a cross-entropy: plain, with label smoothing as torch computes it, with a
z-loss, or with both. The time is the processor time of a step on one thread,
the least of several; the forms take turns, so that what else the machine does meets all of them.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

import ckplan

_TEXT = """<ir_version: 10, opset_import: ["" : 21]>
head (float[{samples},{features}] x, int64[{samples}] labels) => (float loss) {{
    hidden = MatMul(x, v)
    turned = Transpose<perm = [1, 0]>(words)
    logits = MatMul(hidden, turned)
    {loss}
}}"""

_SMOOTHED = """
    chances = LogSoftmax(logits)
    column = Unsqueeze(labels, last)
    picked = GatherElements<axis = 1>(chances, column)
    evenly = ReduceMean(chances, last)
    most = Mul(picked, many)
    rest = Mul(evenly, few)
    both = Add(most, rest)
    losses = Neg(both)
    {loss} = ReduceMean<keepdims = 0>(losses)
"""
_SQUARED = """
    normaliser = ReduceLogSumExp<keepdims = 0>(logits, last)
    squares = Mul(normaliser, normaliser)
    square = ReduceMean<keepdims = 0>(squares)
    penalty = Mul(square, little)
    loss = Add(fit, penalty)
"""

LOSSES = {
    "plain": "loss = SoftmaxCrossEntropyLoss(logits, labels)",
    "smoothed": _SMOOTHED.format(loss="loss"),
    "z": f"fit = SoftmaxCrossEntropyLoss(logits, labels) {_SQUARED}",
    "both": _SMOOTHED.format(loss="fit") + _SQUARED,
}
"""Losses of logits and labels; that with label smoothing of 0.1, the factor of a z-loss is 1e-4."""

_NUMBERS = {"last": np.array([-1]), "many": np.float32(0.9), "few": np.float32(0.1), "little": np.float32(1e-4)}


def head(samples: int, classes: int, features: int, loss: str = "plain") -> onnx.ModelProto:
    """The forward model: [samples, features] to a loss over [samples, classes]."""
    model = onnx.parser.parse_model(_TEXT.format(samples=samples, features=features, loss=LOSSES[loss]))
    rng = np.random.default_rng(0)
    del model.graph.initializer[:]
    for name, shape in (("v", (features, features)), ("words", (classes, features))):
        array = (rng.standard_normal(shape) / features**0.5).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    read = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in _NUMBERS.items() if name in read
    )
    return model


def main() -> None:
    """Print a row for the head whole and for each number of chunks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=2048)
    parser.add_argument("--classes", type=int, default=32000)
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--chunks", nargs="+", default=["8", "8x2", "16", "16x2"])
    parser.add_argument("--loss", nargs="+", default=["plain"], choices=LOSSES)
    parser.add_argument("--repeats", type=int, default=5)
    chosen = parser.parse_args()
    print(f"{chosen.samples} samples x {chosen.classes} classes, {chosen.features} features, strategy memory")
    for loss in chosen.loss:
        _compare(chosen, loss)


def _compare(chosen: argparse.Namespace, loss: str) -> None:
    """Print the rows of one loss."""
    model = head(chosen.samples, chosen.classes, chosen.features, loss)
    rng = np.random.default_rng(1)
    feeds = {
        "x": rng.standard_normal((chosen.samples, chosen.features), dtype=np.float32),
        "labels": rng.integers(0, chosen.classes, chosen.samples),
    }
    kinds = ["off", *(f"loss={count}" for count in chosen.chunks)]
    with tempfile.TemporaryDirectory() as folder:
        files = {kind: Path(folder) / f"{kind}.onnx" for kind in kinds}
        planned = {k: ckplan.rewrite(model, strategy="memory", chunks=k, output=f) for k, f in files.items()}
        found = {kind: ckplan.measure(file) for kind, file in files.items()}
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 3
        sessions = {
            kind: onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
            for kind, file in files.items()
        }
        names = [output.name for output in sessions["off"].get_outputs()]
        outputs = {kind: dict(zip(names, s.run(names, feeds), strict=True)) for kind, s in sessions.items()}
        seconds: dict[int | str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(chosen.repeats):
            for kind, session in sessions.items():
                start = time.process_time()
                session.run(names, feeds)
                seconds[kind].append(time.process_time() - start)
    print(
        f"{loss}\n"
        f"{'chunks':>9} {'promised':>9} {'counters':>9} {'heap':>9} {'time':>6}  largest difference over largest"
    )
    for kind in kinds:
        heap = found[kind].heap
        memory = [planned[kind].after.peak_activations, found[kind].peak_activations, heap.activations if heap else 0]
        apart = {
            name: np.abs(outputs[kind][name] - outputs["off"][name]).max() / np.abs(outputs["off"][name]).max()
            for name in names
        }
        told = ", ".join(f"{name} {value:.0e}" if value else f"{name} 0" for name, value in apart.items())
        cells = " ".join(f"{(count or 0) / 2**20:9.1f}" for count in memory)
        print(f"{kind:>9} {cells} {min(seconds[kind]) / min(seconds['off']):6.2f}  {told}")


if __name__ == "__main__":
    main()
