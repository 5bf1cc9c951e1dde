"""Scratch graphs without their weights: what onnxruntime makes of a graph hardly ever depends on large constants.

A large constant is stood in for by a hole in a sparse file: a tensor of its type and shape whose bytes exist nowhere.
Nothing of a weight is read, copied or inlined, so that a scratch graph is small whatever the model is.
"""

from __future__ import annotations

import math
from pathlib import Path

import onnx_ir as ir

from ckplan.model.inference.infer import is_known, static_shape
from ckplan.model.nested_graphs import graphs_in, subgraphs
from ckplan.model.node_reads import fixed_tensor
from ckplan.operators.table import operator_of

KEEP_BYTES = 1 << 20
"""Largest constant that stays as it is."""
_KEEP_MASK = 16 << 20
"""The same for integers and booleans: onnxruntime tells attention by the values of a causal mask."""
KEEP_IN_ALL = 256 << 20
"""Bytes of all constants that stay as they are."""
_FOLDED = 1 << 30
"""onnxruntime folds no node whose result is larger (``core/optimizer/constant_folding.cc``)."""
_FILE = "stand_ins.bin"


def stand_in(model: ir.Model, folder: Path, *, fold: bool = True) -> None:
    """Put stand-ins in the place of the large initializers of a model, in place, and read the small ones.

    What onnxruntime would compute of stand-ins before the first run is replaced by stand-ins of its own, so that it
    need not compute zeros from zeros.

    Args:
        model: a copy that is for onnxruntime to optimise, not to run.
        folder: where the model will be saved; gets the sparse file.
        fold: whether onnxruntime is going to fold constants.
    """
    kept, largest = 0, 0
    absent: set[ir.Value] = set()
    for graph in (model.graph, *subgraphs(model.graph)):
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is None or tensor.dtype == ir.DataType.STRING:
                continue
            limit = KEEP_BYTES if tensor.dtype.is_floating_point() else _KEEP_MASK
            if tensor.nbytes <= limit and kept + tensor.nbytes <= KEEP_IN_ALL:
                kept += tensor.nbytes
                if isinstance(tensor, ir.ExternalTensor):
                    value.const_value = ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=tensor.name)
            else:
                absent.add(value)
                value.const_value = _hole(tensor.dtype, ir.Shape(tensor.shape.numpy()), folder, value.name)
    if fold:
        _fold(model.graph, absent, folder)
    for value in absent:
        if value.const_value is not None:
            largest = max(largest, value.const_value.nbytes)
    if absent:
        with (folder / _FILE).open("wb") as file:
            file.truncate(largest)


def _hole(dtype: ir.DataType, shape: ir.Shape, folder: Path, name: str | None) -> ir.ExternalTensor:
    size = math.ceil(math.prod(shape.numpy()) * dtype.itemsize)
    return ir.ExternalTensor(_FILE, 0, size, dtype, shape=ir.Shape(shape.numpy()), name=name or "", base_dir=folder)


def _fold(graph: ir.Graph, absent: set[ir.Value], folder: Path) -> None:
    """Replace what is computed from constants, one stand-in at least among them, as onnxruntime's folding would."""
    for node in list(graph):
        values = [value for value in node.inputs if value is not None]
        if not any(value in absent for value in values) or not all(fixed_tensor(value) is not None for value in values):
            continue
        if node.domain not in ("", "ai.onnx") or operator_of(node).random or graphs_in(node) or not _is_small(node):
            continue
        if any(output.is_graph_output() for output in node.outputs):
            continue
        for output in node.outputs:
            assert output.shape is not None
            assert output.dtype is not None
            name = output.name
            output.name = None
            fresh = ir.Value(name=name, type=output.type, shape=output.shape)
            fresh.const_value = _hole(output.dtype, output.shape, folder, name)
            graph.register_initializer(fresh)
            output.replace_all_uses_with(fresh)
            absent.add(fresh)
        for index in range(len(node.inputs)):
            node.replace_input_with(index, None)
        graph.remove(node)
    for value in list(absent):
        if value.name and value.name in graph.initializers and not value.uses() and not value.is_graph_output():
            del graph.initializers[value.name]
            absent.discard(value)


def _is_small(node: ir.Node) -> bool:
    if not all(is_known(output) for output in node.outputs):
        return False
    sizes = [
        math.prod(static_shape(output) or ()) * (output.dtype or ir.DataType.FLOAT).itemsize for output in node.outputs
    ]
    return 0 < sum(sizes) <= _FOLDED
