"""Records of the executed graph, simulated: what is alive at the peak, and what was expected."""

from __future__ import annotations

from dataclasses import dataclass

from ckplan.planner.arena.allocations import ExpectedArena
from ckplan.planner.timeline import Timeline


@dataclass(frozen=True, slots=True)
class LiveTensor:
    """A buffer that holds memory at the peak of the activations.

    Attributes:
        name: the tensor in it.
        bytes: its size.
        node: name of the node that made the tensor.
        op_type: operator of that node.
        backward: whether that node belongs to the backward pass.
        recomputed: whether that node is a recomputation.
        held: whether nothing reads the tensor any more, and onnxruntime holds the buffer for a later tensor.
    """

    name: str
    bytes: int
    node: str
    op_type: str
    backward: bool
    recomputed: bool
    held: bool


@dataclass(frozen=True, slots=True)
class Inside:
    """What onnxruntime made of the file, simulated: its optimised graph, in the order in which it ran.

    Attributes:
        expected: the simulated timeline, a step for each step that was measured; a node inside of a loop or a branch
            counts as the node that it is in.
        alive: the buffers that hold activations at the measured peak, largest first; outputs of the file left out.
        workspaces: bytes that the kernel of each step takes while it runs, as the simulator has it.
        arena: what onnxruntime's arena, at its defaults, was to make of it over several runs; None if nobody asked.
        threads: those whose workspaces are expected; None if nobody asked.
    """

    expected: Timeline
    alive: tuple[LiveTensor, ...]
    workspaces: tuple[int, ...]
    arena: ExpectedArena | None = None
    threads: int | None = None


@dataclass(frozen=True, slots=True)
class Gap:
    """A step at which a measured and an expected timeline are apart.

    Attributes:
        step: its index.
        bytes: measured activations less expected ones.
    """

    step: int
    bytes: int
