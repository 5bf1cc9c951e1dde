"""How much work evaluating a node would be, computed before it starts: a file may ask for any amount."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ckplan.operators.table import ELEMENTWISE

TRANSIENT_BYTES = 16 << 20
"""An intermediate of folding, dropped again when only smaller results are kept."""
_LINEAR = ELEMENTWISE | {
    *("ArgMax", "ArgMin", "BitCast", "BitShift", "CastLike", "Compress", "Concat", "ConstantOfShape", "CumProd"),
    *("CumSum", "DepthToSpace", "Expand", "EyeLike", "Flatten", "Gather", "GatherElements", "GatherND"),
    *("LogSoftmax", "NonZero", "OneHot", "Pad", "Range", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp"),
    *("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Reshape"),
    *("ScatterElements", "ScatterND", "Shape", "Size", "Slice", "Softmax", "SpaceToDepth", "Split", "Squeeze"),
    *("Tile", "TopK", "Transpose", "Trilu", "Unique", "Unsqueeze"),
}
"""Operators that take time and memory for what they read and give, and for nothing else."""
_MOST_PRODUCTS = 1 << 28
"""Multiplications of a product of matrices that is folded, a second's work at most."""


def is_quick(node: ir.Node, arrays: Sequence[np.ndarray | None]) -> bool:
    """Whether reading the inputs, and what is computed from them, is a matter of a moment; told before it starts."""
    shapes = [array.shape for array in arrays if array is not None]
    if sum(array.nbytes for array in arrays if array is not None) > TRANSIENT_BYTES:
        return False  # a filling takes no memory until it is read
    if node.op_type in ("MatMul", "Gemm"):
        return all(shapes) and bool(math.prod(shapes[0]) * shapes[1][-1] <= _MOST_PRODUCTS)
    if node.op_type == "Einsum":
        terms = node.attributes.get_string("equation", "").partition("->")[0].replace(" ", "").split(",")
        if "." in "".join(terms) or [len(term) for term in terms] != [len(shape) for shape in shapes]:
            return False
        sizes = dict(zip("".join(terms), (size for shape in shapes for size in shape), strict=True))
        return bool(math.prod(sizes.values()) <= _MOST_PRODUCTS)
    return node.op_type in _LINEAR
