"""Sparse tensors of a file are written out as dense ones, as onnxruntime does when it opens the file.

onnx-ir knows dense tensors only: it leaves out sparse initializers and refuses a Constant with a sparse tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from ckplan.display import shortened
from ckplan.keys import SPARSE

if TYPE_CHECKING:
    import onnx


def read_dense(file: Path) -> ir.Model | None:
    """Read a file with all its sparse tensors written out; tensors in external data files stay on disk.

    Returns:
        The model, whose initializers that were sparse bear `keys.SPARSE`; None if the file has no sparse tensor.
    """
    import onnx

    proto = onnx.load(file, load_external_data=False)
    counts: dict[str, str] = {}
    for graph in _graphs(proto.graph):
        _write_out(graph, file.parent, counts)
    if not counts:
        return None
    model = ir.from_proto(proto)
    ir.external_data.set_base_dir(model.graph, file.parent)
    for one in (model.graph, *model.graph.subgraphs()):
        for name in counts.keys() & one.initializers.keys():
            one.initializers[name].metadata_props[SPARSE] = counts[name]
    return model


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
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs) if attribute.HasField("g") or attribute.graphs else ():
                yield from _graphs(inner)


def _write_out(graph: onnx.GraphProto, folder: Path, counts: dict[str, str]) -> None:
    """Turn sparse initializers and Constant nodes of a graph into initializers; count what they hold, by name."""
    for sparse in graph.sparse_initializer:
        graph.initializer.append(_dense(sparse, sparse.values.name, folder, counts))
    del graph.sparse_initializer[:]
    for index in reversed(range(len(graph.node))):
        node = graph.node[index]
        found = next((one for one in node.attribute if one.name == "sparse_value"), None)
        if node.op_type == "Constant" and found is not None:
            graph.initializer.append(_dense(found.sparse_tensor, node.output[0], folder, counts))
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
