"""Reductions, softmaxes and products over what a mask chooses leave out the rest, though all of it was computed."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from ckplan.model.inference.infer import static_shape
from ckplan.model.masks.fillings import take_fillings_out
from ckplan.model.masks.mask_rewriting import Rewriting
from ckplan.model.node_reads import fixed_integers, fixed_tensor
from ckplan.model.rewiring import put_behind
from ckplan.model.sample_axis import Along, along_samples
from ckplan.model.traits import LOSS_OPERATORS

_LABEL = -100
"""The label that a loss ignores if it ignores none yet."""
_NEUTRAL = {
    **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceMean", "ReduceSum", "ReduceSumSquare"), 0.0),
    **dict.fromkeys(("ReduceLogSumExp", "ReduceMax"), -np.inf),
    "ReduceMin": np.inf,
    "ReduceProd": 1.0,
}
"""Reductions, and what adds nothing to them."""
_MATRIX = 2
"""Axes of a matrix."""
_ACROSS = ("CumSum", "LogSoftmax", "Softmax")
"""Operators that tell something of each element of an axis by all of them."""


def work_on_all(rewriting: Rewriting) -> bool:
    """Leave out what is not chosen where chosen elements come together; whether everything else works on each alone."""
    axes: dict[ir.Value, tuple[ir.Value, int]] = {value: (root, 0) for value, root in rewriting.chosen.items()}
    alone: dict[ir.Node, list[ir.Value]] = {}
    for node in list(rewriting.graph):
        if node in rewriting.scattered:
            assert node.inputs[0] is not None
            if axes.get(node.inputs[0]) != (rewriting.scattered[node], 0) and not _is_uniform(node.inputs[0]):
                return False
            continue
        tagged = [None if value is None else axes.get(value) for value in node.inputs]
        roots = {one[0] for one in tagged if one is not None}
        if not roots or node.outputs[0] in rewriting.chosen:
            if node in rewriting.sized:
                return False
            continue
        (root, *more) = roots
        places = [None if one is None else one[1] for one in tagged]
        if more:
            return False
        along = _alone(node, places) or along_samples(node, places, math.prod(static_shape(root) or ()))
        if along is not None and all(_is_uniform(node.inputs[index]) for index in along.cut):
            if not _is_sized_by_count(rewriting, node, along.axis, root):
                return False
            axes.update((output, (root, along.axis)) for output in node.outputs if output.name)
            alone[node] = [value for value, tag in zip(node.inputs, tagged, strict=True) if value is not None and tag]
            if node.op_type == "Div" and tagged[1] is None:
                _divide_by_no_zero(rewriting, node, root)
        elif (across := _leave_out_across(rewriting, node, root, places)) is not None:
            axes[across] = (root, places[0] or 0)
        elif not _leave_out(rewriting, node, root, places):
            return False
    if any(node.graph is not rewriting.graph for node in rewriting.sized) or not all(map(_is_inside, axes)):
        return False
    take_fillings_out(rewriting, alone)
    return True


def _is_sized_by_count(rewriting: Rewriting, node: ir.Node, axis: int, root: ir.Value) -> bool:
    """Whether a result has its size along the axis of what is chosen from that, and others not by chance or by it."""
    shapes = [static_shape(value) for value in node.inputs if value is not None]
    result = static_shape(node.outputs[0]) or ()
    named = fixed_integers(node, 3 if node.op_type == "Slice" else 1)
    if node in rewriting.sized and node.op_type == "Slice":
        return [one % len(result) for one in named or ()] == [axis]
    if node in rewriting.sized:
        size = math.prod(static_shape(root) or ())
        return result in shapes or all(other == axis or one % size for other, one in enumerate(result))
    if node.op_type == "Reshape":
        return named is not None and named[axis] in (-1, 0)
    if node.op_type == "Expand":
        place = axis - len(result)
        return named is not None and (-place > len(named) or named[place] == 1)
    return True


def _is_inside(value: ir.Value) -> bool:
    """Whether a value is read by nodes of its own graph only, and shown to nobody."""
    node = value.producer()
    if node is None or node.graph is None:  # it was folded, and is read no more
        return True
    inside = all(user.graph is node.graph for user in value.consumers())
    return inside and static_shape(value) is not None and not value.is_graph_output()


def _alone(node: ir.Node, places: list[int | None]) -> Along | None:
    """What a Slice does that cuts nothing off, as the old exporter cuts updates, and a loss of each element."""
    if node.domain or places[0] is None:
        return None
    if node.op_type in LOSS_OPERATORS and node.attributes.get_string("reduction", "mean") == "none":
        return Along(0) if places[:2] == [0, 0] and not any(place is not None for place in places[2:]) else None
    steps = fixed_integers(node, 4) or [1]
    whole = node.inputs[0] is not None and static_shape(node.inputs[0]) == static_shape(node.outputs[0])
    return Along(places[0]) if node.op_type == "Slice" and whole and all(step == 1 for step in steps) else None


def _is_uniform(value: ir.Value | None) -> bool:
    """Whether a value is a constant whose elements are all equal."""
    tensor = fixed_tensor(value)
    if tensor is None:
        return False
    array = tensor.numpy()
    return array.size > 0 and bool((array == array.reshape(-1)[0]).all())


def _leave_out_across(rewriting: Rewriting, node: ir.Node, root: ir.Value, places: list[int | None]) -> ir.Value | None:
    """Let what is told of each chosen element by all of them leave out the others; the result, None of other nodes."""
    data, output = node.inputs[0], node.outputs[0]
    if node.op_type not in _ACROSS or node.domain or data is None or data.dtype is None or places[0] is None:
        return None
    if node.op_type == "CumSum" and root in rewriting.reordered:
        return None
    shape, named = static_shape(data) or (), fixed_integers(node, 1) or [node.attributes.get_int("axis", -1)]
    if places[1:] not in ([], [None]) or named[0] % len(shape) != places[0] or not data.dtype.is_floating_point():
        return None
    number = 0.0 if node.op_type == "CumSum" else float(data.dtype.min)
    mask = rewriting.mask(node, root, list(shape), places[0])
    neutral = rewriting.number(number, data.dtype)
    node.replace_input_with(0, rewriting.emit(node, "Where", mask, data, neutral))
    filled = ir.node("Where", [mask, output, rewriting.filling(data.dtype)], name=f"{node.name}/masked/filled")
    filled.outputs[0].type, filled.outputs[0].shape = output.type, output.shape
    put_behind(node, filled, "of_all", index=1)
    return filled.outputs[0]


def _divide_by_no_zero(rewriting: Rewriting, node: ir.Node, root: ir.Value) -> None:
    """Divide by 1 where nothing is chosen: a number of chosen elements is 0 there, and slopes would be no numbers."""
    divisor = node.inputs[1]
    if divisor is None or divisor.dtype is None or divisor.producer() is None:
        return
    if math.prod(static_shape(divisor) or ()) != 1:
        return
    flat = rewriting.mask(node, root, [math.prod(static_shape(root) or ())], 0)
    some = rewriting.emit(node, "ReduceMax", rewriting.emit(node, "Cast", flat, to=int(ir.DataType.INT32)), keepdims=0)
    some = rewriting.emit(node, "Cast", some, to=int(ir.DataType.BOOL))
    one = rewriting.number(1, divisor.dtype)
    node.replace_input_with(1, rewriting.emit(node, "Where", some, divisor, one))


def _contract(rewriting: Rewriting, node: ir.Node, root: ir.Value, places: list[int | None]) -> bool:
    """Let a product that sums over chosen elements of both sides leave out the others; whether the node is one."""
    left, right = node.inputs[:2]
    shapes = [(static_shape(value) if value is not None else None) or () for value in (left, right)]
    if left is None or left.dtype is None or any(len(shape) < _MATRIX for shape in shapes):
        return False
    turned = [node.attributes.get_int(name, 0) for name in ("transA", "transB")]
    summed = [len(shapes[0]) - 1 - turned[0], len(shapes[1]) - _MATRIX + turned[1]]
    if places[:2] != summed or any(place is not None for place in places[2:]):
        return False
    mask = rewriting.mask(node, root, list(shapes[0]), summed[0])
    zero = rewriting.number(0, left.dtype)
    node.replace_input_with(0, rewriting.emit(node, "Where", mask, left, zero))
    return True


def _leave_out(rewriting: Rewriting, node: ir.Node, root: ir.Value, places: list[int | None]) -> bool:
    """Let a reduction, a product or a loss leave out what is not chosen; whether the node is one."""
    if node.op_type in ("Gemm", "MatMul") and not node.domain:
        return _contract(rewriting, node, root, places)
    data = node.inputs[0]
    shape = None if data is None else static_shape(data)
    if node.domain or data is None or data.dtype is None or shape is None or places[0] is None:
        return False
    if node.op_type in LOSS_OPERATORS:
        return _ignore(rewriting, node, root, places)
    axes_vary = len(node.inputs) > 1 and (places[1] is not None or fixed_integers(node, 1) is None)
    if node.op_type not in _NEUTRAL or axes_vary:
        return False
    named = fixed_integers(node, 1) or range(len(shape))
    if not data.dtype.is_floating_point() or places[0] not in {axis % len(shape) for axis in named}:
        return False
    neutral = rewriting.number(_NEUTRAL[node.op_type], data.dtype)
    mask = rewriting.mask(node, root, list(shape), places[0])
    node.replace_input_with(0, rewriting.emit(node, "Where", mask, data, neutral))
    if node.op_type == "ReduceMean":
        _divide_by_count(rewriting, node, root)
    return True


def _divide_by_count(rewriting: Rewriting, node: ir.Node, root: ir.Value) -> None:
    """Let a mean of all elements be one of those that are chosen; of none it is not a number, as before."""
    output = node.outputs[0]
    assert output.dtype is not None
    flat = rewriting.mask(node, root, [math.prod(static_shape(root) or ())], 0)
    share = rewriting.emit(node, "ReduceMean", rewriting.emit(node, "Cast", flat, to=int(output.dtype)), keepdims=0)
    result = ir.node("Div", [output, share], name=f"{node.name}/masked/Div")
    result.outputs[0].dtype, result.outputs[0].shape = output.dtype, output.shape
    put_behind(node, result, "of_all")


def _ignore(rewriting: Rewriting, node: ir.Node, root: ir.Value, places: list[int | None]) -> bool:
    """Let a loss ignore the labels of what is not chosen."""
    labels = node.inputs[1]
    if places[:2] != [0, 0] or any(place is not None for place in places[2:]) or len(node.outputs) > 1:
        return False
    shape = None if labels is None else static_shape(labels)
    if labels is None or labels.dtype is None or shape is None:
        return False
    ignored = node.attributes.get_int("ignore_index", _LABEL)
    node.attributes["ignore_index"] = ir.AttrInt64("ignore_index", ignored)
    other = rewriting.number(ignored, labels.dtype)
    mask = rewriting.mask(node, root, list(shape), 0)
    node.replace_input_with(1, rewriting.emit(node, "Where", mask, labels, other))
    return True
