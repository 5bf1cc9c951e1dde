"""A new file against a base file: what it saves, what it costs, and whether it computes the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckplan.arguments import check_flag
from ckplan.display import shortened
from ckplan.errors import CkplanError, UsageError
from ckplan.isolation.arrays import load_arrays, save_arrays
from ckplan.isolation.folders import temporary_folder
from ckplan.meter.compared import Numerics, Timing, Verification
from ckplan.meter.facts import fed_inputs, file_facts, read_model
from ckplan.meter.inputs import make_inputs
from ckplan.meter.measurement import check_options, measured, request_for
from ckplan.meter.numbers.in_place import compared_in_place
from ckplan.meter.numbers.nonfinite import find_origin
from ckplan.meter.numbers.numerics import compare_outputs
from ckplan.meter.seconds.timing import alternate
from ckplan.meter.types import Measurement, Origin
from ckplan.model.traits import is_random

if TYPE_CHECKING:
    import onnx_ir as ir

_SIGMOIDS = frozenset({"GRU", "LSTM", "QuickGelu", "Sigmoid", "Swish"})
"""Operators whose kernels call onnxruntime's logistic function, a quotient of polynomials between -18 and 18."""


def verify(
    base: str | Path,
    new: str | Path,
    *,
    device: str = "auto",
    inputs: Path | None = None,
    seed: int = 0,
    runs: int | None = None,
    threads: int | None = None,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    heap: bool = True,
) -> Verification:
    """Run two files on the same inputs and compare memory, time and outputs.

    Args:
        base: the file to compare with, such as a training graph without a plan.
        new: the file in question.
        device: ``auto``, ``cpu`` or ``cuda``.
        inputs: an ``.npz`` with the inputs to use; None makes up seeded random ones.
        seed: of the random inputs.
        runs: number of timed pairs of steps, up to four times as many where steps are short; None takes five of
            them, or fewer where steps take seconds.
        threads: intra-op threads for both; None leaves onnxruntime's default.
        dims: sizes of named dimensions, for random inputs.
        shapes: shapes of whole inputs, for random inputs.
        heap: whether to run the second meter.

    Raises:
        UsageError: an option does not fit the models, or the two want different inputs.
        ModelError: a file is not a model, or onnxruntime does not run it.
        EnvironmentUnavailableError: the device is not there; as `RunFailedError`, a process ended early.
    """
    check_options(device, 1 if runs is None else runs, threads)
    check_flag("`heap`", heap)
    models = [read_model(Path(base)), read_model(Path(new))]
    if different := _different_inputs(*models):
        raise UsageError(
            f"`{base}` and `{new}` do not take the same inputs: {different}",
            "compare files made from the same model, for the same sizes",
        )
    chosen = make_inputs(models[0], file=inputs, seed=seed, dims=dims, shapes=shapes)
    with temporary_folder() as folder:
        save_arrays(folder / "inputs", chosen.arrays)
        places = [folder / "base", folder / "new"]
        # Timed below, in turns: one run each will do here.
        request = request_for(Path(base), folder / "inputs", device, threads)
        first = measured(models[0], chosen, request, places[0], runs=1, heap=heap, compared=True)
        # The device that ran is settled now, for everything that follows.
        requests = [request_for(Path(path), folder / "inputs", first.device, threads) for path in (base, new)]
        second = measured(models[1], chosen, requests[1], places[1], runs=1, heap=heap, compared=True)
        facts = [file_facts(model) for model in models]
        base_outputs, new_outputs = (load_arrays(place, mapped=True) for place in places)
        numerics = compare_outputs(base_outputs, new_outputs, facts[1].groups or facts[0].groups)
        wobbles = {} if any(_draws(model) for model in models) else _wobbles(first, second)
        numerics = _beside_wobbles(numerics, wobbles, second.device)
        notes: list[str] = []
        orders = [known.order for known in facts]
        origins = [
            _origin(measurement, request, order, notes)
            for measurement, request, order in zip((first, second), requests, orders, strict=True)
        ]
        if (coarse := _coarse(models)) and not all(difference.is_rounding for difference in numerics.differences):
            notes.append(
                f"there is {' and '.join(coarse)} in these files, and onnxruntime's sigmoid is 0.6 % off at -12, 7 % "
                "at -14 and 0 from -18 on: where one file computes it another way, that alone makes outputs differ"
            )
        in_place = compared_in_place(models[1], requests[1])
        timing = _timing(requests, runs, notes)
    numerics = replace(numerics, base_origin=origins[0], new_origin=origins[1])
    return Verification(first, second, numerics, timing, tuple(notes), in_place)


def _beside_wobbles(numerics: Numerics, wobbles: Mapping[str, float], device: str) -> Numerics:
    """The differences of two files, each beside what two runs of one file differ by."""
    differences = (
        replace(found, device=device, wobble=wobbles.get(found.output, 0.0)) for found in numerics.differences
    )
    return replace(numerics, differences=tuple(differences))


def _wobbles(base: Measurement, new: Measurement) -> dict[str, float]:
    """By how much two runs of one file differ, of the two files the larger, by output; on CUDA only.

    There sums over threads come in another order each time. On a CPU a file does the same in each run, unless it draws.
    """
    if new.device != "cuda":
        return {}
    return {name: max(side.wobble.get(name, 0.0) for side in (base, new)) for name in {*base.wobble, *new.wobble}}


def _draws(model: ir.Model) -> bool:
    """Whether a model draws at random: two runs of it differ by that, and the first runs of two files do not."""
    return any(is_random(node) for node in model.graph.all_nodes())


def _coarse(models: Sequence[ir.Model]) -> list[str]:
    """Name the operators of some models that onnxruntime computes by its approximation of the sigmoid."""
    return sorted({node.op_type for model in models for node in model.graph.all_nodes()} & _SIGMOIDS)


def _timing(requests: Sequence[Mapping[str, Any]], runs: int | None, notes: list[str]) -> Timing | None:
    """Times in turns; a failure is a note, since each file was shown to run on its own (both may not fit)."""
    try:
        return alternate(requests[0], requests[1], runs)
    except CkplanError as error:
        notes.append(f"the two files could not be timed side by side: {error}")
        return None


def _origin(
    measurement: Measurement, request: Mapping[str, Any], order: Sequence[str], notes: list[str]
) -> Origin | None:
    if measurement.counters is not None:
        order = [step.op for step in measurement.counters.timeline.steps]
    try:
        return find_origin(request, measurement.nonfinite, order)
    except CkplanError as error:
        notes.append(f"the origin of the NaN or infinity in `{measurement.path}` was not found: {error}")
        return None


def _different_inputs(base: ir.Model, new: ir.Model) -> str:
    """How the inputs that two files have to be fed differ, in words; empty where one set of arrays fits both."""
    wanted, offered = ({str(value.name): value for value in fed_inputs(model)} for model in (base, new))
    if odd := sorted(wanted.keys() ^ offered.keys()):
        return f"only one has {shortened(odd)}"
    for name, value in wanted.items():
        other = offered[name]
        if value.dtype != other.dtype or _clash(value.shape, other.shape):
            return f"'{name}' is {_described(value)} in one and {_described(other)} in the other"
    return ""


def _clash(one: ir.Shape | None, other: ir.Shape | None) -> bool:
    """Whether no array has both shapes; a dimension without a number fits any."""
    if one is None or other is None:
        return False
    pairs = zip(one, other, strict=False)
    return len(one) != len(other) or any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs)


def _described(value: ir.Value) -> str:
    return f"{value.dtype}{'' if value.shape is None else value.shape}"
