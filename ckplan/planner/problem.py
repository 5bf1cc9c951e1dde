"""The planning problem as numbers: ops, tensors, bytes, seconds, and who reads what.

Nothing here knows ONNX. A `Problem` may come from a training graph, from a published planning
instance, or from a random generator in a test.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import TypeAlias


class Mark(Enum):
    """What happens between two pieces of an op's workspace."""

    OUTPUTS = "outputs"
    """The kernel asks for its outputs, but for late ones."""
    LATE_OUTPUTS = "late outputs"
    """It asks for those that it makes at its end only."""
    INNER_NODE = "inner node"
    """A node of one of its bodies has ended."""


@dataclass(frozen=True, slots=True)
class Freed:
    """Among the pieces of an op's workspace: the kernel frees the one that stands so many places before."""

    back: int


Piece: TypeAlias = int | Freed | Mark
"""Bytes of a tensor that a kernel asks for, one that it frees, or what happens in between."""


class Kind(Enum):
    """What a tensor is to the file that holds it."""

    PARAMETER = "parameter"
    """An initializer; resident all the time."""
    INPUT = "input"
    """Fed by the caller; resident all the time."""
    OUTPUT = "output"
    """Returned to the caller; resident from the step that makes it to the end."""
    ACTIVATION = "activation"
    """Everything else; lives from the step that makes it to its last reader."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value of the training graph.

    Attributes:
        name: unique name.
        bytes: size in bytes.
        kind: what the tensor is to the file.
    """

    name: str
    bytes: int
    kind: Kind = Kind.ACTIVATION


@dataclass(frozen=True, slots=True)
class Op:
    """A node of the training graph.

    Attributes:
        name: unique, stable name; plans refer to ops by it.
        inputs: tensors read, by id, in the order and multiplicity of the node's inputs.
        outputs: tensors made, by id.
        cost: seconds of one execution.
        workspace: bytes that the kernel takes while it runs, beyond its outputs.
        outside: the part of ``workspace`` that does not come from the runtime's allocator.
        pieces: the rest of it tensor by tensor, as the kernel takes them, if that is known; no tensors where it takes
            all at once. Where no mark says when it asks for its outputs, it may be before or after them.
        pieces_again: the same from the second run on, where its bodies ask for something else then.
        backward: whether the op belongs to the backward pass.
        recomputable: whether running it again gives the same result and has no other effect.
        heavy: whether it is one of the few expensive kinds (convolution, matrix product) that
            the `speed` strategy never repeats.
        views: output tensor -> the input tensor whose memory it is (Reshape and its like).
        inplace: output tensor -> the input tensors, in order of preference, whose memory the kernel
            may overwrite when nothing else reads them any more.
        late: outputs that the kernel makes at its end only.
        early: bytes that it takes before those are made, beyond its other outputs. They count where a late output lies
            in a buffer that is there already; ``workspace`` takes all late outputs for new.
    """

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    cost: float = 1.0
    workspace: int = 0
    outside: int = 0
    pieces: tuple[Piece, ...] = ()
    pieces_again: tuple[Piece, ...] = ()
    backward: bool = False
    recomputable: bool = True
    heavy: bool = False
    views: Mapping[int, int] = field(default_factory=dict)
    inplace: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    late: tuple[int, ...] = ()
    early: int = 0

    @property
    def repeatable(self) -> bool:
        """Whether a plan may run it again: an op of the forward pass that is recomputable."""
        return self.recomputable and not self.backward


MOST_BYTES = 1 << 62
"""Of all tensors and all workspace of a problem: planners add them up in 64 bits."""


@dataclass(frozen=True, eq=False)
class Problem:
    """What a planner sees.

    ``ops`` are in a topological order, the natural one of the graph: forward ops, then backward ops,
    each tensor made before it is read. Tensors without a producer are parameters or inputs.
    ``collection`` names the tensors that the model itself marks for keeping (the `list` strategy's default).

    Raises:
        ValueError: a tensor is read before it is made, or made twice; all are larger than a number can tell; or the
            cost of an op is negative or no number, or its workspace or the size of a tensor negative.
    """

    ops: tuple[Op, ...]
    tensors: tuple[Tensor, ...]
    collection: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if negative := next((tensor for tensor in self.tensors if tensor.bytes < 0), None):
            raise ValueError(f"{negative.name!r} cannot take {negative.bytes} bytes")
        made: set[int] = set()
        producers = {tensor for op in self.ops for tensor in op.outputs}
        for op in self.ops:
            if not 0 <= op.cost < math.inf:
                raise ValueError(f"op {op.name!r} cannot cost {op.cost:g}")
            if op.workspace < 0:
                raise ValueError(f"op {op.name!r} cannot work in {op.workspace} bytes")
            for tensor in op.inputs:
                if tensor in producers and tensor not in made:
                    raise ValueError(f"op {op.name!r} reads {self.tensors[tensor].name!r} before it is made")
            for tensor in op.outputs:
                if tensor in made:
                    raise ValueError(f"{self.tensors[tensor].name!r} is made twice")
                made.add(tensor)
        if sum(tensor.bytes for tensor in self.tensors) + sum(op.workspace for op in self.ops) > MOST_BYTES:
            largest = max(self.tensors, key=lambda tensor: tensor.bytes)
            raise ValueError(f"{largest.name!r} and the other tensors are larger than any memory")

    @cached_property
    def producer(self) -> tuple[int, ...]:
        """For each tensor the op that makes it, or -1."""
        producer = [-1] * len(self.tensors)
        for index, op in enumerate(self.ops):
            for tensor in op.outputs:
                producer[tensor] = index
        return tuple(producer)

    @cached_property
    def consumers(self) -> tuple[tuple[int, ...], ...]:
        """For each tensor the ops that read it, each once, in order."""
        consumers: list[list[int]] = [[] for _ in self.tensors]
        for index, op in enumerate(self.ops):
            for tensor in dict.fromkeys(op.inputs):
                consumers[tensor].append(index)
        return tuple(tuple(readers) for readers in consumers)

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """For each op those that it reads from, ascending, each once."""
        producer = self.producer
        makers = ({producer[tensor] for tensor in op.inputs} for op in self.ops)
        return tuple(tuple(sorted(found - {-1})) for found in makers)

    @cached_property
    def view_root(self) -> tuple[int, ...]:
        """For each tensor the tensor whose memory it is; itself unless it is a view.

        A view that is returned to the caller is copied, so it is its own root.
        """
        root = list(range(len(self.tensors)))
        for op in self.ops:
            for view, base in op.views.items():
                if self.tensors[view].kind is not Kind.OUTPUT:
                    root[view] = root[base]
        return tuple(root)

    @cached_property
    def always_held(self) -> frozenset[int]:
        """Tensors that no plan recomputes: without a producer, returned, or made by an op that must not run again."""
        return frozenset(
            tensor
            for tensor, producer in enumerate(self.producer)
            if producer < 0 or not self.ops[producer].recomputable or self.tensors[tensor].kind is Kind.OUTPUT
        )

    @cached_property
    def forward(self) -> tuple[int, ...]:
        """Ids of the forward ops, in order."""
        return tuple(index for index, op in enumerate(self.ops) if not op.backward)

    @cached_property
    def backward(self) -> tuple[int, ...]:
        """Ids of the backward ops, in order."""
        return tuple(index for index, op in enumerate(self.ops) if op.backward)

    @cached_property
    def resident(self) -> int:
        """Bytes of parameters and inputs, which live through the whole step."""
        return sum(t.bytes for t in self.tensors if t.kind in (Kind.PARAMETER, Kind.INPUT))

    @cached_property
    def workspaces(self) -> tuple[int, ...]:
        """For each op the bytes of activations that its kernel takes beyond those of its outputs that are activations.

        What is returned is no activation, but until it is made late, in place of it lies what it is made from.
        """
        return tuple(max(op.workspace, op.early - self.activation_bytes(op.late)) for op in self.ops)

    @cached_property
    def cost(self) -> float:
        """Seconds of one step without recomputation."""
        return sum(op.cost for op in self.ops)

    @cached_property
    def stashed(self) -> tuple[int, ...]:
        """Roots of the activations that the forward pass makes and the backward pass reads."""
        roots: dict[int, None] = {}
        for index in self.backward:
            for tensor in self.ops[index].inputs:
                producer = self.producer[tensor]
                if producer >= 0 and not self.ops[producer].backward:
                    root = self.view_root[tensor]
                    if self.tensors[root].kind is Kind.ACTIVATION:
                        roots.setdefault(root)
        return tuple(roots)

    def activation_bytes(self, tensors: Iterable[int]) -> int:
        """Bytes of those of some tensors that are activations."""
        return sum(self.tensors[tensor].bytes for tensor in tensors if self.tensors[tensor].kind is Kind.ACTIVATION)

    def with_costs(self, costs: Mapping[str, float]) -> Problem:
        """The problem with other costs (seconds, by name) for some ops."""
        if not costs:
            return self
        return replace(self, ops=tuple(replace(op, cost=costs.get(op.name, op.cost)) for op in self.ops))

    def schedule_cost(self, schedule: Sequence[int]) -> float:
        """Seconds of a schedule, repeats included."""
        return sum(map(self._costs.__getitem__, schedule))

    @cached_property
    def _costs(self) -> tuple[float, ...]:
        return tuple(op.cost for op in self.ops)
