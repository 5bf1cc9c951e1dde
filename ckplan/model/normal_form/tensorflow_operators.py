"""Operators of TensorFlow that tf2onnx leaves in a file, in operators of ONNX.

Where tf2onnx knows no counterpart of an operator, it writes the operator under TensorFlow's name, as if it were ONNX's,
and no runtime loads the file. Such are the complementary error function in the GELU of Keras 3, and `exp(x) - 1`.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ckplan.model.constants import add_constant
from ckplan.model.nested_graphs import all_nodes
from ckplan.model.rewiring import put_in_place
from ckplan.operators.matching import is_op

_FUNCTIONS = {"Erfc": ("Erf", False), "Expm1": ("Exp", True)}
"""By TensorFlow's name: a function of ONNX, and whether one is taken from it, or it from one."""
_CAST_LIKE = 15
"""The opset from which on a number is made one of a type that is not known yet."""


def write_tensorflow_operators(model: ir.Model) -> tuple[str, ...]:
    """Write what tf2onnx left of TensorFlow's in operators of ONNX, in place.

    Returns:
        Notes.
    """
    written = []
    for node in list(all_nodes(model.graph)):
        if not is_op(node, _FUNCTIONS) or node.graph is None or len(node.inputs) != 1 or len(node.outputs) != 1:
            continue
        function, one_last = _FUNCTIONS[node.op_type]
        result = node.outputs[0]
        dtype = result.dtype or (node.inputs[0].dtype if node.inputs[0] is not None else None)
        number = np.ones((), (dtype or ir.DataType.FLOAT).numpy())
        one = add_constant(model.graph, f"{node.name}/one", number, "a literal of the program")
        inner = ir.node(function, node.inputs, name=f"{node.name}/{function}")
        made, nodes = inner.outputs[0], [inner]
        if dtype is None and model.graph.opset_imports.get("", 0) >= _CAST_LIKE:
            nodes.append(ir.node("CastLike", [one, made], name=f"{node.name}/CastLike"))
            one = nodes[-1].outputs[0]
            one.name = f"{result.name}/one"
        outer = ir.node("Sub", [made, one] if one_last else [one, made], name=node.name)
        made.name, made.type = f"{result.name}/{function}", result.type
        outer.outputs[0].type, outer.outputs[0].shape = result.type, result.shape
        node.graph.insert_before(node, [*nodes, outer])
        put_in_place(node, outer.outputs[0])
        written.append(node.op_type)
    if not written:
        return ()
    kinds = ", ".join(sorted(set(written)))
    return (f"{len(written)} node(s) of TensorFlow's, which ONNX does not have, written in operators of ONNX: {kinds}",)
