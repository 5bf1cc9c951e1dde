"""Products of a matrix and a vector become products with a matrix of one column.

onnxruntime makes one FusedMatMul of a MatMul and the Transpose of its left operand, with default options. Where the
right operand is a vector, its kernel reads the left one as if it were not transposed, and gives other numbers without a
word (1.31.1, CPU). A training graph is full of Transposes, and onnxruntime moves them: any product may meet one.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ckplan.model.constants import add_constant
from ckplan.model.inference.infer import static_shape
from ckplan.model.nested_graphs import all_nodes
from ckplan.model.rewiring import put_in_place
from ckplan.operators.matching import is_op


def make_columns(model: ir.Model) -> None:
    """Give the vector on the right of a MatMul an axis more, and take it from the result, in place.

    Args:
        model: of known shapes.
    """
    axis: ir.Value | None = None
    for node in list(all_nodes(model.graph)):
        if not is_op(node, "MatMul") or node.graph is None:
            continue
        left, right = (None if value is None else static_shape(value) for value in node.inputs)
        if left is None or right is None or len(right) != 1 or len(left) < 2:
            continue
        axis = axis or _last_axis(model.graph)
        _make_column(node, axis)


def _make_column(node: ir.Node, axis: ir.Value) -> None:
    matrix, vector, result = node.inputs[0], node.inputs[1], node.outputs[0]
    assert node.graph is not None
    assert vector is not None
    column = ir.node("Unsqueeze", [vector, axis], name=f"{node.name}/column")
    product = ir.node("MatMul", [matrix, column.outputs[0]], name=node.name, metadata_props=dict(node.metadata_props))
    squeezed = ir.node("Squeeze", [product.outputs[0], axis], name=f"{node.name}/squeezed")
    for made, shape in (
        (column, [*(static_shape(vector) or ()), 1]),
        (product, [*(static_shape(result) or ()), 1]),
        (squeezed, static_shape(result)),
    ):
        made.outputs[0].type = vector.type
        made.outputs[0].shape = None if shape is None else ir.Shape(shape)
        made.outputs[0].name = f"{result.name}/{made.op_type.lower()}"
    node.graph.insert_before(node, [column, product, squeezed])
    squeezed.outputs[0].metadata_props.update(result.metadata_props)
    put_in_place(node, squeezed.outputs[0])


def _last_axis(graph: ir.Graph) -> ir.Value:
    return add_constant(graph, "last_axis", np.array([-1], dtype=np.int64), "setting")
