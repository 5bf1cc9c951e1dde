"""Half precision in gradient graphs: which nodes calculate in float32, between two Casts.

onnxruntime's CPU provider has few kernels for float16. Where one is missing it inserts Casts itself, sums are then made
in float32, and nothing need be done; but it does not see that some kernels refuse float16 only when they run. For
bfloat16 it inserts none, and older versions of ONNX's operators do not allow it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
import onnx_ir as ir

#: Types whose sums need more digits than they have.
NARROW = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})

#: Operators whose CPU kernel in onnxruntime takes no half precision when it reduces (ScatterElements 16 to 18,
#: ScatterND 16 to 18: "MLFloat16 data type is not supported"; a sum in float32 is the better one anyway).
_REDUCING = frozenset({"ScatterElements", "ScatterND"})


def narrow_type(operands: Sequence[ir.Value | None]) -> ir.DataType | None:
    """Return the half-precision type among the operands, if there is one."""
    return next((value.dtype for value in operands if value is not None and value.dtype in NARROW), None)


def in_single(schema: onnx.defs.OpSchema, operands: Sequence[ir.Value | None], attributes: Mapping[str, Any]) -> bool:
    """Say whether a node with operands of half precision has to calculate in float32.

    Args:
        schema: of its operator.
        operands: its inputs.
        attributes: those that are given.
    """
    if schema.name in _REDUCING and attributes.get("reduction", "none") not in (None, "none"):
        return True
    if not schema.inputs:
        return False
    allowed = {constraint.type_param_str: constraint.allowed_type_strs for constraint in schema.type_constraints}
    for index, value in enumerate(operands):
        if value is not None and value.dtype in NARROW:
            parameter = schema.inputs[min(index, len(schema.inputs) - 1)].type_str
            if f"tensor({value.dtype.name.lower()})" not in allowed.get(parameter, [parameter]):
                return True
    return False
