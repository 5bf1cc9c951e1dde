"""The graph that is planned: a training graph as onnxruntime's optimisers leave it, nodes that it fuses being one.

onnxruntime does not run the graph that it is given. At its basic level it rewrites it within the standard operators (a
product and a sum become a Gemm, transposes move); above it fuses neighbours into operators of its own (a transpose, a
product and a scaling become a FusedMatMul, a convolution and the addition behind it a FusedConv). Both are adopted
before anything is planned, so that a plan speaks of what runs. In the file that is written each fused node stands as
the standard nodes that it was made of, right behind each other and with nothing between them: onnxruntime fuses them
again, in the file without a plan and in every planned one alike.

A small tensor that it computes at load time is a constant here: a scaling by it may become part of a product. A larger
one stays a node: whether it is worth its memory is the plan's to say. Layouts that go by the processor are left out;
files are written so that they are not chosen.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import onnx_ir as ir

from ckplan.autodiff.inline import inline_operators
from ckplan.keys import PHASE
from ckplan.model.costs import node_cost, seconds
from ckplan.model.nested_graphs import graphs_in
from ckplan.model.node_reads import made_by_name, reads
from ckplan.model.traits import is_heavy
from ckplan.runtime.cpu import CPU
from ckplan.runtime.executing.executed import Level, optimised
from ckplan.runtime.executing.execution_order import by_rank, predecessors
from ckplan.runtime.executing.learnt_shapes import SINGLE
from ckplan.runtime.executing.unfused import FUSED, PARTS, Part
from ckplan.runtime.kernels.inner import Inner
from ckplan.runtime.problem_of import FIGURES
from ckplan.runtime.runtime import Runtime
from ckplan.runtime.sizes import dimensions_of

_INLINED = "_inlfunc_"
"""How onnxruntime calls the values of a function body that it inlines, with the function's name behind
(``core/graph/function_utils.cc``). Of them it writes no shapes, and what can be told of those is their size in bytes
only."""

_NOT_ADOPTED = (SINGLE, _INLINED)
"""Values that speak against adopting a graph: computed in float32 for want of a kernel here and not elsewhere, or of
shapes that are not known."""

_DEEPEST = 4
"""How deep functions may stand in each other."""

LEFT_OUT = ("NchwcTransformer", "NhwcTransformer")
"""Optimisers of onnxruntime whose work is not adopted."""


def fused_graph(model: ir.Model, runtime: Runtime = CPU) -> ir.Model:
    """The graph to plan: what onnxruntime executes of a graph, in the order of the graph's own nodes.

    Args:
        model: a training graph, or any other graph of static shapes; not changed.
        runtime: where it executes.

    Returns:
        A model with the same inputs, outputs and metadata. Nodes are named after those of the graph that make the same
        values. A fused node bears under `PARTS` in its ``meta`` what it is written as.

    Raises:
        ModelError: onnxruntime does not load the model.
    """
    basic, fused = optimised(model, (Level.BASIC, Level.ALL), LEFT_OUT, runtime)
    for _ in range(_DEEPEST):
        functions = _inlined(basic.graph)
        if not functions:
            break
        model = model.clone()
        inline_operators(model, functions)
        basic, fused = optimised(model, (Level.BASIC, Level.ALL), LEFT_OUT, runtime)
    graph = basic.graph
    if any(str(value.name).startswith(_NOT_ADOPTED) for node in graph for value in node.outputs):
        return model.clone()
    _adopt(graph, fused.graph, runtime)
    _remove_unread(graph)
    _restore(basic, model)
    _name_apart(graph)
    _in_order(graph, model.graph)
    basic.meta[FUSED] = True
    return basic


def _inlined(graph: ir.Graph) -> set[str]:
    """The operators without a kernel, in whose place onnxruntime put the functions that define them."""
    names = (str(value.name) for node in graph for value in node.outputs)
    return {name.removeprefix(_INLINED).split("_")[0] for name in names if name.startswith(_INLINED)}


@dataclass(frozen=True)
class _Slice:
    """The nodes that one fused node replaces, in execution order, each once."""

    nodes: tuple[ir.Node, ...]


def _adopt(graph: ir.Graph, optimised: ir.Graph, runtime: Runtime) -> None:
    """Replace nodes of a graph by the fused node that stands for them in another."""
    values = _values(graph)
    for fused in optimised:
        made = [str(value.name) for value in fused.outputs if value.name]
        read = [None if value is None else str(value.name) for value in fused.inputs]
        if not made or any(name not in values for name in (*made, *(name for name in read if name is not None))):
            continue  # one of several nodes that stand for others: such fusions only move data and are kept out
        before = values[made[0]].producer()
        if before is None or _is_same(before, fused) or graphs_in(fused):
            continue
        found = _slice(values, made, {name for name in read if name is not None})
        if found is None or (len(found.nodes) == 1 and found.nodes[0].op_type == fused.op_type):
            continue
        _replace(graph, values, fused, read, found, runtime)


def _values(graph: ir.Graph) -> dict[str, ir.Value]:
    values = {str(value.name): value for value in (*graph.inputs, *graph.initializers.values())}
    return values | made_by_name(graph)


def _is_same(one: ir.Node, other: ir.Node) -> bool:
    """Whether two nodes have one operator and read the same values."""

    def key(node: ir.Node) -> tuple[object, ...]:
        return node.domain, node.op_type, *(None if value is None else value.name for value in node.inputs)

    return key(one) == key(other)


def _slice(values: Mapping[str, ir.Value], made: Collection[str], read: Collection[str]) -> _Slice | None:
    """The nodes between what a fused node reads and what it makes; None where there is a way past what it reads."""
    nodes: list[ir.Node] = []
    done: set[ir.Node] = set()
    stack: list[tuple[ir.Node, bool]] = []
    for name in made:
        producer = values[name].producer()
        if producer is None:
            return None
        stack.append((producer, False))
    while stack:
        node, finished = stack.pop()
        if finished:
            nodes.append(node)
            continue
        if node in done:
            continue
        if PARTS in node.meta or graphs_in(node):
            return None
        done.add(node)
        stack.append((node, True))
        for value in node.inputs:
            if value is None or value.name in read or (value.is_initializer() and not value.is_graph_input()):
                continue
            producer = value.producer()
            if producer is None:
                return None
            stack.append((producer, False))
    return _Slice(tuple(nodes))


def _replace(
    graph: ir.Graph,
    values: dict[str, ir.Value],
    fused: ir.Node,
    read: list[str | None],
    found: _Slice,
    runtime: Runtime,
) -> None:
    """Put a fused node in the place of others; those that are read elsewhere, too, stay beside it."""
    places = {name: position for position, name in enumerate(read) if name is not None}
    results = {str(value.name): position for position, value in enumerate(fused.outputs) if value.name}
    parts = []
    for node in found.nodes:
        parts.append(
            Part(
                domain=node.domain,
                op_type=node.op_type,
                attributes=tuple(node.attributes.values()),
                inputs=tuple(None if v is None else places.get(str(v.name), str(v.name)) for v in node.inputs),
                outputs=tuple(results.get(str(v.name), str(v.name)) for v in node.outputs),
                types=tuple((v.dtype, dimensions_of(v)) for v in node.outputs),
            )
        )
    inputs = [None if name is None else values[name] for name in read]
    node = ir.Node(
        fused.domain,
        fused.op_type,
        inputs,
        fused.attributes.values(),
        num_outputs=len(fused.outputs),
        name=fused.name,
    )
    if fused.domain:
        node.meta[PARTS] = tuple(parts)
    last = found.nodes[-1]
    graph.insert_after(last, node)
    for value, copy in zip(node.outputs, fused.outputs, strict=True):
        if not copy.name:
            value.name = ""
            continue
        name = str(copy.name)
        old = values[name]
        value.type, value.shape = old.type, old.shape
        ir.convenience.replace_all_uses_with(old, value, replace_graph_outputs=True)
        old.name, value.name = None, name
        values[name] = value
    costs = [node_cost(member) for member in found.nodes if is_heavy(member)]
    costs = costs or [node_cost(member) for member in found.nodes]
    taken = runtime.workspace(node, runtime.threads), runtime.outside(node)
    node.meta[FIGURES] = {runtime: (max(map(seconds, costs)), *taken, (), Inner())}


def _remove_unread(graph: ir.Graph) -> None:
    """Remove nodes that nothing reads any more."""
    for node in reversed(list(graph)):
        if not any(value.uses() or value.is_graph_output() for value in node.outputs):
            graph.remove(node, safe=True)


def _restore(model: ir.Model, original: ir.Model) -> None:
    """Put back what onnxruntime does not keep: values of parameters, metadata, sets of operators, names of nodes."""
    graph, source = model.graph, original.graph
    given = {value.name: value for value in graph.inputs}
    fed = {value.name for value in source.inputs}
    for name, value in source.initializers.items():
        # What is an initializer still is what optimisers made of it: a constant may have been turned in place.
        if name in given:
            given[name].const_value = value.const_value
            graph.register_initializer(given[name])
            if name not in fed:
                graph.inputs.remove(given[name])
    graph.opset_imports.clear()
    graph.opset_imports.update(source.opset_imports)
    model.metadata_props.update(original.metadata_props)
    known = _values(source)
    for name, value in _values(graph).items():
        twin = known.get(name)
        if twin is not None:
            value.metadata_props.update(twin.metadata_props)
    taken: set[str] = set()
    for node in graph:
        before = next((known[str(v.name)].producer() for v in node.outputs if v.name and str(v.name) in known), None)
        if before is not None:
            node.metadata_props.update(before.metadata_props)
            if before.name and before.name not in taken:
                node.name = before.name
        name, number = node.name or node.op_type, 1
        while name in taken:
            number += 1
            name = f"{node.name or node.op_type}_{number}"
        node.name = name
        taken.add(name)


def _name_apart(graph: ir.Graph, around: Collection[str] = ()) -> None:
    """Rename what bodies make where a graph around has that name: onnxruntime's optimisers take one without looking."""
    taken = {*around, *_values(graph)}
    for body in (body for node in graph for body in graphs_in(node)):
        own = set(_values(body))
        for value in (value for node in body for value in node.outputs if value.name in taken):
            value.name = next(name for i in count() if (name := f"{value.name}_{i}") not in taken | own)
            own.add(value.name)
        _name_apart(body, taken)


def _in_order(graph: ir.Graph, source: ir.Graph) -> None:
    """Sort a graph by where the values that it makes are made in another; what that one lacks comes right in time."""
    nodes = list(graph)
    place = _places(nodes, source)
    _name_phases(nodes, place, [node.metadata_props.get(PHASE) for node in source])
    ordered = [nodes[position] for position in by_rank(predecessors(nodes), place)]
    graph.remove(nodes)
    graph.extend(ordered)


def _places(nodes: Sequence[ir.Node], source: ir.Graph) -> list[int]:
    """Where nodes stand among those of a graph, the first of them that makes or reads what they make."""
    made = {str(v.name): position for position, node in enumerate(source) for v in node.outputs if v.name}
    place: dict[ir.Node, int] = {}
    for node in reversed(nodes):
        own = [made[str(v.name)] for v in node.outputs if v.name and str(v.name) in made]
        readers = [place[user] for v in node.outputs for user, _ in v.uses() if user in place]
        # What the backward pass computes as well may be left under that one's name: it belongs before all its readers.
        place[node] = min((*own, *readers), default=len(made))
    return [place[node] for node in nodes]


def _name_phases(nodes: Sequence[ir.Node], place: Sequence[int], phases: Sequence[str | None]) -> None:
    """Note the pass that nodes belong to: that of the node in whose place they are, or the one of what they read.

    Behind the backward pass nothing is forward.

    Args:
        nodes: in a topological order.
        place: where each stands among the nodes of the graph that they were made of.
        phases: of the nodes of that graph.
    """
    backward: set[ir.Node] = set()
    for node, position in zip(nodes, place, strict=True):
        phase = phases[position] if position < len(phases) else None
        if phase is None:
            continue
        if phase == "backward" or any(value.producer() in backward for value in reads(node)):
            backward.add(node)
        node.metadata_props[PHASE] = "backward" if node in backward else phase
