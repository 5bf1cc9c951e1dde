"""Sparse tensors of a file are written out as dense ones, as onnxruntime does when it opens the file.

onnx-ir knows dense tensors only: it leaves out sparse initializers and refuses a Constant with a sparse tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from ckplan.display import shortened
from ckplan.keys import SPARSE

if TYPE_CHECKING:
    import onnx


def write_dense(proto: onnx.ModelProto, folder: Path) -> dict[str, str]:
    """Write out all sparse tensors of a model, in place: those of its graphs become initializers.

    Args:
        proto: the model.
        folder: where its external data lie.

    Returns:
        How many of its elements each held that is an initializer now, in words, by name.
    """
    counts: dict[str, str] = {}
    for graph in _graphs(proto.graph):
        _write_out(graph, folder, counts)
    for function in proto.functions:
        for node in function.node:
            if (tensor := _sparse_value(node)) is not None:  # a function has no initializers
                node.CopyFrom(_constant(node, _dense(tensor, "", folder, {})))
            for graph in _nested(node):
                for one in _graphs(graph):
                    _write_out(one, folder, {})
    return counts


def has_sparse(proto: onnx.ModelProto) -> bool:
    """Whether a model holds a sparse tensor."""
    bodies = [node for function in proto.functions for node in function.node]
    graphs = [*_graphs(proto.graph), *(one for node in bodies for graph in _nested(node) for one in _graphs(graph))]
    nodes = (*bodies, *(node for graph in graphs for node in graph.node))
    return any(graph.sparse_initializer for graph in graphs) or any(_sparse_value(node) is not None for node in nodes)


def mark_dense(model: ir.Model, counts: Mapping[str, str]) -> None:
    """Let the initializers that were sparse bear `keys.SPARSE`; see `write_dense`."""
    for one in (model.graph, *model.graph.subgraphs()):
        for name in counts.keys() & one.initializers.keys():
            one.initializers[name].metadata_props[SPARSE] = counts[name]


def sparse_notes(model: ir.Model) -> tuple[str, ...]:
    """Say which tensors were sparse in the file."""
    values = model.graph.initializers.values()
    found = [f"'{value.name}', {value.metadata_props[SPARSE]}" for value in values if SPARSE in value.metadata_props]
    if not found:
        return ()
    return (
        f"{len(found)} sparse tensor(s) are dense from now on ({shortened(found, 3)}): zeros are trained like the rest",
    )


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for inner in _nested(node):
            yield from _graphs(inner)


def _nested(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _sparse_value(node: onnx.NodeProto) -> onnx.SparseTensorProto | None:
    """The sparse tensor of a Constant node."""
    if node.op_type != "Constant":
        return None
    return next((one.sparse_tensor for one in node.attribute if one.name == "sparse_value"), None)


def _constant(node: onnx.NodeProto, tensor: onnx.TensorProto) -> onnx.NodeProto:
    import onnx

    return onnx.helper.make_node("Constant", [], list(node.output), node.name, value=tensor)


def _write_out(graph: onnx.GraphProto, folder: Path, counts: dict[str, str]) -> None:
    """Turn sparse initializers and Constant nodes of a graph into initializers; count what they hold, by name."""
    for sparse in graph.sparse_initializer:
        graph.initializer.append(_dense(sparse, sparse.values.name, folder, counts))
    del graph.sparse_initializer[:]
    for index in reversed(range(len(graph.node))):
        node = graph.node[index]
        if (tensor := _sparse_value(node)) is not None:
            graph.initializer.append(_dense(tensor, node.output[0], folder, counts))
            del graph.node[index]


def _dense(sparse: onnx.SparseTensorProto, name: str, folder: Path, counts: dict[str, str]) -> onnx.TensorProto:
    """Write out a tensor whose indices are places in all elements [n], or one of each axis [n, rank]."""
    import onnx

    values, indices = (onnx.numpy_helper.to_array(one, str(folder)) for one in (sparse.values, sparse.indices))
    array = np.zeros(tuple(sparse.dims), values.dtype)
    array[np.unravel_index(indices, array.shape) if indices.ndim == 1 else tuple(indices.T)] = values
    counts[name] = f"{values.size:,} of {array.size:,} elements"
    tensor = onnx.numpy_helper.from_array(array, name)
    assert tensor.data_type == sparse.values.data_type
    return tensor
