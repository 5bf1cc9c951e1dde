"""What onnx's converter between operator sets and its shape inference overlook is put right here.

Each case was found by running models before and after in onnxruntime (onnx 1.23): the converted one computed something
else, or did not fit together any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import onnx_ir as ir

from ckplan.model.constants import mark_constant
from ckplan.model.rewiring import put_behind
from ckplan.operators.matching import input_of, is_op

#: Upsample, and Resize up to this version, know one way to place their results.
_ASYMMETRIC = 10
#: Operands broadcast from the last axis on since this version; the slopes of PRelu stood along the second axis before.
_BROADCASTING = 7
#: GroupNormalization has a scale and a bias per group before this version, and per channel from it on.
_PER_CHANNEL = 21
#: Hardmax looks along one axis since this version, and from one axis on before.
_ALONG_ONE_AXIS = 13
_VERSION = "ckplan.version"
"""Attribute of the operators that are put right: the version that they were written for. The converter hands it on."""
_MARKED = ("Clip", "GroupNormalization", "Hardmax", "PRelu", "Pad", "Resize")
#: Inputs that were attributes up to version 10, in float32, and have the type of the data since: limits, what pads.
_ATTRIBUTES, _BEFORE_INPUTS = {"Clip": (1, 2), "Pad": (2,)}, 10


def mark_versions(model: ir.Model) -> None:
    """Mark nodes with the operator set that they were written for, for `put_right` to read, in place.

    Each local function has an operator set of its own.
    """
    scopes: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for scope in scopes:
        imports = scope.opset_imports
        version = imports.get("", imports.get("ai.onnx", _PER_CHANNEL))
        for node in scope.all_nodes():
            if is_op(node, _MARKED):
                node.attributes[_VERSION] = ir.AttrInt64(_VERSION, version)


def put_right(model: ir.Model) -> None:
    """Give nodes back what they meant, after the converter ran, in place.

    Args:
        model: of the new version, marked by `mark_versions` before. A Resize without a mark was an Upsample.
    """
    for node in list(_nodes(model)):
        mark = node.attributes.pop(_VERSION, None)
        version = _ASYMMETRIC if mark is None else mark.as_int()
        if node.op_type == "STFT" and "onesided" not in node.attributes:
            node.attributes["onesided"] = ir.AttrInt64("onesided", 1)  # the default, which shape inference takes for 0
        if node.op_type == "Pad":
            node.attributes.pop("value", None)  # which the converter leaves where the mode does not use it
        if version <= _BEFORE_INPUTS:
            _in_type_of_data(node, _ATTRIBUTES.get(node.op_type, ()))
        if node.op_type == "Resize" and version <= _ASYMMETRIC:
            _place_as_once(model, node)
        elif node.op_type == "Resize":
            _without_tensorflow(node)
        elif node.op_type == "Hardmax" and version < _ALONG_ONE_AXIS:
            _from_axis_on(node)
        elif node.op_type == "PRelu" and version < _BROADCASTING:
            _slope_per_channel(model, node)
        elif node.op_type == "GroupNormalization" and version < _PER_CHANNEL:
            for index in (1, 2):
                _repeat_for_channels(model, node, index)


def _nodes(model: ir.Model) -> Iterator[ir.Node]:
    return (node for node in model.graph.all_nodes() if node.domain in ("", "ai.onnx") and node.outputs)


def _in_type_of_data(node: ir.Node, indices: Iterable[int]) -> None:
    """Give constants that the converter made of attributes the type of the data, where that is no float32."""
    dtype = node.outputs[0].dtype
    for index in indices:
        value = input_of(node, index)
        constant = None if value is None else value.producer()
        if dtype is not None and is_op(constant, "Constant"):
            array = constant.attributes["value"].as_tensor().numpy().astype(dtype.numpy())
            constant.attributes["value"] = ir.AttrTensor("value", ir.tensor(array))


def _place_as_once(model: ir.Model, node: ir.Node) -> None:
    """Take the nearest element as Resize-10 did: the one before where an axis grows, the one behind where it shrinks.

    An axis that grows and one that shrinks need a node each; so do scales that are not known yet.
    """
    _set_text(node, "coordinate_transformation_mode", "asymmetric")
    scales = input_of(node, 2)
    if scales is None or node.attributes.get_string("mode", "nearest") != "nearest":
        _set_text(node, "nearest_mode", "floor")
        return
    tensor = ir.convenience.get_const_tensor(scales)
    known = None if tensor is None else tensor.numpy()
    if known is not None and (known >= 1).all():
        _set_text(node, "nearest_mode", "floor")
        return
    _set_text(node, "nearest_mode", "ceil")
    if known is not None and (known <= 1).all():
        return
    graph, source, name = node.graph, node.inputs[0], node.outputs[0].name
    assert graph is not None
    assert source is not None
    fresh: list[ir.Node] = []
    if known is not None:
        up, down = (
            _initializer(model, f"{name}/{way}", each.astype(np.float32))
            for way, each in (("up", np.maximum(known, 1)), ("down", np.minimum(known, 1)))
        )
    else:
        one = _initializer(model, f"{name}/one", np.ones(1, dtype=np.float32))
        mark_constant(one, "bound of scales")
        fresh = [ir.node(op_type, [scales, one]) for op_type in ("Max", "Min")]
        up, down = (decided.outputs[0] for decided in fresh)
    larger = ir.node("Resize", [source, None, up], {"mode": "nearest"})
    _set_text(larger, "coordinate_transformation_mode", "asymmetric")
    _set_text(larger, "nearest_mode", "floor")
    for made in (*fresh, larger):
        made.outputs[0].name = f"{name}/{made.op_type}"
        graph.insert_before(node, made)
    node.replace_input_with(0, larger.outputs[0])
    node.replace_input_with(2, down)


#: Ways to choose the nearest element of ``tf_half_pixel_for_nn``, and those that choose it half an element before.
_HALF_BEFORE = {"floor": "round_prefer_ceil", "round_prefer_floor": "ceil"}


def _without_tensorflow(node: ir.Node) -> None:
    """Write what opset 13 has no name for any more, positions half an element further on, by what it has."""
    nearest = node.attributes.get_string("nearest_mode", "round_prefer_floor")
    placed = node.attributes.get_string("coordinate_transformation_mode", "half_pixel")
    if (
        placed == "tf_half_pixel_for_nn"
        and node.attributes.get_string("mode", "nearest") == "nearest"
        and nearest in _HALF_BEFORE
    ):
        _set_text(node, "coordinate_transformation_mode", "half_pixel")
        _set_text(node, "nearest_mode", _HALF_BEFORE[nearest])


def _set_text(node: ir.Node, name: str, value: str) -> None:
    node.attributes[name] = ir.AttrString(name, value)


def _initializer(model: ir.Model, name: str, content: np.ndarray) -> ir.Value:
    """Return the main graph's initializer of this name, made where there is none."""
    if name not in model.graph.initializers:
        tensor = ir.Tensor(content, name=name)
        shape = ir.Shape(list(content.shape))
        value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=shape, const_value=tensor)
        model.graph.register_initializer(value)
    return model.graph.initializers[name]


def _slope_per_channel(model: ir.Model, node: ir.Node) -> None:
    """Put the slopes of a PRelu along the second axis; since opset 7 they broadcast, from the last one on."""
    slope, data = node.inputs[1], node.inputs[0]
    rest = _emit(node, "Sub", _emit(node, "Size", _emit(node, "Shape", data)), _numbers(model, node, 2))
    ones = _emit(node, "Expand", _numbers(model, node, 1), rest)
    shape = _emit(node, "Concat", _numbers(model, node, -1), ones, axis=0)
    node.replace_input_with(1, _emit(node, "Reshape", slope, shape))


def _from_axis_on(node: ir.Node) -> None:
    """Let a Hardmax look for the largest of all elements from its axis on, as Softmax-11 sums them up."""
    data = node.inputs[0]
    matrix = _emit(node, "Flatten", data, axis=node.attributes.get_int("axis", 1))
    node.attributes["axis"] = ir.AttrInt64("axis", -1)
    back = ir.node("Reshape", [node.outputs[0], _emit(node, "Shape", data)])
    node.replace_input_with(0, matrix)
    put_behind(node, back, "Hardmax")


def _repeat_for_channels(model: ir.Model, node: ir.Node, index: int) -> None:
    """Give each channel the scale or bias of its group; with static shapes all of this but the Expand is folded."""
    groups, source = node.attributes.get_int("num_groups", 1), node.inputs[index]
    assert source is not None
    column = _emit(node, "Reshape", source, _numbers(model, node, groups, 1))
    channels = _emit(node, "Shape", node.inputs[0], start=1, end=2)
    each = _emit(node, "Div", channels, _numbers(model, node, groups))
    wide = _emit(node, "Expand", column, _emit(node, "Concat", _numbers(model, node, groups), each, axis=0))
    node.replace_input_with(index, _emit(node, "Reshape", wide, _numbers(model, node, -1)))


def _numbers(model: ir.Model, node: ir.Node, *numbers: int) -> ir.Value:
    name = f"{node.outputs[0].name}/numbers_{'_'.join(map(str, numbers))}"
    return _initializer(model, name, np.asarray(numbers, dtype=np.int64))


def _emit(node: ir.Node, op_type: str, *inputs: ir.Value | None, **attributes: int) -> ir.Value:
    """Put a node before another one; return its result."""
    graph = node.graph
    assert graph is not None
    fresh = ir.node(op_type, inputs, attributes)
    fresh.outputs[0].name = f"{node.outputs[0].name}/{op_type}_{len(graph)}"
    graph.insert_before(node, fresh)
    return fresh.outputs[0]
