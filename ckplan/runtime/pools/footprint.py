"""What a process with a file holds from its first steps on: parameters, state, and onnxruntime's arena.

What a loop feeds is counted once, as long as it is fed: parameters, optimizer states, the batch. A file whose updates
may be made in place (`keys.IN_PLACE`) gets its new values in the same memory; any other returns them in memory of its
own, as it returns gradients. Values that lie in the file itself are held by the session too, also where they are fed;
those in a data file are mapped, and only read where they are not fed. onnxruntime packs no weight a second time that is
an input, and those of heavy operators are.

A session that is open holds objects for its nodes and initializers, kernels and names among them, whatever the tensors
are; the first one in a process brings pages of onnxruntime's library and its tables of kernels in besides. They are
counted from what was measured (`benchmarks.session_objects`), as averages: a large node takes more than a small one.

The arena takes regions that are larger than what is ever written to them. What counts is what is written: that is in
the resident set, for which containers and machines have limits. The tables that it keeps of its regions are written to
as a whole. A limit of address space (``ulimit -v``, ``RLIMIT_DATA``) counts whole regions: it has to leave
`spare` more.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import onnx_ir as ir

from ckplan import keys
from ckplan.model.files.metadata import listed_names, told
from ckplan.model.files.weights import lies_outside
from ckplan.planner.arena.allocations import Allocations, steady_arena
from ckplan.planner.problem import Problem
from ckplan.runtime.pools.allocations_of import asked_by
from ckplan.runtime.problem_of import problem_of
from ckplan.runtime.sizes import bytes_of

_NODE, _RUN = 300, 96 * 2**10
"""Bytes that runs keep beside tensors, for each node and in all, as far as was seen: frames, the block's pattern.

Part of what they need lies where the memory is that opening the session has given back.
"""

_LEFT_BY_COPIES = 6
"""A sixth of the bytes of values in a file: what reading them leaves behind in pieces, as far as was seen."""

SESSION_NODE, SESSION_INITIALIZER, SESSION = 5_000, 4_000, 280 * 2**10
"""Bytes of a session for each node and each initializer of its file, and in all; see `benchmarks.session_objects`."""

FIRST_SESSION, LIBRARY = 1_340 * 2**10, 9_520 * 2**10
"""Bytes that the first session of a process brings: heap, and pages of the library that opening and steps read."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a process with a file holds, in bytes, beyond what it takes before it opens any session.

    Attributes:
        parameters: all weights and constants, as fed or as the session holds them; see `held_values`.
        copies: values in the file of what is fed besides.
        state: an optimizer's states.
        inputs: the batch, and whatever else is fed.
        returned: what the caller gets in memory of its own: the loss, gradients, new values that are not made in place.
        activations: their peak, workspaces and gradients that die in their updates included.
        arena: what onnxruntime's arena takes beyond those two, once it has run a few times with default options.
        spare: bytes of its regions to which nothing is ever written: addresses, but no memory.
        held: bytes of its regions, written to or not, outputs included.
        upkeep: what onnxruntime keeps beside tensors: what the arena's regions are cut into, a run's frame.
        session: what an open session holds that is no tensor, with what the first one in a process brings and what
            reading `copies` leaves behind.
    """

    parameters: int
    copies: int
    state: int
    inputs: int
    returned: int
    activations: int
    arena: int
    spare: int = 0
    held: int = 0
    upkeep: int = 0
    session: int = 0

    @property
    def resident(self) -> int:
        """What is there whatever the tensors of a run are."""
        return self.parameters + self.copies + self.state + self.inputs + self.session

    @property
    def touched(self) -> int:
        """What is written to in the arena, outputs included."""
        return self.returned + self.activations + self.arena

    @property
    def running(self) -> int:
        """What runs add to it."""
        return self.touched + self.upkeep

    @property
    def total(self) -> int:
        """Everything that takes memory."""
        return self.resident + self.running

    def to_json(self) -> dict[str, int]:
        """The fields and the total."""
        return {**asdict(self), "total": self.total}


def footprint_of(
    executed: ir.Model, model: ir.Model, *, in_place: bool | None = None, problem: Problem | None = None
) -> Footprint:
    """What a process with a file holds, as simulated.

    Args:
        executed: what onnxruntime executes of the file, nodes in execution order.
        model: the file, which has the values of its parameters.
        in_place: whether new values are written over the old ones; by default as the file says.
        problem: the numbers of what is executed, if they are known.
    """
    given = model.metadata_props.get(keys.IN_PLACE) == "true" if in_place is None else in_place
    problem = problem or problem_of(executed)
    asked = asked_by(executed, model, given, problem)
    peak = _peak(problem, asked)
    returned = sum(asked.size[buffer] for step in asked.steps for buffer in step.outputs)
    steady = steady_arena(asked)
    touched = max(steady.touched + asked.outside, peak + returned)
    initializers = model.graph.initializers.values()
    states = set(listed_names(model.metadata_props, keys.STATES))
    fed = set(listed_names(model.metadata_props, keys.PARAMETERS)) | told(model.metadata_props, keys.UPDATES).keys()
    inputs = [value for value in model.graph.inputs if not value.is_initializer()]
    outside = lies_outside(model)
    copies = sum(bytes_of(value) for value in initializers if value.name in fed and not outside(value))
    return Footprint(
        parameters=sum(map(bytes_of, held_values(executed, model))),
        copies=copies,
        state=sum(bytes_of(value) for value in inputs if value.name in states),
        inputs=sum(bytes_of(value) for value in inputs if value.name not in states),
        returned=returned,
        activations=peak,
        arena=touched - peak - returned,
        spare=steady.held - steady.touched,
        held=steady.held,
        upkeep=steady.tables + _RUN + _NODE * len(executed.graph),
        session=session_bytes(model) + FIRST_SESSION + LIBRARY + copies // _LEFT_BY_COPIES,
    )


def held_values(executed: ir.Model, model: ir.Model) -> list[ir.Value]:
    """Weights and constants that a session holds: those that may be fed, and the others as it made them when it opened.

    It computes what follows from constants alone, and drops those that nothing reads any more: a weight that is also
    read transposed is there twice.

    Args:
        executed: what onnxruntime executes of the file.
        model: the file.
    """
    fed = {name: value for name, value in model.graph.initializers.items() if value.is_graph_input()}
    return list({**fed, **executed.graph.initializers}.values())


def session_bytes(model: ir.Model) -> int:
    """What an open session of a file holds that is no tensor, in bytes."""
    graphs = list(model.graphs())
    nodes, initializers = sum(map(len, graphs)), sum(len(graph.initializers) for graph in graphs)
    return SESSION_NODE * nodes + SESSION_INITIALIZER * initializers + SESSION


def _peak(problem: Problem, asked: Allocations) -> int:
    """Peak of activations, with what kernels take outside the allocator; steps are the ops of the problem in order."""
    live = highest = 0
    for step, op in zip(asked.steps, problem.ops, strict=True):
        live += sum(asked.size[buffer] for buffer in step.tensors)
        highest = max(highest, live + step.workspace + op.outside)
        live -= sum(asked.size[buffer] for buffer in step.freed)
    return highest
