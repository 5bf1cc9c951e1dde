"""Predicted against measured activation peaks of random planned models, each in a process of its own."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir

from ckplan.autodiff import build_training_graph
from ckplan.errors import InfeasibleError
from ckplan.isolation.arrays import save_arrays
from ckplan.isolation.folders import temporary_folder
from ckplan.meter.facts import file_facts
from ckplan.meter.inputs import make_inputs
from ckplan.meter.measurement import request_for
from ckplan.meter.memory.counter_timeline import in_use_before, interpret
from ckplan.meter.memory.counters import split_runs
from ckplan.meter.running.process import run_job
from ckplan.meter.running.session import as_array, open_session
from ckplan.meter.running.session import step_of as runner_of
from ckplan.model.loading import normalise
from ckplan.pipeline import Goal, rewrite, step_of
from ckplan.planner.strategies import parse_strategy
from ckplan.runtime.cpu import CPU
from tests.runtime.forked import ForkError, forked
from tests.runtime.memory_graphs import grow

STRATEGIES = ("none", "sqrt", "memory", "auto:steps=0", "auto:steps=0", "memory")
THREADS = CPU.threads


@dataclass(frozen=True)
class Promise:
    """What became of a model.

    Attributes:
        seed: of the model.
        strategy: of the plan.
        predicted: peak of the activations in bytes, as planned.
        measured: the same by onnxruntime's counters.
        budget: what was asked for; None where nothing was.
        heap: the same by the heap meter, which counts every allocation of the process; None where it was not asked.
        at: operator of the step with the measured peak.
        differ: outputs that are not equal to the bit to those of the file without a plan.
        skipped: why there is no figure; empty where there is one.
    """

    seed: int
    strategy: str = ""
    predicted: int = 0
    measured: int = 0
    budget: int | None = None
    heap: int | None = None
    at: str = ""
    differ: tuple[str, ...] = ()
    skipped: str = ""

    @property
    def excess(self) -> int:
        """Bytes that were promised beyond what was measured; negative where the promise is broken."""
        return self.predicted - self.measured


def kept(seed: int, folder: Path | None = None, every: int = 0) -> Promise:
    """Plan the model of a seed, run the file, and compare.

    Args:
        seed: of the model.
        folder: where to leave the file.
        every: how often the heap meter is asked: of each so many seeds one; 0 for never.
    """
    model = grow(seed)
    if not _reads_parameters(model):
        return Promise(seed, skipped="the loss depends on no parameter")
    training = build_training_graph(normalise(ir.from_proto(model)).model, loss="loss", wrt=["p[0-9]*"]).model
    step = step_of(training)
    strategy = STRATEGIES[seed % len(STRATEGIES)]
    share = (seed * 7919 % 60 + 35) / 100
    goal = Goal(share=share) if strategy != "none" else Goal()
    try:
        planned = rewrite(step, parse_strategy(strategy), goal)
    except InfeasibleError:
        goal = Goal()
        planned = rewrite(step, parse_strategy(strategy), goal)
    content = ir.to_proto(planned.model).SerializeToString()
    if folder is not None:
        (folder / f"{seed}.onnx").write_bytes(content)
    measured, at, hidden = measured_peak(content)
    after, budget = planned.after, goal.bytes(step.baseline)
    heap = heap_peak(content) if every and seed % every == 0 else None
    if measured < after.peak_activations <= hidden:
        return Promise(seed, skipped="the making of the session took more, so the counters do not show the peak")
    differ = differing(ir.to_proto(step.ordered).SerializeToString(), content)
    return Promise(seed, strategy, after.peak_activations, measured, budget, heap, at, differ)


def differing(plain: bytes, planned: bytes) -> tuple[str, ...]:
    """The outputs of two files that are not equal to the bit, under default session options on `THREADS`."""
    arrays = make_inputs(ir.from_proto(_parsed(plain))).arrays
    made = []
    for content in (plain, planned):
        session, _ = open_session(content, "cpu", threads=THREADS)
        results = [as_array(result) for result in runner_of(session, arrays)()]
        names = [value.name for value in session.get_outputs()]
        made.append({n: None if a is None else a.tobytes() for n, a in zip(names, results, strict=True)})
    return tuple(sorted(name for name, content in made[0].items() if made[1][name] != content))


def measured_peak(content: bytes) -> tuple[int, str, int]:
    """Peak of the activations of a file's first run by onnxruntime's counters, and the operator at which it stands.

    The last number is how far the making of the session and the first kernel had already filled the allocator: what a
    kernel works in does not show below that.

    Only the first call in a process tells the truth: the counters are those of the allocator that all sessions share.
    """
    model = ir.from_proto(_parsed(content))
    inputs, facts = make_inputs(model), file_facts(model)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        session, _ = open_session(
            content, "cpu", threads=THREADS, profile=folder / "profile", cut=True, optimized=folder / "optimized.onnx"
        )
        results = runner_of(session, inputs.arrays)()
        outputs = [value.name for value in session.get_outputs()]
        arrays = [as_array(result) for result in results]
        sizes = {name: array.nbytes for name, array in zip(outputs, arrays, strict=True) if array is not None}
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
        executed = ir.load(folder / "optimized.onnx").graph
        producers = {
            str(value.name): node.name for node in executed for value in node.outputs if value.name in facts.producers
        }
    runs = split_runs(events)
    hidden = runs[0]["peak"][0] - in_use_before(runs[0])
    counters = interpret(
        {"order": "default", "runs": runs, "producers": producers, "outputs": sizes},
        facts,
        inputs.nbytes,
    )
    assert counters is not None
    return counters.peak_activations, counters.op_types[counters.timeline.peak_step], hidden


def heap_peak(content: bytes) -> int | None:
    """Peak of the activations of a file by the heap meter; None where its outputs are no tensors."""
    with temporary_folder() as folder:
        (folder / "planned.onnx").write_bytes(content)
        save_arrays(folder / "inputs", make_inputs(ir.load(folder / "planned.onnx")).arrays)
        found = run_job(
            "ckplan.meter.memory.heap", request_for(folder / "planned.onnx", folder / "inputs", "cpu", THREADS)
        )
    peak: int | None = found["activations"]
    return peak


def in_a_fork(seed: int, folder: Path | None = None, every: int = 0) -> Promise:
    """`kept` in a process of its own; a failure is told as a model that was skipped."""
    try:
        return Promise(**forked(lambda: asdict(kept(seed, folder, every))))
    except ForkError as error:
        return Promise(seed, skipped=f"FAILED {error}")


def _parsed(content: bytes) -> Any:
    import onnx

    return onnx.ModelProto.FromString(content)


def _reads_parameters(model: Any) -> bool:
    needed = {"loss"}
    for node in reversed(model.graph.node):
        if needed.intersection(node.output):
            needed.update(node.input)
    return any(name[0] == "p" and name[1:].isdigit() for name in needed if name)
