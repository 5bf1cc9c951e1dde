"""Lets onnxruntime hand dead buffers on where that costs no memory, so that sessions open quickly.

At load time onnxruntime goes through all dead buffers for one of the very shape that it needs, the one that died last
first (``core/framework/allocation_planner.cc``, ``FindReusableTensor``). Where every buffer has a name of its own it
finds none, the dead ones pile up, and the time to open a session grows with the square of the graph: a planned file of
1600 nodes took 3.6 times as long as the plain one. So buffers get one name, one after the other, wherever the
first may be held until the next is needed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping
from typing import cast

import numpy as np
import onnx_ir as ir

from ckplan.planner.problem import Problem
from ckplan.planner.simulate import lifetimes, simulate
from ckplan.runtime.sizes import name_of_dimension, shape_classes

_ROOM = 0.97
"""Share of the peak up to which dead buffers are held, so that the peak is where the plan has it."""


def handed_on(executed: ir.Model, problem: Problem) -> dict[str, str]:
    """Which buffers may have the name of another one.

    Args:
        executed: what onnxruntime executes of a file, nodes in execution order.
        problem: its numbers.

    Returns:
        For the names of some buffers, the name of the first in a row that follow each other in one place in memory.
    """
    order = range(len(problem.ops))
    shapes = shape_classes(executed.graph, problem)
    lives = lifetimes(problem, order, shapes)
    live = np.array([moment.activations for moment in simulate(problem, order, shapes).steps], np.int64)
    limit = _ROOM * live.max(initial=0)
    named = [_named(shapes[tensor]) for tensor in lives.tensor]
    owners = Counter(found[0] for found in named if found is not None)
    born: dict[int, list[tuple[int, str, Hashable]]] = defaultdict(list)
    for buffer, found in enumerate(named):
        # Onnxruntime may have taken for two buffers what the plan has as one: then their name is not free.
        if found is not None and owners[found[0]] == 1 and not lives.returned[buffer]:
            born[lives.born[buffer]].append((buffer, *found))
    renamed: dict[str, str] = {}
    dead: dict[Hashable, list[tuple[int, str]]] = defaultdict(list)  # of each kind, what died when, the last at the end
    dying: dict[int, list[tuple[str, Hashable]]] = defaultdict(list)
    for step in order:
        for buffer, name, kind in born[step]:
            # What died last is held for the shortest time: where there is no room for it, there is none for others.
            died, first = dead[kind][-1] if dead[kind] else (step, name)
            between = live[died + 1 : step]
            if first != name and (between + lives.size[buffer] <= limit).all():
                between += lives.size[buffer]
                renamed[name] = first
                dead[kind].pop()
            dying[lives.dies[buffer]].append((renamed.get(name, name), kind))
        for first, kind in dying.pop(step, ()):
            dead[kind].append((step, first))
    return renamed


def _named(shape: Hashable | None) -> tuple[str, Hashable] | None:
    """The name of the buffer in a shape, and the shape without it; None for a shape with no name, or several."""
    if shape is None:
        return None
    size, dims = cast("tuple[float, tuple[int | str, ...]]", shape)
    names = {name_of_dimension(dim) for dim in dims if isinstance(dim, str)}
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
    name = None if dim.value is None else name_of_dimension(dim.value)
    if dim.value is None or name is None or name not in renamed:
        return dim.value
    return f"{dim.value.removesuffix(name)}{renamed[name]}"
