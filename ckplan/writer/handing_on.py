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
from ckplan.planner.simulate import Lifetimes, lifetimes, simulate
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


def handed_on(problem: Problem, shapes: Sequence[Hashable | None]) -> dict[str, str]:
    """Which buffers may have the name of another one.

    Args:
        problem: the numbers of what onnxruntime executes of a file, in the order in which it does.
        shapes: by what it hands dead buffers on, see `ckplan.runtime.sizes.shape_classes`.

    Returns:
        For the names of some buffers, the name of the first in a row that follow each other in one place in memory.
    """
    order = range(len(problem.ops))
    lives = lifetimes(problem, order, shapes)
    live = np.array([moment.activations for moment in simulate(problem, order, shapes, lives).steps], np.int64)
    limit = _ROOM * live.max(initial=0)
    buffers = _buffers(lives, shapes)
    renamed: dict[str, str] = {}
    waiting = sorted(buffers, key=lambda name: buffers[name].dies)
    dead: dict[Hashable, list[str]] = defaultdict(list)  # of each kind, the one that died last at the end
    done = 0
    for name in sorted(buffers, key=lambda name: buffers[name].born):
        buffer = buffers[name]
        while done < len(waiting) and buffers[waiting[done]].dies < buffer.born:
            dead[buffers[waiting[done]].kind].append(waiting[done])
            done += 1
        for last in reversed(dead[buffer.kind][-_CANDIDATES:]):
            idle = live[buffers[last].dies + 1 : buffer.born]
            if (idle + buffer.size <= limit).all():
                idle += buffer.size
                renamed[name] = renamed.get(last, last)
                dead[buffer.kind].remove(last)
                break
    return renamed


def _buffers(lives: Lifetimes, shapes: Sequence[Hashable | None]) -> dict[str, _Buffer]:
    """The buffers that may be named otherwise, by their names."""
    named = [_named(shapes[tensor]) for tensor in lives.tensor]
    owners = Counter(found[0] for found in named if found is not None)
    return {
        found[0]: _Buffer(lives.size[buffer], lives.born[buffer], lives.dies[buffer], found[1])
        for buffer, found in enumerate(named)
        # Where onnxruntime takes two buffers for what the plan has as one, their name is not free.
        if found is not None and owners[found[0]] == 1 and not lives.returned[buffer]
    }


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
