"""Parameters that torch's exporter repeated for each sample of an example are one again.

Of a file whose batch is fixed, the optimiser of torch's default exporter computes beforehand what a module expands: the
class token of a vision transformer, the positions of an encoder, the states with which a recurrent layer begins, once
for each sample. Trained as they are, samples would come to differ.
"""

from __future__ import annotations

import re

import numpy as np
import onnx_ir as ir

from ckplan import keys
from ckplan.display import shortened
from ckplan.model.constants import add_constant
from ckplan.model.torch_files.default_exporter import folded_from, is_state, is_unstructured
from ckplan.model.torch_files.functions import add_parameter

_EXPANDED = re.compile(r"(expand|repeat)(_\d+)?")


def join_repeated(model: ir.Model) -> tuple[str, ...]:
    """Hold one row of what stands for a parameter that was expanded along the batch, in place, and expand it.

    That is the first axis, and the second one of what is laid out by steps, ``[1, batch, features]``.

    Returns:
        Notes.
    """
    graph = model.graph
    joined = []
    for value in list(graph.initializers.values()):
        expanded = any(map(_EXPANDED.fullmatch, (str(value.name), *folded_from(value))))
        if expanded and value.metadata_props.get(keys.STANDS_FOR) and not value.is_graph_output():
            array = value.const_value.numpy() if value.const_value is not None else np.zeros(())
            axis = _batch_axis(value, array)
            if array.ndim > 1 and array.shape[axis] > 1 and (array == array.take([0], axis)).all():
                joined.append(repr(_expand(graph, value, array, axis)))
    if not joined:
        return ()
    return (f"{len(joined)} weight(s) that torch's exporter repeated for each sample are one: {shortened(joined, 3)}",)


def _batch_axis(value: ir.Value, array: np.ndarray) -> int:
    """The axis of samples: the second one of states of recurrent layers, and of one row, as a further key is."""
    one_row = array.ndim == 3 and len(array) == 1 and is_unstructured(value)
    return int(is_state(value) or one_row)


def _expand(graph: ir.Graph, value: ir.Value, array: np.ndarray, axis: int) -> str:
    """Put one row of an axis and an Expand in the place of an initializer; return the name of the row."""
    row = add_parameter(graph, value, "row", array.take([0], axis))
    put_expand(graph, value, row)
    return str(row.name)


def put_expand(graph: ir.Graph, value: ir.Value, row: ir.Value) -> None:
    """Put an Expand of a row in the place of an initializer that holds it again and again, before all other nodes."""
    name = str(value.name)
    assert value.const_value is not None  # of an initializer
    sizes = np.array(value.const_value.shape.numpy(), np.int64)
    del graph.initializers[name]
    shape = add_constant(graph, f"{name}_shape", sizes, "a shape")
    result = ir.Value(name=name, shape=value.shape, type=value.type)
    graph.insert_before(graph[0], ir.Node("", "Expand", [row, shape], outputs=[result], name=name))
    value.replace_all_uses_with(result)
