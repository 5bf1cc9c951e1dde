"""Results made by hand, to be reported."""

from __future__ import annotations

from io import StringIO
from typing import Any

from rich.console import Console

from ckplan.answers.analysis import Analysis, Contents, Offer, TensorFacts
from ckplan.meter import (
    Counters,
    Heap,
    Measurement,
    Numerics,
    OutputDifference,
    Prediction,
    Recomputation,
    Resident,
    Steady,
    Timing,
    Verification,
)
from ckplan.planner import Kind, Moment, Op, Problem, Tensor, Timeline, make_plan
from ckplan.report.document import Document
from ckplan.report.writers.terminal import terminal
from ckplan.runtime.pools.footprint import Footprint

KIB = 1024


def printed(document: Document, width: int = 80) -> str:
    """A document as it appears without colours; no line may exceed the width."""
    console = Console(file=StringIO(), width=width, color_system=None, highlight=False)
    with console.capture() as captured:
        console.print(terminal(document))
    text = captured.get()
    assert max(map(len, text.splitlines()), default=0) <= width
    return text


def timeline(*kib: int) -> Timeline:
    """A step per figure, in KiB of activations above 10 KiB of everything else; the second half is backward."""
    return Timeline(
        tuple(
            Moment(f"op{index}", (10 + size) * KIB, size * KIB, backward=2 * index >= len(kib))
            for index, size in enumerate(kib)
        )
    )


def analysis(**changes: Any) -> Analysis:
    """Two layers, with one plan and one refusal; names are as odd as models have them."""
    problem = Problem((Op("op", (0,), (1,)),), (Tensor("x", 4, Kind.INPUT), Tensor("y", 8 * KIB)))
    tensors = (
        TensorFacts("/layer[0]/act", (8, 256), 8 * KIB, "/layer[0]/act", "Tanh", False),
        TensorFacts("a" * 120, (), 4, "b" * 120, "Conv", True),
    )
    held = {Kind.PARAMETER: 16 * KIB, Kind.INPUT: 4, Kind.OUTPUT: 16 * KIB, Kind.ACTIVATION: 99}
    found: dict[str, Any] = {
        "contents": Contents(3, 4, held, (2, 4096), "cross-entropy of 'fc' against input 'labels'"),
        "opset": 21,
        "base": timeline(1, 8, 16, 8),
        "at_peak": tensors,
        "bottlenecks": tensors[:1],
        "lower_bound": 2 * KIB,
        "offers": (
            Offer("memory:min_bytes=1", make_plan(problem, "memory:min_bytes=1", [0])),
            Offer("list", None, "no tensors were named"),
        ),
        "footprint": Footprint(16 * KIB, 8 * KIB, 0, 4, 2 * KIB, 16 * KIB, 1 * KIB),
    }
    return Analysis(**(found | changes))


def measurement(path: str, kib: int, **changes: Any) -> Measurement:
    """A file whose activations peak at some KiB."""

    def counters(order: str) -> Counters:
        return Counters(order, timeline(1, kib), ("Tanh", "Mul"), (1e-3, 1e-3), 5, (), Steady(kib * KIB, 2 * kib * KIB))

    found: dict[str, Any] = {
        "path": path,
        "device": "cpu",
        "providers": ("CPUExecutionProvider",),
        "onnxruntime": "1.31.1",
        "threads": None,
        "input_bytes": 4,
        "output_bytes": 4,
        "parameter_bytes": 4,
        "counters": counters("default"),
        "priority": counters("priority"),
        "steady_without_pattern": Steady(kib * KIB, kib * KIB),
        "readings": {"heap": Heap(1, kib * KIB, kib * KIB + 100)},
        "resident": Resident(0, 0, 0, 300 * KIB),
        "step_seconds": (1e-3,),
        "wobble": {},
        "nonfinite": (),
        "prediction": Prediction(None, None),
        "recomputation": Recomputation(0, 0),
        "notes": (),
    }
    return Measurement(**(found | changes))


def verification(*, differences: tuple[OutputDifference, ...] = (), **new: Any) -> Verification:
    """Two files, the second with half the activations."""
    changes = {"prediction": Prediction(32 * KIB, 42 * KIB), "recomputation": Recomputation(12, 12)} | new
    return Verification(
        base=measurement("base.onnx", 64, notes=("inputs are random",)),
        new=measurement("new.onnx", 32, notes=("inputs are random",), **changes),
        numerics=Numerics(("loss", "w_grad"), (), ("extra",), differences),
        timing=Timing((2e-3, 4e-3, 3e-3), (3e-3, 6e-3, 6e-3), "processor"),
        notes=(),
    )
