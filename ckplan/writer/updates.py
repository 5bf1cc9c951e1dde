"""Lets new values be written over the old ones: nothing reads a parameter or a state after its update.

A loop may bind one piece of memory as the input ``w`` and as the output ``w_new``. onnxruntime then writes the new
value over the old one, without a copy, whenever the node that makes it runs. A product that passes a gradient on needs
the weight, and nothing in a training graph says that it runs before the update; nor does it of a node that runs again.
So the node that writes waits for every node that reads, by control edges where the data do not say so already: it is
the last then in any order that onnxruntime may choose. What is judged is the graph that it executes, where a product
reads the weight itself and not the Transpose of the file. The kernel that writes must go element by element if it reads
the old value itself: an addition, a subtraction, a cast; or row by row, as a Scan whose body does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ckplan import keys
from ckplan.keys import PHASE
from ckplan.model.files.metadata import told
from ckplan.model.node_reads import captured, reads
from ckplan.operators.matching import is_op
from ckplan.runtime.cpu import CPU
from ckplan.runtime.executing.executed import executed_model
from ckplan.runtime.runtime import Runtime
from ckplan.writer.control_edges import ControlEdges, assemble, is_control
from ckplan.writer.ordering import gate, place_control_nodes, signal_of

_ELEMENTWISE = frozenset({"Add", "Cast", "Div", "Mul", "Sub"})
"""Operators whose kernels read an element of each input and write that of the output, and none before or after it."""

_PREFIX = "ckplan/update"
"""What the names of the edges of a graph without a plan begin with."""


@dataclass(frozen=True, slots=True)
class LateRead:
    """A read of an old value that is not sure to come before its new value is written.

    Attributes:
        old: the input that holds the value.
        new: the output that takes its place.
        reader: the node that reads, in the graph that onnxruntime executes; where it is the one that writes, its kernel
            does not go element by element.
    """

    old: str
    new: str
    reader: ir.Node


def updates_of(model: ir.Model) -> dict[str, str]:
    """Name of the output with the new value by name of the input, of a graph with an optimizer; else nothing."""
    if keys.OPTIMIZER not in model.metadata_props:
        return {}
    return {old: str(new) for old, new in told(model.metadata_props, keys.UPDATES).items()}


def late_reads(executed: ir.Model, updates: Mapping[str, str], runtime: Runtime = CPU) -> list[LateRead]:
    """What may read an old value after its new value is written, in any order of the nodes that their data allow.

    Args:
        executed: the graph that onnxruntime executes, its nodes in topological order.
        updates: name of the output with the new value by name of the input.
        runtime: where the file is to run.
    """
    return _late_reads(executed.graph, updates, runtime)


def _late_reads(graph: ir.Graph, updates: Mapping[str, str], runtime: Runtime) -> list[LateRead]:
    outputs = {str(value.name): value.producer() for value in graph.outputs}
    fed = {str(value.name): value for value in graph.inputs}
    held = {fed[old]: old for old in updates if old in fed}
    readers: dict[str, list[ir.Node]] = {old: [] for old in held.values()}
    writers = {writer: old for old, new in updates.items() if (writer := outputs.get(new)) is not None}
    known: dict[ir.Node, int] = {}  # for each node the readers that run before it, as bits
    bit: dict[ir.Node, int] = {}
    before: dict[ir.Node, int] = {}
    for node in graph:
        earlier = 0
        for value in reads(node):
            producer = value.producer()
            earlier |= known.get(producer, 0) if producer is not None else 0
            if value in held:
                if runtime.view(node) is value and not any(output.is_graph_output() for output in node.outputs):
                    held[node.outputs[0]] = held[value]
                    continue
                bit.setdefault(node, 1 << len(bit))
                readers[held[value]].append(node)
        if node in writers:
            before[node] = earlier
        known[node] = earlier | bit.get(node, 0)
    found = []
    for writer, old in writers.items():
        for reader in dict.fromkeys(readers.get(old, ())):
            if reader is not writer:
                fits = bool(before[writer] & bit[reader])
            else:
                fits = writer.op_type in _ELEMENTWISE or _goes_by_rows(writer, fed[old], updates[old], runtime)
            if not fits:
                found.append(LateRead(old, updates[old], reader))
    return found


def _goes_by_rows(node: ir.Node, old: ir.Value, new: str, runtime: Runtime) -> bool:
    """Whether a node is a Scan that reads a row of the old value and writes that of the new one, and so on."""
    body = node.attributes["body"].as_graph() if is_op(node, "Scan") else None
    turned = node.attributes.keys() - {"body", "num_scan_inputs"}
    if body is None or turned or old in captured(node) or node.inputs.count(old) != 1:
        return False
    states = len(node.inputs) - node.attributes["num_scan_inputs"].as_int()
    place, made = node.inputs.index(old), next(i for i, value in enumerate(node.outputs) if value.name == new)
    if min(place, made) < states:
        return False
    rows = {str(body.inputs[place].name): str(body.outputs[made].name)}
    return not _late_reads(body, rows, runtime)


def write_last(nodes: Sequence[ir.Node], updates: Mapping[str, str], runtime: Runtime = CPU) -> list[ir.Node]:
    """A sequence with each node that writes a new value behind all nodes that read the old one.

    Args:
        nodes: in topological order, with repeats.
        updates: name of the output with the new value by name of the input.
        runtime: where the file is to run.
    """
    olds = {new: old for old, new in updates.items()}
    writers = {node: olds[str(v.name)] for node in nodes for v in node.outputs if v.name in olds}
    held: dict[ir.Value, str] = {}
    last: dict[str, int] = {}
    for place, node in enumerate(nodes):
        for value in reads(node):
            old = str(value.name) if value.producer() is None else held.get(value, "")
            if old in updates:
                last[old] = place
                if runtime.view(node) is value:
                    held[node.outputs[0]] = old
    moved: dict[int, list[ir.Node]] = {}
    left: set[ir.Node] = set()
    for place, node in enumerate(nodes):
        latest = last.get(writers.get(node, ""), -1)
        if latest > place and not any(value.uses() for value in node.outputs):
            moved.setdefault(latest, []).append(node)
            left.add(node)
    ordered: list[ir.Node] = []
    for place, node in enumerate(nodes):
        if node not in left:
            ordered.append(node)
        ordered += moved.get(place, [])
    return ordered


def wait_for_readers(
    nodes: Sequence[ir.Node], executed: ir.Model, updates: Mapping[str, str], edges: ControlEdges
) -> int:
    """Let the nodes that write new values wait for what may read the old ones later.

    Args:
        nodes: the sequence of the file, see `write_last`.
        executed: what onnxruntime executes of it.
        updates: name of the output with the new value by name of the input.
        edges: maker of the control edges.

    Returns:
        How many edges were made; 0 if none is needed, or none can be made.
    """
    late = late_reads(executed, updates, edges.runtime)
    if not late:
        return 0
    makers = {str(value.name): node for node in nodes for value in node.outputs if value.name}
    place = {node: index for index, node in enumerate(nodes)}
    count = 0
    for read in late:
        writer = makers.get(read.new)
        reader = _in_file(read.reader, makers)
        if writer is None or reader is None or reader is writer or place[reader] > place[writer]:
            continue
        signal = signal_of(reader)
        count += signal is not None and gate(writer, signal, edges)
    return count


def with_ordered_updates(model: ir.Model) -> ir.Model:
    """A graph without a plan whose updates may be made in place, as its metadata say; see `keys.IN_PLACE`.

    Args:
        model: a graph with an optimizer, which is copied and gets control edges where they are needed; any other is
            returned as it is.

    Raises:
        ModelError: onnxruntime does not load the model.
    """
    updates = updates_of(model)
    if not updates:
        return model
    model = model.clone()
    edges = ControlEdges(model.graph, _PREFIX, named=False)
    nodes = write_last(list(model.graph), updates)
    while True:
        nodes = place_control_nodes(nodes)
        for node in nodes:
            if is_control(node):
                node.metadata_props.setdefault(PHASE, "backward")
        assemble(model, nodes, edges)
        executed = executed_model(model)
        if not wait_for_readers(nodes, executed, updates, edges):
            break
    tell_in_place(model, executed)
    return model


def tell_in_place(model: ir.Model, executed: ir.Model) -> None:
    """Write into a model's metadata whether its updates may be made in place, from what onnxruntime executes of it."""
    updates = updates_of(model)
    model.metadata_props.pop(keys.IN_PLACE, None)
    if updates and not late_reads(executed, updates):
        model.metadata_props[keys.IN_PLACE] = "true"


def _in_file(node: ir.Node, makers: Mapping[str, ir.Node]) -> ir.Node | None:
    """The node of the file that makes what an executed node makes; of one that an optimiser put in, one that waits."""
    waiting, seen = [node], {node}
    for current in waiting:
        for value in current.outputs:
            if str(value.name) in makers:
                return makers[str(value.name)]
            for user, _ in value.uses():
                if user not in seen:
                    seen.add(user)
                    waiting.append(user)
    return None
