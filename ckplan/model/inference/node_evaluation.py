"""What a single node makes of arrays, by onnx's reference implementation, and what it makes of a shape."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ckplan.model.constants import filled
from ckplan.model.traits import is_random


def evaluated(node: ir.Node, arrays: Sequence[np.ndarray | None], version: int) -> list[np.ndarray] | None:
    """Return the outputs of a node without bodies.

    None where each run draws others, or the reference implementation lacks the operator or refuses what it is given.

    Args:
        node: of ONNX's own domain; its inputs are not looked at.
        arrays: its inputs; None for those left out.
        version: of the operator set.
    """
    if is_random(node) or node.op_type == "Dropout":  # of which an input tells whether it draws
        return None
    if node.op_type == "ConstantOfShape" and arrays[0] is not None:
        tensor = filled(node, [int(size) for size in arrays[0]])
        return None if tensor is None else [np.asarray(tensor.numpy())]
    attributes = {name: _attribute(attribute) for name, attribute in node.attributes.items()}
    try:
        from onnx.reference.ops._op_list import load_op

        with np.errstate(all="ignore"):
            result = load_op("", node.op_type, version).eval(*arrays, n_outputs=len(node.outputs), **attributes)
    except Exception:  # not implemented, or this combination is not
        return None
    results = list(result) if isinstance(result, tuple | list) else [result]
    if not all(isinstance(item, np.ndarray | np.generic) for item in results):
        return None
    made = [np.asarray(item) for item in results]
    return made if all(array.dtype.kind in "iufb" for array in made) else None


def made_of_shape(node: ir.Node, shape: Sequence[int]) -> list[np.ndarray]:
    """Return the output of a Shape or a Size.

    Args:
        node: the node; its inputs are not looked at.
        shape: of what it reads.
    """
    if node.op_type == "Size":
        return [np.asarray(math.prod(shape), dtype=np.int64)]
    end = node.attributes.get_int("end", len(shape))
    return [np.asarray(shape[node.attributes.get_int("start", 0) : end], dtype=np.int64)]


def _attribute(attribute: ir.Attr) -> object:
    if attribute.type == ir.AttributeType.TENSOR:
        return ir.to_proto(attribute.as_tensor())
    return attribute.value
