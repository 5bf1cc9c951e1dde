"""What a single node makes of arrays, by onnx's reference implementation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ckplan.model.constants import filled


def evaluated(node: ir.Node, arrays: Sequence[np.ndarray | None], version: int) -> list[np.ndarray] | None:
    """Return the outputs of a node without bodies, None if the reference implementation lacks it or refuses.

    Args:
        node: of ONNX's own domain.
        arrays: its inputs; None for those left out.
        version: of the operator set.
    """
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


def _attribute(attribute: ir.Attr) -> object:
    if attribute.type == ir.AttributeType.TENSOR:
        return ir.to_proto(attribute.as_tensor())
    return attribute.value
