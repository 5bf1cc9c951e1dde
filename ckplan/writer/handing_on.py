"""Lets onnxruntime hand dead buffers on where that costs no memory, so that sessions open quickly.

At load time onnxruntime goes through all dead buffers for one of the very shape that it needs, the one that died last
first (``core/framework/allocation_planner.cc``, ``FindReusableTensor``). Where every buffer has a name of its own it
finds none, the dead ones pile up, and the time to open a session grows with the square of the graph: a planned file of
1600 nodes took 3.6 times as long as the plain one. So buffers get one name, one after the other, wherever the
first may be held until the next is needed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import onnx_ir as ir

from ckplan.planner.problem import Problem
from ckplan.planner.simulate import lifetimes, simulate
from ckplan.runtime.sizes import named_dimension, parts_of_dimension

_ROOM = 0.99
"""Share of the peak up to which dead buffers are held, so that the peak is where the plan has it."""

_CANDIDATES = 16
"""Dead buffers that are tried for each new one, those that died last."""


@dataclass(frozen=True, slots=True)
class _Buffer:
    """What lives from one step to another; `kind` is its shape without its name."""

    size: int
    born: int
    dies: int
    kind: Hashable


class _Order:
    """An order of execution: when each buffer is born and dies, by its name, and what is alive at each step."""

    def __init__(self, problem: Problem, shapes: Sequence[Hashable | None], schedule: Sequence[int]) -> None:
        lives = lifetimes(problem, schedule, shapes)
        self.live = np.array(
            [moment.activations for moment in simulate(problem, schedule, shapes, lives).steps], np.int64
        )
        self.limit = _ROOM * self.live.max(initial=0)
        named = [_named(shapes[tensor]) for tensor in lives.tensor]
        owners = Counter(found[0] for found in named if found is not None)
        self.buffers: dict[str, _Buffer] = {}
        for buffer, found in enumerate(named):
            # Where onnxruntime takes two buffers for what the plan has as one, their name is not free.
            if found is not None and owners[found[0]] == 1 and not lives.returned[buffer]:
                self.buffers[found[0]] = _Buffer(lives.size[buffer], lives.born[buffer], lives.dies[buffer], found[1])

    def idle(self, last: str, following: str) -> np.ndarray | None:
        """What is alive at the steps between two buffers; None where the second does not begin after the first."""
        dies, born = self.buffers[last].dies, self.buffers[following].born
        return self.live[dies + 1 : born] if dies < born else None


def handed_on(problem: Problem, shapes: Sequence[Hashable | None], orders: Sequence[Sequence[int]]) -> dict[str, str]:
    """Which buffers may have the name of another one.

    Args:
        problem: the numbers of what onnxruntime executes of a file.
        shapes: by what it hands dead buffers on, see `ckplan.runtime.sizes.shape_classes`.
        orders: the orders in which it may run the ops, by default first.

    Returns:
        For the names of some buffers, the name of the first in a row that follow each other in one place in memory.
    """
    known = [_Order(problem, shapes, order) for order in orders]
    shared = set.intersection(*(set(order.buffers) for order in known))
    first = {name: buffer for name, buffer in known[0].buffers.items() if name in shared}
    renamed: dict[str, str] = {}
    waiting = sorted(first, key=lambda name: first[name].dies)
    dead: dict[Hashable, list[str]] = defaultdict(list)  # of each kind, the one that died last at the end
    done = 0
    for name in sorted(first, key=lambda name: first[name].born):
        while done < len(waiting) and first[waiting[done]].dies < first[name].born:
            dead[first[waiting[done]].kind].append(waiting[done])
            done += 1
        buffer = first[name]
        for last in reversed(dead[buffer.kind][-_CANDIDATES:]):
            idle = [live for order in known if (live := order.idle(last, name)) is not None]
            if len(idle) == len(known) and all(
                (live + buffer.size <= order.limit).all() for live, order in zip(idle, known, strict=True)
            ):
                for live in idle:
                    live += buffer.size
                renamed[name] = renamed.get(last, last)
                dead[buffer.kind].remove(last)
                break
    return renamed


def _named(shape: Hashable | None) -> tuple[str, Hashable] | None:
    """The name of the buffer in a shape, and the shape without it; None for a shape with no name, or several."""
    if shape is None:
        return None
    size, dims = cast("tuple[float, tuple[int | str, ...]]", shape)
    parts = [parts_of_dimension(dim) for dim in dims if isinstance(dim, str)]
    names = {part and part[1] for part in parts}
    name = names.pop() if len(names) == 1 else None
    if name is None:
        return None
    return name, (size, tuple(dim if isinstance(dim, int) else dim.removesuffix(name) for dim in dims))


def rename_buffers(graph: ir.Graph, renamed: Mapping[str, str]) -> None:
    """Rename buffers in the shapes of all values that nodes of a graph make."""
    for node in graph:
        for value in node.outputs:
            if value.shape is None:
                continue
            dims = [dim if isinstance(dim, int) else _renamed(dim, renamed) for dim in value.shape]
            value.shape = ir.Shape(dims)


def _renamed(dim: ir.SymbolicDim, renamed: Mapping[str, str]) -> str | None:
    parts = None if dim.value is None else parts_of_dimension(dim.value)
    if parts is None or parts[1] not in renamed:
        return dim.value
    return named_dimension(parts[0], renamed[parts[1]])
