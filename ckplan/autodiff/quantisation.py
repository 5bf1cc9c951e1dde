"""Quantised models: what can be trained through quantisation on request, and what is refused.

The derivative of rounding is zero almost everywhere. Quantisation-aware training takes the identity for it instead
(the straight-through estimator, Bengio et al. 2013, arXiv:1308.3432): the pair QuantizeLinear, DequantizeLinear passes
gradients on where the number lay within the range of the quantised type, and none where it was cut off (as
torch.fake_quantize_per_tensor_affine does). Scales and zero points get no gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import ml_dtypes
import numpy as np
import onnx_ir as ir

from ckplan.autodiff.breaks import between, breaks
from ckplan.autodiff.builder import Builder, Gradients, attr_int, dtype_of, input_of, required_input, shape_of
from ckplan.autodiff.paths import Composite, Composites
from ckplan.errors import ModelError
from ckplan.model.contrib import MICROSOFT, QUANTISED

#: Operators of ONNX that turn numbers into those of a quantised type, or calculate with such.
_ARITHMETIC = frozenset(
    {
        "ConvInteger",
        "DequantizeLinear",
        "DynamicQuantizeLinear",
        "MatMulInteger",
        "QLinearConv",
        "QLinearMatMul",
        "QuantizeLinear",
    }
)


def is_quantised(node: ir.Node) -> bool:
    """Say whether a node quantises, or calculates with quantised numbers."""
    return node.op_type in (_ARITHMETIC if not node.domain else QUANTISED if node.domain == MICROSOFT else ())


def refuse_quantised(
    op: Builder, parameters: Sequence[ir.Value], targets: Sequence[ir.Value], composites: Composites
) -> None:
    """Make sure that no quantisation cuts parameters off the loss.

    Args:
        op: builder of the forward graph.
        parameters: what gradients are asked for.
        targets: what is differentiated.
        composites: groups of nodes that are differentiated as one.

    Raises:
        ModelError: nodes that quantise stand between a parameter and the loss.
    """
    weights = [value for value in parameters if not _only_scales(value)]
    cuts = breaks(op.graph, op.opset_imports, weights, targets, composites)
    if not any(is_quantised(node) for node in cuts):
        return
    # Behind the first cut there may be others, which the user would meet next.
    found = [node for node in between(op.graph, weights, targets) if is_quantised(node) and node not in composites]
    found = [node for node in found if node.op_type != "DequantizeLinear"]
    stored = [node for node in op.graph if is_quantised(node) and _reads_stored_weight(op, node)]
    pairs = all(not node.domain and node.op_type in ("QuantizeLinear", "DynamicQuantizeLinear") for node in found)
    named = ", ".join(f"{node.op_type} '{node.name}'" for node in found[:8])
    more = f" and {len(found) - 8} more" if len(found) > 8 else ""
    ways = ["train the model as it was before quantisation"]
    if pairs:
        ways.append("pass gradients straight through pairs of QuantizeLinear and DequantizeLinear (--straight-through)")
    ways.append("freeze what stands before these nodes (--no-grad)")
    hint = ", or ".join(ways)
    if stored:
        hint += (
            f"; {len(stored)} weight(s) are stored as integers, first that of {stored[0].op_type} '{stored[0].name}', "
            "and cannot be trained in any case: that takes float weights which pass such a pair"
        )
    raise ModelError(f"the model is quantised, and {len(found)} node(s) pass no gradient on: {named}{more}", hint)


def _only_scales(value: ir.Value) -> bool:
    """Say whether nothing reads a value but quantisation, as one of its scales."""
    uses = list(value.uses())
    return bool(uses) and all(is_quantised(use.node) and use.idx > 0 for use in uses)


def _reads_stored_weight(op: Builder, node: ir.Node) -> bool:
    """Say whether a node reads an initializer of integers of rank 1 or more that is no zero point."""
    data = {"DequantizeLinear": (0,), "QLinearConv": (3,), "QLinearMatMul": (0, 3)}.get(node.op_type, (0, 1))
    for index in data:
        value = input_of(node, index)
        if value is not None and value.is_initializer() and value.dtype is not None and value.dtype.is_integer():
            return len(shape_of(value)) > 0
    return False


def pass_straight_through(op: Builder, composites: Composites) -> dict[ir.Node, Composite | None]:
    """Return how gradients pass straight through the quantisation of a graph.

    Taken for quantisation: DequantizeLinear behind QuantizeLinear or DynamicQuantizeLinear with the same scale and zero
    point, and Round, which stands in patterns of fake quantisation (their Clip cuts gradients off out of range).

    Args:
        op: builder of the forward graph.
        composites: groups of nodes that are differentiated as one already.
    """
    found: dict[ir.Node, Composite | None] = {}
    for node in op.graph:
        if node.domain or node in composites:
            continue
        if node.op_type == "Round":
            found[node] = Composite((required_input(node, 0),), lambda op, dy: [dy[0]])
        elif node.op_type == "DequantizeLinear":
            quantise = required_input(node, 0).producer()
            if quantise is not None and _is_pair(quantise, node):
                found[quantise] = None
                found[node] = Composite((required_input(quantise, 0),), _Pair(quantise))
    return found


def _is_pair(quantise: ir.Node, dequantise: ir.Node) -> bool:
    if quantise.domain or quantise.outputs[0] is not dequantise.inputs[0]:
        return False
    if quantise.op_type == "DynamicQuantizeLinear":
        return all(input_of(dequantise, i) is quantise.outputs[i] for i in (1, 2))
    return (
        quantise.op_type == "QuantizeLinear"
        and all(_same(input_of(quantise, i), input_of(dequantise, i)) for i in (1, 2))
        and required_input(quantise, 0).dtype == dequantise.outputs[0].dtype
    )


def _same(first: ir.Value | None, second: ir.Value | None) -> bool:
    """Say whether two operands are one value, or equal initializers."""
    if first is second:
        return True
    if first is None or second is None or first.const_value is None or second.const_value is None:
        return False
    one, other = first.const_value, second.const_value
    return one.dtype == other.dtype and one.shape == other.shape and bool(np.array_equal(one.numpy(), other.numpy()))


class _Pair:
    """The gradient of a pair: that of its output where the input was within range."""

    def __init__(self, quantise: ir.Node) -> None:
        self._quantise = quantise

    def __call__(self, op: Builder, dy: Gradients) -> Gradients:
        """Read the input, the scale and the zero point; of a dynamic quantisation nothing, as its range fits."""
        upstream = dy[0]
        if upstream is None or self._quantise.op_type == "DynamicQuantizeLinear":
            return [upstream]
        x = required_input(self._quantise, 0)
        bounds = _range(self._quantise)
        if bounds is None:
            return [upstream]
        lower, upper = (_limit(op, self._quantise, x, bound) for bound in bounds)
        inside = op.And(op.Greater(x, lower), op.Less(x, upper))
        return [op.Mul(upstream, op.Cast(inside, to=x.dtype))]


def _range(quantise: ir.Node) -> tuple[float, float] | None:
    """Return the numbers between which nothing is cut off, in steps of the scale; None for a type without saturation.

    Numbers up to half a step behind the last one of an integer type are rounded to it.
    """
    kind = quantise.outputs[0].dtype
    assert kind is not None
    dtype = kind.numpy()
    if kind.is_floating_point():
        if not attr_int(quantise, "saturate", 1):
            return None
        limit = float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]
        return math.nextafter(-limit, -math.inf), math.nextafter(limit, math.inf)
    info = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
    return float(info.min) - 0.5, float(info.max) + 0.5


def _limit(op: Builder, quantise: ir.Node, x: ir.Value, bound: float) -> ir.Value:
    """Emit (bound - zero point) * scale, broadcast to the shape of x."""
    scale, zero = required_input(quantise, 1), input_of(quantise, 2)
    known, offset = op.constant_of(scale), op.constant_of(zero)
    dtype = dtype_of(x)
    if known is not None and (zero is None or offset is not None):
        steps = bound - (0.0 if offset is None else offset.astype(np.float64))
        return _aligned(op, quantise, x, op.constant((steps * known.astype(np.float64)).astype(dtype)))
    scale = scale if scale.dtype == x.dtype else op.Cast(scale, to=x.dtype)
    if zero is None:
        return _aligned(op, quantise, x, op.Mul(scale, bound))
    return _aligned(op, quantise, x, op.Mul(op.Sub(bound, op.Cast(zero, to=x.dtype)), scale))


def _aligned(op: Builder, quantise: ir.Node, x: ir.Value, limit: ir.Value) -> ir.Value:
    """Give a limit per tensor, axis or block a shape that broadcasts to x."""
    shape, have = shape_of(x), shape_of(limit)
    if math.prod(have) == 1 and not attr_int(quantise, "block_size", 0):
        return op.reshape(limit, ())
    axis = attr_int(quantise, "axis", 1) % len(shape)
    block = attr_int(quantise, "block_size", 0)
    if not block:
        return op.reshape(limit, [size if i == axis else 1 for i, size in enumerate(shape)])
    rows = np.arange(shape[axis], dtype=np.int64) // block
    return op.Gather(limit, rows, axis=axis)
