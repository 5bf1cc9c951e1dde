"""Everything that is known of a model's memory at the end of a command, as one value: what a report shows."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from ckplan.answers.analysis import Analysis, Contents
from ckplan.answers.blocks.patterns import patterns
from ckplan.display import one_line
from ckplan.operators.sessions import PACKAGES
from ckplan.pipeline import Step
from ckplan.planner import Plan, Problem
from ckplan.runtime.occupancy import Occupancy, Role, executed_occupancy, occupancy
from ckplan.runtime.sizes import dimensions_of
from ckplan.version import __version__

if TYPE_CHECKING:
    import onnx_ir as ir

    from ckplan.answers.pareto import Pareto
    from ckplan.comparison import Comparison
    from ckplan.meter import Verification

_PACKAGES = ("onnx", "onnx-ir", "numpy")


@dataclass(frozen=True, slots=True)
class Decision:
    """What a plan does with a tensor of the forward pass that the backward pass needs.

    Attributes:
        tensor: its name.
        shape: its sizes, None where they are not known.
        bytes: bytes that it takes by itself; 0 for a view of another tensor.
        node: the node that makes it.
        op_type: operator of that node.
        times: how often the node runs again; 0 for a tensor that is kept.
        seconds: extra compute for that, as estimated.
    """

    tensor: str
    shape: tuple[int, ...] | None
    bytes: int
    node: str
    op_type: str
    times: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Block:
    """Decisions on the tensors of a repeated block of nodes.

    Attributes:
        name: its operators, such as ``Conv+BatchNormalization+Relu``.
        count: how often the block stands in the forward pass.
        decisions: in forward order.
    """

    name: str
    count: int
    decisions: tuple[Decision, ...]

    @property
    def bytes(self) -> int:
        """Bytes of all its tensors."""
        return sum(decision.bytes for decision in self.decisions)

    @property
    def kept(self) -> int:
        """Bytes of the tensors that are kept."""
        return sum(decision.bytes for decision in self.decisions if not decision.times)

    @property
    def recomputed(self) -> int:
        """Bytes of the tensors that are recomputed."""
        return sum(decision.bytes for decision in self.decisions if decision.times)

    @property
    def seconds(self) -> float:
        """Extra compute."""
        return sum(decision.seconds for decision in self.decisions)


@dataclass(frozen=True, slots=True)
class Chosen:
    """The plan of a file.

    Attributes:
        plan: the schedule.
        budget: bytes of activations not to exceed, if there was one.
        blocks: what it does with the tensors of each kind of block, the largest first.
        layers: the same by repeated layers, such as transformer blocks; what lies in no layer is left out.
    """

    plan: Plan
    budget: int | None
    blocks: tuple[Block, ...]
    layers: tuple[Block, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What a report shows; what was not looked into is None.

    Attributes:
        title: the model's name.
        command: the command line that led here.
        environment: names and versions of what it ran on.
        notes: what was chosen for the user and what could not be done, a sentence each.
        contents: what the file holds besides activations.
        before: memory over the step without a plan.
        after: memory over the step of the planned file.
        chosen: the plan.
        analysis: bottlenecks, and what strategies would save.
        pareto: the frontier.
        verification: what both files did when they ran.
        comparison: models held against older ones and against limits.
    """

    title: str
    command: str
    environment: tuple[tuple[str, str], ...]
    notes: tuple[str, ...] = ()
    contents: Contents | None = None
    before: Occupancy | None = None
    after: Occupancy | None = None
    chosen: Chosen | None = None
    analysis: Analysis | None = None
    pareto: Pareto | None = None
    verification: Verification | None = None
    comparison: Comparison | None = None


def chosen(step: Step, plan: Plan, budget: int | None = None) -> Chosen:
    """What a plan does, block by block.

    Args:
        step: what the plan was made for.
        plan: its schedule.
        budget: bytes of activations not to exceed.
    """
    problem, model = step.problem, step.fused
    decisions = _decisions(problem, plan.schedule, model)
    blocks, layers = [], []
    for pattern in patterns(model):  # the layers come first
        members = [name for names in pattern.occurrences for name in names]
        if pattern.level == "layer":
            mine = tuple(decision for name in members for decision in decisions.get(name, ()))
            layers.append(Block(pattern.name, pattern.count, mine))
            continue
        mine = tuple(decision for name in members for decision in decisions.pop(name, ()))
        if mine:
            blocks.append(Block(pattern.name, pattern.count, mine))
    blocks += [Block(mine[0].op_type, len(mine), tuple(mine)) for mine in decisions.values()]
    blocks.sort(key=lambda block: (-block.bytes, -block.seconds))
    return Chosen(plan, budget, tuple(blocks), tuple(layers))


def _decisions(problem: Problem, schedule: Sequence[int], model: ir.Model) -> dict[str, list[Decision]]:
    """The decisions of a schedule by the node that makes the tensor, in forward order."""
    nodes = list(model.graph)
    runs = Counter(schedule)
    ids = {tensor.name: index for index, tensor in enumerate(problem.tensors)}
    held = {
        ids[span.tensor]: buffer.bytes
        for buffer in occupancy(problem, schedule, model).buffers
        for span in buffer.spans
        if span.role is Role.KEPT
    }
    found: dict[str, list[Decision]] = {}
    for index, op in enumerate(problem.ops):
        shapes = {value.name: dimensions_of(value) for value in nodes[index].outputs}
        extra, op_type = runs[index] - 1, nodes[index].op_type
        for position, tensor in enumerate(op.outputs):
            if not extra and tensor not in held:
                continue
            name = problem.tensors[tensor].name
            own = 0 if tensor in op.views else problem.tensors[tensor].bytes
            size, seconds = own if extra else held[tensor], 0.0 if position else extra * op.cost
            made = Decision(name, shapes[name], size, op.name, op_type, extra, seconds)
            found.setdefault(op.name, []).append(made)
    return found


def file_occupancy(path: Path) -> tuple[Occupancy | None, str]:
    """What is in memory when onnxruntime runs a file, as simulated; or None, and why there is nothing.

    Args:
        path: an ONNX file of any origin.
    """
    from ckplan.meter.facts import read_model

    try:
        model = read_model(path)
        found = executed_occupancy(model)
    except Exception as error:  # a file of any origin; what was measured is there without it
        return None, f"the tensors of {path.name} could not be simulated: {one_line(error)}"
    unknown = sum(value.name != "" and dimensions_of(value) is None for node in model.graph for value in node.outputs)
    if unknown:
        return None, f"the tensors of {path.name} are not drawn: the file does not tell the sizes of {unknown:,}"
    return found, ""


def environment(device: str = "cpu") -> tuple[tuple[str, str], ...]:
    """Names and versions of what a command runs on.

    Args:
        device: ``cpu`` or ``cuda``: what ran, or what the figures are for.
    """
    found = [("ckplan", __version__), *((package, version(package)) for package in _PACKAGES)]
    for package in PACKAGES:
        with suppress(ModuleNotFoundError):
            found.append((package, version(package)))
    system = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    return (*found, ("Python", platform.python_version()), ("system", system), ("device", device))
