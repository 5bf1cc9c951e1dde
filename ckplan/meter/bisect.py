"""The smallest arena in which a file still runs, found by running it: a figure that depends on no meter.

Every try is a process of its own that loads the file under a limit and runs it three times: the first run, the one that
takes the block of the memory pattern, and one more. What the model of the arena expects is tried first, so that few
tries are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir

from ckplan.errors import CkplanError
from ckplan.isolation.arrays import save_arrays
from ckplan.isolation.folders import temporary_folder
from ckplan.meter.executed.graph import executed_graph
from ckplan.meter.executed.inside import replayed
from ckplan.meter.facts import file_facts, read_model
from ckplan.meter.inputs import Inputs, make_inputs
from ckplan.meter.measurement import Progress, check_options, request_for
from ckplan.meter.memory.arena_limit import arena_options, arena_settings, cuda_options
from ckplan.meter.memory.counter_timeline import interpret
from ckplan.meter.running.device import CPU, CUDA
from ckplan.meter.running.errors import RunFailedError, RunTooLongError
from ckplan.meter.running.process import run_job
from ckplan.meter.types import Prediction, jsonable
from ckplan.model.fixing import Fixed
from ckplan.planner.arena.allocations import Allocations, allocations, expected_arena, smallest_limit
from ckplan.runtime.executing.feeds import has_memory_pattern
from ckplan.units import format_bytes

PRECISION = 1 / 256
"""Distance between the limit that was too small and the one that was not at which the search ends, as a ratio."""

_FIRST_GUESS = 1.02
"""Over what is handed out at once, where nothing is expected."""

_HOPELESS = 64
"""A file that runs without a limit and not with one of so many times what it has in use will not run with more."""

_KILLED = "SIGKILL"


@dataclass(frozen=True, slots=True)
class Try:
    """A limit in bytes, and whether the file ran within it."""

    limit: int
    ran: bool


@dataclass(frozen=True, slots=True)
class Smallest:
    """The smallest limit with which a file runs, in bytes.

    Attributes:
        limit: the smallest with which it ran.
        too_small: the largest with which it did not, or below which it cannot.
        in_use: bytes that onnxruntime had handed out at once when there was no limit; no limit below can do.
        expected: the smallest limit by the model of the arena; None where there is no such model.
        expected_in_use: and what was to be in use.
        tries: all limits tried, in order.
    """

    limit: int
    too_small: int
    in_use: int
    expected: int | None
    expected_in_use: int | None
    tries: tuple[Try, ...]

    @property
    def fragmentation(self) -> float:
        """What the limit has to have beyond what is in use, as a ratio of that."""
        return self.limit / self.in_use - 1 if self.in_use else 0.0

    def to_json(self) -> dict[str, Any]:
        """The fields and what follows from them."""
        return {**jsonable(self), "fragmentation": self.fragmentation}


@dataclass(frozen=True, slots=True)
class Bisection:
    """What `smallest_arena` finds.

    Attributes:
        path: the file.
        device: ``cpu`` or ``cuda``: the one that ran.
        peak_activations: measured in the first run without a limit, in bytes.
        prediction: what the file promises.
        plain: with memory patterns off.
        default: with default session options; a larger limit does as well.
        without_block: whether the file runs with default options at ``plain.limit`` as well, because onnxruntime does
            without the block of a memory pattern that does not fit; between there and ``default.limit`` it may fail.
        options: how to set up the arena with the smallest limit: keys of ``onnxruntime.OrtArenaCfg`` on the CPU,
            options of the provider on CUDA.
        precision: how far below the smallest limits one may lie that was not tried, as a ratio.
    """

    path: str
    device: str
    peak_activations: int
    prediction: Prediction
    plain: Smallest
    default: Smallest
    without_block: bool
    options: Mapping[str, int | str]
    precision: float = PRECISION

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready form."""
        return {
            **jsonable(self),
            "plain": self.plain.to_json(),
            "default": self.default.to_json(),
            "options": dict(self.options),
        }


def smallest_arena(
    path: str | Path,
    *,
    device: str = "auto",
    inputs: Path | None = None,
    seed: int = 0,
    threads: int | None = None,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    fixed: Fixed | None = None,
    progress: Progress = lambda text: None,
) -> Bisection:
    """Find the smallest memory limit with which a file still runs.

    On the CPU it is that of an arena (``max_mem``) that holds activations, outputs, workspaces and packed weights;
    parameters and inputs are outside. On CUDA it is ``gpu_mem_limit``, with parameters and inputs inside.

    Args:
        path: an ONNX file that onnxruntime can run.
        device: ``auto``, ``cpu`` or ``cuda``.
        inputs: an ``.npz`` with the inputs to use; None makes up seeded random ones.
        seed: of the random inputs.
        threads: intra-op threads; None leaves onnxruntime's default.
        dims: sizes of named dimensions, for random inputs.
        shapes: shapes of whole inputs, for random inputs.
        fixed: numbers to feed, by name of the input, in place of random ones.
        progress: is told what is being done.

    Raises:
        UsageError: an option does not fit the model.
        ModelError: the file is not a model, or onnxruntime does not run it, for another reason than a limit.
        EnvironmentUnavailableError: the device is not there; as `RunFailedError`, a process ended early, or this
            onnxruntime has no counters.
    """
    check_options(device, 1, threads)
    model = read_model(Path(path))
    chosen = make_inputs(model, file=inputs, seed=seed, dims=dims, shapes=shapes, fixed=fixed)
    facts = file_facts(model)
    name = Path(path).name
    with temporary_folder() as folder:
        save_arrays(folder / "inputs", chosen.arrays)
        request = request_for(Path(path), folder / "inputs", device, threads)
        progress(f"running {name} without a limit")
        asked = {
            "variants": [{"order": "default", "pattern": True}],
            "producers": dict(facts.producers),
            "optimized": str(folder / "executed.onnx"),
        }
        variant = run_job("ckplan.meter.memory.counters", {**request, **asked})[0]
        request["device"] = variant["device"]
        counters = interpret(variant, facts, chosen.nbytes)
        if counters is None:
            raise RunFailedError(
                f"onnxruntime {variant['version']} does not report memory in use, so there is nothing to start from",
                "install onnxruntime 1.31 or later",
            )
        simulated = _simulated(folder / "executed.onnx", model, variant["runs"][0], chosen, variant["device"], threads)
        provider = CUDA if variant["device"] == "cuda" else CPU
        first, steady = (_most(variant["runs"][index], provider) for index in (0, -1))

        def runs(limit: int, pattern: bool) -> bool:
            what = "" if pattern else ", memory patterns off"
            progress(f"running {name} within {format_bytes(limit)}{what}")
            return _runs(request, limit, pattern)

        plain = _smallest(lambda limit: runs(limit, False), first, _expected(simulated, pattern=False))
        # On CUDA the block goes into a region of its own or is done without.
        floor = max(first, steady) if provider == CPU else first
        expected = _expected(simulated, pattern=True)
        guess = max(plain.limit, expected[0] or 0, floor if provider == CPU else 0)
        default = _smallest(lambda limit: runs(limit, True), floor, expected, guess)
        without_block = default.limit <= plain.limit or runs(plain.limit, True)
    limit = default.limit
    return Bisection(
        path=str(path),
        device=variant["device"],
        peak_activations=counters.peak_activations,
        prediction=facts.prediction,
        plain=plain,
        default=default,
        without_block=without_block,
        options=arena_options(limit) if provider == CPU else cuda_options(limit),
    )


def _runs(request: Mapping[str, Any], limit: int, pattern: bool) -> bool:
    """Whether the file runs within a limit; a kernel that crashes for want of memory is no different."""
    try:
        return bool(run_job("ckplan.meter.memory.arena_limit", {**request, "limit": limit, "pattern": pattern})["ran"])
    except RunTooLongError:
        raise
    except RunFailedError as error:
        if _KILLED in error.message:  # by the system, which had no memory left: this says nothing of the limit
            raise
        return False


def _simulated(
    file: Path, model: ir.Model, run: Mapping[str, Sequence[Any]], inputs: Inputs, device: str, threads: int | None
) -> Allocations | None:
    """What the run asked of its allocator, where that can be told."""
    if device != "cpu":
        return None
    try:
        problem, order, shapes, _ = replayed(executed_graph(file, model), run, inputs.arrays, threads=threads)
        return allocations(problem, order, shapes, pattern=has_memory_pattern(model.graph))
    except (CkplanError, ValueError):
        return None


def _expected(asked: Allocations | None, *, pattern: bool) -> tuple[int | None, int | None]:
    """The smallest limit, and what is in use at most, by the model of the arena; None where there is none."""
    if asked is None:
        return None, None
    arena = expected_arena(asked)
    limit = smallest_limit(asked, pattern=pattern, settings=arena_settings)
    return limit, max(arena.live, arena.needed) if pattern else arena.live


def _most(run: Mapping[str, Sequence[Any]], provider: str) -> int:
    """Most bytes that a provider's kernels had asked for and not given back at the end of one of them."""
    told = zip(run["provider"], run["requested"], strict=True)
    return max((in_use for teller, in_use in told if teller == provider), default=0)


def _smallest(
    runs: Callable[[int], bool], in_use: int, expected: tuple[int | None, int | None], guess: int | None = None
) -> Smallest:
    """Narrow the smallest limit down from a guess, in steps that double until there is a limit on either side.

    Raises:
        RunFailedError: no limit is large enough.
    """
    low, high = in_use, 0
    limit = max(guess or expected[0] or round(in_use * _FIRST_GUESS), in_use, 1)
    step = max(int(limit * PRECISION), 1)
    tries = []
    while True:
        ran = runs(limit)
        tries.append(Try(limit, ran))
        low, high = (low, limit) if ran else (limit, high)
        if high and high - low <= max(high * PRECISION, 1):
            return Smallest(high, low, in_use, *expected, tuple(tries))
        if high:
            limit = max((low + high) // 2, high - step)
        elif limit > _HOPELESS * max(in_use, 2**20):
            raise RunFailedError(
                f"the file does not run within {format_bytes(limit)}, though it needs {format_bytes(in_use)} without "
                "a limit",
                "this onnxruntime may not let an arena be limited",
            )
        else:
            limit += step
        step *= 2
