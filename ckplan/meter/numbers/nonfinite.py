"""Find the node where a NaN or an infinity comes from.

The graph is run again with intermediate values as outputs, in execution order and so many at a time as fit a
limit; each piece is cut down to the nodes that its values need. The first value found bad ends the search. Making a
value an output keeps onnxruntime from fusing it away, so an overflow inside a fused kernel may not show again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ckplan.isolation.arrays import Array, load_arrays
from ckplan.keys import PHASE
from ckplan.meter.facts import read_model
from ckplan.meter.numbers.numerics import is_floating
from ckplan.meter.running.child import Channel
from ckplan.meter.running.process import run_job
from ckplan.meter.running.session import as_array, open_session, step_of
from ckplan.meter.types import NonFinite, Origin
from ckplan.model.files.external import in_one_folder

if TYPE_CHECKING:
    import onnx

LIMIT = 256 * 2**20
"""Bytes of intermediate values that are exposed at a time."""

_UNKNOWN = LIMIT // 16
"""Assumed size of a value whose shape is not known."""


def find_origin(request: Mapping[str, Any], found: Sequence[NonFinite], order: Sequence[str]) -> Origin | None:
    """Find the first value, in execution order, that holds a NaN (or an infinity, if no output holds a NaN).

    Args:
        request: ``path``, ``inputs``, ``device``, ``threads`` of the run that gave bad outputs.
        found: the bad outputs.
        order: names of the executed nodes.

    Returns:
        None if the values are not bad when they are looked at one by one.
    """
    if not found:
        return None
    kind = "nan" if any(output.nan for output in found) else "inf"
    origin = run_job("ckplan.meter.numbers.nonfinite", {**request, "kind": kind, "order": list(order), "limit": LIMIT})
    return None if origin is None else _origin(origin)


def _origin(found: Mapping[str, Any]) -> Origin:
    cause = found.get("cause")
    return Origin(**{**found, "element": tuple(found["element"]), "cause": _origin(cause) if cause else None})


def job(channel: Channel) -> dict[str, Any] | None:
    """In the child: look at inputs and initializers, then at the values of the graph, piece by piece."""
    import onnx_ir as ir

    request = channel.request
    kind: str = request["kind"]
    path = Path(request["path"])
    feed = load_arrays(Path(request["inputs"]))
    for name, array in feed.items():
        if (bad := _bad(array, kind)) is not None:
            return {"kind": kind, "node": "", "op_type": "input", "value": name, **bad}
    read = read_model(path)
    for name, value in read.graph.initializers.items():
        if name in feed or kind != "nan" or value.const_value is None:
            continue
        if (bad := _bad(value.const_value.numpy(), kind)) is not None:
            return {"kind": kind, "node": "", "op_type": "initializer", "value": name, **bad}
    folder = in_one_folder(read)
    model = ir.to_proto(read)
    nodes = _in_execution_order(model.graph, request["order"])
    infinite: dict[str, dict[str, Any]] = {}
    for number, piece in enumerate(_pieces(nodes, _sizes(model.graph), request["limit"])):
        channel.progress(f"the search for the first {kind} (piece {number + 1})")
        names = [name for node in piece for name in node.output if name]
        results = _run_piece(model, names, feed, request, folder)
        for node in piece:
            for name in node.output:
                found = results.get(name)
                if found is not None and (bad := _bad(found, kind)) is not None:
                    return _at(node, name, kind, bad) | _cause(node, infinite)
                if found is not None and kind == "nan" and (bad := _bad(found, "inf")) is not None:
                    # An infinity that is made of others is not where they come from.
                    infinite[name] = _cause(node, infinite).get("cause") or _at(node, name, "inf", bad)
    return None


def _at(node: onnx.NodeProto, value: str, kind: str, bad: Mapping[str, Any]) -> dict[str, Any]:
    backward = any(entry.key == PHASE and entry.value == "backward" for entry in node.metadata_props)
    found = {"kind": kind, "node": node.name, "op_type": node.op_type, "value": value, **bad}
    return found | {"backward": True} if backward else found


def _cause(node: onnx.NodeProto, infinite: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Where the first infinity comes from that a node reads, as an entry of its own; nothing if it reads none."""
    return next(({"cause": infinite[name]} for name in node.input if name in infinite), {})


def _bad(array: Array, kind: str) -> dict[str, Any] | None:
    """How many elements are bad, and the index of the first; None if none is."""
    if not is_floating(array.dtype):
        return None
    mask = np.isnan(array) if kind == "nan" else np.isinf(array)
    count = int(mask.sum())
    if not count:
        return None
    first = np.unravel_index(int(np.argmax(mask)), mask.shape)
    return {"count": count, "element": [int(index) for index in first]}


def _in_execution_order(graph: onnx.GraphProto, executed: Sequence[str]) -> list[onnx.NodeProto]:
    """The nodes as onnxruntime ran them; one that was fused into others stands before the first that reads it."""
    rank = {name: float(position) for position, name in reversed(list(enumerate(executed)))}
    earliest: dict[str, float] = {}
    ranks = [0.0] * len(graph.node)
    for index in range(len(graph.node) - 1, -1, -1):
        node = graph.node[index]
        readers = [earliest[name] for name in node.output if name in earliest]
        ranks[index] = rank.get(node.name, min(readers, default=float(len(executed))))
        for name in node.input:
            earliest[name] = min(earliest.get(name, ranks[index]), ranks[index])
    return [graph.node[index] for index in sorted(range(len(graph.node)), key=lambda index: (ranks[index], index))]


def _sizes(graph: onnx.GraphProto) -> dict[str, int]:
    """Bytes of the values whose shape the file tells."""
    import onnx

    sizes = {}
    for value in (*graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        dims = [dim.dim_value for dim in tensor.shape.dim]
        if tensor.elem_type and tensor.HasField("shape") and all(dim > 0 for dim in dims):
            width = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).itemsize
            sizes[value.name] = int(np.prod(dims, dtype=np.int64)) * width
    return sizes


def _pieces(nodes: Sequence[onnx.NodeProto], sizes: Mapping[str, int], limit: int) -> Iterator[list[onnx.NodeProto]]:
    """Consecutive nodes whose outputs fit the limit; a node that does not fit by itself is a piece."""
    piece: list[onnx.NodeProto] = []
    room = limit
    for node in nodes:
        size = sum(sizes.get(name, _UNKNOWN) for name in node.output if name)
        if piece and size > room:
            yield piece
            piece, room = [], limit
        piece.append(node)
        room -= size
    if piece:
        yield piece


def _run_piece(
    model: onnx.ModelProto, names: Sequence[str], feed: Mapping[str, Array], request: Mapping[str, Any], folder: str
) -> dict[str, Array]:
    """Values of some names, from a copy of the model that computes nothing else."""
    import onnx

    needed, kept = set(names), []
    for node in reversed(model.graph.node):
        if any(name in needed for name in node.output):
            kept.append(node)
            needed.update(node.input)
            needed.update(_captured(node))
    graph = onnx.GraphProto(name=model.graph.name)
    graph.node.extend(reversed(kept))
    graph.input.extend(value for value in model.graph.input if value.name in needed)
    graph.initializer.extend(tensor for tensor in model.graph.initializer if tensor.name in needed)
    graph.sparse_initializer.extend(model.graph.sparse_initializer)
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    piece = onnx.ModelProto(ir_version=model.ir_version, graph=graph)
    piece.opset_import.extend(model.opset_import)
    piece.functions.extend(model.functions)
    session, _ = open_session(
        piece.SerializeToString(),
        request["device"],
        threads=request["threads"],
        weights=folder or None,
    )
    step = step_of(session, {name: array for name, array in feed.items() if name in needed})
    arrays = ((value.name, as_array(result)) for value, result in zip(session.get_outputs(), step(), strict=True))
    return {name: array for name, array in arrays if array is not None}


def _captured(node: onnx.NodeProto) -> set[str]:
    """Every name that a node's nested graphs read; those of the outer graph are among them."""
    names: set[str] = set()
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            names.update(value.name for value in graph.output)
            for inner in graph.node:
                names.update(inner.input)
                names |= _captured(inner)
    return names
