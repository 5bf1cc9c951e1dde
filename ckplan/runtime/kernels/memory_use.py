"""What onnxruntime's kernels do with memory, as far as a planner must know it.

Views and in-place kernels were found by running each kernel alone and reading its allocation from the profile
(onnxruntime 1.31, CPU); ``tests/runtime/test_kernels.py`` does so again. The binary elementwise kernels (Add, Mul, …)
do not overwrite their inputs.
"""

from __future__ import annotations

import onnx_ir as ir

from ckplan.operators.matching import is_op
from ckplan.operators.table import operator_of


def view_source(node: ir.Node) -> ir.Value | None:
    """The input whose memory the node's first output is, if the node is a view."""
    return node.inputs[0] if node.inputs and operator_of(node).view else None


def overwritable(node: ir.Node) -> ir.Value | None:
    """The input that the node's kernel may overwrite with its first output."""
    if node.domain.startswith("com.microsoft") and node.op_type in ("Conv", "FusedConv") and len(node.inputs) > 3:
        return node.inputs[3]  # an addition that an optimiser made part of the convolution
    if not node.inputs or not operator_of(node).in_place or _is_softmax_of_doubles(node):
        return None
    return node.inputs[0]


def _is_softmax_of_doubles(node: ir.Node) -> bool:
    """Whether a node is a softmax in float64, whose kernels are registered without leave to work in place."""
    value = node.inputs[0]
    return is_op(node, ("Softmax", "LogSoftmax")) and value is not None and value.dtype == ir.DataType.DOUBLE


def overwritable_on_cuda(node: ir.Node) -> ir.Value | None:
    """The same of its kernel on CUDA, where fewer work in place: Softmax, Cast and ScatterElements do not."""
    return node.inputs[0] if node.inputs and operator_of(node).in_place_on_cuda else None
