"""Networks as packages ship them: plans, and gradients beside differences of the loss.

    python -m benchmarks.shipped_files FILE[:NAME=VALUE,...] ... [--strategy memory]

FILE is an ONNX file that was made to be run, with any names, operators and exporter; behind a colon inputs are fixed as
by `--set` (``silero_vad.onnx:sr=16000``). There is no module to compare such a file with. Its gradient is held against
the file itself: all parameters are moved along it, each by the same part of its norm, and what the loss changes by is
compared with what the gradient says. *Apart* is the least relative distance of a few step lengths, in float32: long
steps leave the slope, and short ones are lost in the last digits of the loss. Outputs of the planned file are compared
with those of the file without a plan, bit by bit, on one thread and two. MiB.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnxruntime

from benchmarks.files import Reference, peaks
from ckplan.errors import CkplanError
from ckplan.isolation.arrays import Array
from ckplan.meter.inputs import make_inputs
from ckplan.model import save
from ckplan.pipeline import Goal, Step, StepOptions, open_step, rewrite
from ckplan.planner.strategies import parse_strategy

STEPS = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
"""Parts of the norm of a parameter by which it is moved."""


def slope_apart(step: Step, folder: Path) -> float:
    """The relative distance of the slope of the loss along the gradient from what the gradient says of it."""
    assert step.training is not None
    path = folder / "step.onnx"
    save(step.ordered, path)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    named = {value.name for value in session.get_inputs()}
    fed = {name: array for name, array in make_inputs(step.ordered).arrays.items() if name in named}
    initializers = step.ordered.graph.initializers
    weights: dict[str, Array] = {
        name: initializers[name].const_value.numpy()  # type: ignore[union-attr]
        for name in step.training.gradients
    }
    names = [step.training.loss, *step.training.gradients.values()]
    found = dict(zip(names, session.run(names, fed), strict=True))
    directions, slope = {}, 0.0
    for name, output in step.training.gradients.items():
        gradient = found[output].astype(np.float64)
        length = np.linalg.norm(gradient)
        directions[name] = gradient * (np.linalg.norm(weights[name]) or 1.0) / (length or 1.0)
        slope += float((gradient * directions[name]).sum())
    loss = _loss_along(session, step.training.loss, fed, weights, directions)
    return min(abs((loss(part) - loss(-part)) / (2 * part) - slope) / (abs(slope) or 1.0) for part in STEPS)


def _loss_along(
    session: onnxruntime.InferenceSession,
    loss: str,
    fed: Mapping[str, Array],
    weights: Mapping[str, Array],
    directions: Mapping[str, Array],
) -> Callable[[float], float]:
    def at(part: float) -> float:
        moved = {
            name: np.asarray(weight + part * directions[name], dtype=weight.dtype) for name, weight in weights.items()
        }
        return float(session.run([loss], {**fed, **moved})[0])

    return at


def row(name: str, fixed: Mapping[str, float], strategy: str) -> str:
    """The row of a file."""
    path = Path(name)
    try:
        step = open_step(path, StepOptions.of(set=fixed))
        made = rewrite(step, parse_strategy(strategy), Goal())
    except CkplanError as error:
        return f"| {path.stem} | refused: {error.message[:100]} |"
    assert step.training is not None
    with tempfile.TemporaryDirectory() as folder:
        planned = Path(folder) / "planned.onnx"
        save(made.model, planned)
        found = peaks(planned)
        differing = Reference(step.ordered).differing(planned)
        apart = slope_apart(step, Path(folder))
    sizes = [step.baseline.peak_activations, *(found[meter] for meter in ("predicted", "counter", "heap"))]
    cells = [f"{size / 2**20:.2f}" for size in sizes] + [f"{made.plan.overhead:+.1%}", str(len(differing) or "none")]
    return f"| {path.stem} | {len(step.training.gradients)} | {' | '.join(cells)} | {apart:.0e} |"


def _number(text: str) -> float:
    return int(text) if text.lstrip("-").isdigit() else float(text)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--strategy", default="memory")
    chosen = parser.parse_args()
    print(
        "| file | trained | no plan | promised | counters | heap | compute | outputs that differ | apart |\n"
        + "|---" * 9
        + "|"
    )
    for file in chosen.files:
        name, _, settings = file.partition(":")
        fixed = {key: _number(value) for key, value in (part.split("=") for part in settings.split(",") if part)}
        print(row(name, fixed, chosen.strategy), flush=True)


if __name__ == "__main__":
    main()
