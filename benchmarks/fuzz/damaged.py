"""Models that are invalid in one way each: what a damaged file or a hostile one looks like after parsing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
HUGE = 1 << 62

Made = Callable[[], onnx.ModelProto | bytes]
CASES: dict[str, Made] = {}


def case(made: Made) -> Made:
    """Register a model under the name of the function that makes it."""
    CASES[made.__name__] = made
    return made


def value(name: str, *shape: int | str | None, element: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element, list(shape))


def constant(name: str, array: Any, dtype: Any = np.float32) -> TensorProto:
    return numpy_helper.from_array(np.asarray(array, dtype), name)


def model(
    nodes: Sequence[NodeProto],
    constants: Sequence[TensorProto] = (),
    inputs: Sequence[onnx.ValueInfoProto] | None = None,
    outputs: Sequence[onnx.ValueInfoProto] | None = None,
) -> onnx.ModelProto:
    """A model with the input x (4, 8) and the output y, unless others are given."""
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", 4, 8)] if inputs is None else inputs,
        [value("y", None, None)] if outputs is None else outputs,
        list(constants),
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def node(op_type: str, inputs: Sequence[str] = ("x",), outputs: Sequence[str] = ("y",), **attributes: Any) -> NodeProto:
    return helper.make_node(op_type, inputs, outputs, f"a_{op_type}", **attributes)


WEIGHT = constant("w", np.ones((8, 8)))


@case
def a_cycle() -> onnx.ModelProto:
    return model([node("Add", ["x", "b"], ["a"]), node("Neg", ["a"], ["b"]), node("Neg", ["b"])])


@case
def a_node_that_reads_itself() -> onnx.ModelProto:
    return model([node("Add", ["x", "y"])])


@case
def fewer_bytes_than_the_dims_say() -> onnx.ModelProto:
    weight = TensorProto(name="w", data_type=FLOAT, dims=[8, 8], raw_data=bytes(17))
    return model([node("MatMul", ["x", "w"])], [weight])


@case
def more_bytes_than_the_dims_say() -> onnx.ModelProto:
    weight = TensorProto(name="w", data_type=FLOAT, dims=[8, 8], raw_data=bytes(8 * 8 * 4 + 4))
    return model([node("MatMul", ["x", "w"])], [weight])


@case
def no_data_at_all() -> onnx.ModelProto:
    return model([node("MatMul", ["x", "w"])], [TensorProto(name="w", data_type=FLOAT, dims=[8, 8])])


@case
def fewer_numbers_than_the_dims_say() -> onnx.ModelProto:
    weight = TensorProto(name="w", data_type=FLOAT, dims=[8, 8], float_data=[1.0] * 5)
    return model([node("MatMul", ["x", "w"])], [weight])


@case
def negative_dims_of_a_weight() -> onnx.ModelProto:
    weight = TensorProto(name="w", data_type=FLOAT, dims=[-8, -8], raw_data=bytes(256))
    return model([node("MatMul", ["x", "w"])], [weight])


@case
def dims_of_a_weight_whose_product_overflows() -> onnx.ModelProto:
    weight = TensorProto(name="w", data_type=FLOAT, dims=[HUGE, HUGE], raw_data=bytes(256))
    return model([node("MatMul", ["x", "w"])], [weight])


@case
def a_weight_of_an_unknown_type() -> onnx.ModelProto:
    return model([node("MatMul", ["x", "w"])], [TensorProto(name="w", data_type=77, dims=[8, 8], raw_data=bytes(256))])


@case
def a_weight_without_a_type() -> onnx.ModelProto:
    return model([node("MatMul", ["x", "w"])], [TensorProto(name="w", dims=[8, 8], raw_data=bytes(256))])


@case
def an_input_of_an_unknown_type() -> onnx.ModelProto:
    return model([node("Neg")], inputs=[value("x", 4, 8, element=77)])


@case
def an_input_of_no_type() -> onnx.ModelProto:
    made = model([node("Neg")])
    made.graph.input[0].ClearField("type")
    return made


@case
def a_cast_to_an_unknown_type() -> onnx.ModelProto:
    return model([node("Cast", to=77)])


@case
def a_cast_to_nothing() -> onnx.ModelProto:
    return model([node("Cast", to=0)])


@case
def a_cast_of_a_constant_to_an_unknown_type() -> onnx.ModelProto:
    return model([node("Cast", ["c"], ["d"], to=99), node("Add", ["x", "d"])], [constant("c", [1], np.int64)])


@case
def a_cast_without_a_type() -> onnx.ModelProto:
    return model([node("Cast")])


def convolution(weight: TensorProto, **attributes: Any) -> onnx.ModelProto:
    return model([node("Conv", ["x", weight.name], **attributes)], [weight], [value("x", 2, 4, 8, 8)], [value("y")])


@case
def no_groups() -> onnx.ModelProto:
    return convolution(constant("w", np.ones((4, 4, 3, 3))), group=0)


@case
def negative_groups() -> onnx.ModelProto:
    return convolution(constant("w", np.ones((4, 4, 3, 3))), group=-2)


@case
def no_stride() -> onnx.ModelProto:
    return convolution(constant("w", np.ones((4, 4, 3, 3))), strides=[0, 0])


@case
def negative_dilations() -> onnx.ModelProto:
    return convolution(constant("w", np.ones((4, 4, 3, 3))), dilations=[-1, -1])


@case
def huge_pads() -> onnx.ModelProto:
    return convolution(constant("w", np.ones((4, 4, 3, 3))), pads=[HUGE, HUGE, HUGE, HUGE])


@case
def too_few_pads() -> onnx.ModelProto:
    return convolution(constant("w", np.ones((4, 4, 3, 3))), pads=[1])


@case
def convolution_weights_of_one_axis() -> onnx.ModelProto:
    return convolution(constant("w", np.ones(4)))


@case
def convolution_weights_without_elements() -> onnx.ModelProto:
    return convolution(constant("w", np.ones((4, 4, 0, 3))))


@case
def convolution_weights_of_other_channels() -> onnx.ModelProto:
    return convolution(constant("w", np.ones((4, 7, 3, 3))))


@case
def convolution_weights_with_bytes_missing() -> onnx.ModelProto:
    return convolution(TensorProto(name="w", data_type=FLOAT, dims=[4, 4, 3, 3], raw_data=bytes(100)))


@case
def a_kernel_of_another_shape() -> onnx.ModelProto:
    return convolution(constant("w", np.ones((4, 4, 3, 3))), kernel_shape=[5, HUGE])


@case
def a_negative_split() -> onnx.ModelProto:
    outputs = [value("y", None, None), value("z", None, None)]
    made = node("Split", ["x", "sizes"], ["y", "z"], axis=1)
    return model([made], [constant("sizes", [-4, 12], np.int64)], outputs=outputs)


@case
def a_split_in_no_parts() -> onnx.ModelProto:
    return model([node("Split", num_outputs=0)])


@case
def a_dropout_that_drops_everything() -> onnx.ModelProto:
    constants = [WEIGHT, constant("ratio", 1.0), constant("training", True, np.bool_)]
    return model([node("MatMul", ["x", "w"], ["h"]), node("Dropout", ["h", "ratio", "training"])], constants)


@case
def a_dropout_of_more_than_everything() -> onnx.ModelProto:
    constants = [WEIGHT, constant("ratio", 7.0), constant("training", True, np.bool_)]
    return model([node("MatMul", ["x", "w"], ["h"]), node("Dropout", ["h", "ratio", "training"])], constants)


def named_dimension(text: str) -> onnx.ModelProto:
    return model([node("Neg")], inputs=[value("x", text, 8)])


@case
def a_dimension_that_overflows() -> onnx.ModelProto:
    return named_dimension("1e999")


@case
def a_dimension_of_many_terms() -> onnx.ModelProto:
    return named_dimension("+".join(["1"] * 30_000))


@case
def a_dimension_of_many_signs() -> onnx.ModelProto:
    return named_dimension("-" * 20_000 + "1")


@case
def a_dimension_in_many_brackets() -> onnx.ModelProto:
    return named_dimension("(" * 5_000 + "1" + ")" * 5_000)


@case
def a_dimension_of_many_digits() -> onnx.ModelProto:
    return named_dimension("9" * 5_000 + "*1")


@case
def a_dimension_of_large_products() -> onnx.ModelProto:
    return named_dimension("*".join(["99999999999"] * 2_000))


@case
def a_dimension_that_is_not_a_number() -> onnx.ModelProto:
    return named_dimension("1e999-1e999")


@case
def a_dimension_with_a_zero_byte() -> onnx.ModelProto:
    return named_dimension("a\0b+1")


@case
def a_huge_input() -> onnx.ModelProto:
    return model([node("MatMul", ["x", "w"])], [WEIGHT], [value("x", HUGE, 8)])


@case
def a_huge_input_of_unknown_consequences() -> onnx.ModelProto:
    return model([node("NonZero")], inputs=[value("x", 1 << 40, 8)], outputs=[value("y", None, None, element=INT64)])


@case
def an_input_whose_size_overflows() -> onnx.ModelProto:
    return model([node("MatMul", ["x", "w"])], [WEIGHT], [value("x", HUGE, HUGE, HUGE, 8)])


@case
def a_negative_input() -> onnx.ModelProto:
    return model([node("MatMul", ["x", "w"])], [WEIGHT], [value("x", -HUGE, 8)])


@case
def an_empty_input() -> onnx.ModelProto:
    return model([node("MatMul", ["x", "w"])], [WEIGHT], [value("x", 0, 8)])


def grown(op_type: str, array: Any, dtype: Any = np.int64, **attributes: Any) -> onnx.ModelProto:
    """A constant that an operator makes large, and x added to its sum."""
    nodes = [
        node(op_type, ["s"], ["big"], **attributes),
        node("ReduceSum", ["big"], ["one"], keepdims=0),
        node("Cast", ["one"], ["real"], to=FLOAT),
        node("MatMul", ["x", "w"], ["h"]),
        node("Add", ["h", "real"]),
    ]
    return model(nodes, [constant("s", array, dtype), WEIGHT])


@case
def a_filling_of_a_terabyte() -> onnx.ModelProto:
    return grown("ConstantOfShape", [1 << 40])


@case
def a_filling_whose_size_overflows() -> onnx.ModelProto:
    return grown("ConstantOfShape", [HUGE, HUGE, HUGE])


@case
def a_filling_of_negative_size() -> onnx.ModelProto:
    return grown("ConstantOfShape", [-4, 4])


def pairs(op_type: str, first: TensorProto, second: TensorProto, *rest: TensorProto) -> onnx.ModelProto:
    names = [first.name, second.name, *(tensor.name for tensor in rest)]
    nodes = [
        node(op_type, names, ["big"]),
        node("ReduceSum", ["big"], ["one"], keepdims=0),
        node("Cast", ["one"], ["real"], to=FLOAT),
        node("MatMul", ["x", "w"], ["h"]),
        node("Add", ["h", "real"]),
    ]
    return model(nodes, [first, second, *rest, WEIGHT])


@case
def an_expansion_of_a_terabyte() -> onnx.ModelProto:
    return pairs("Expand", constant("a", [1], np.int64), constant("s", [1 << 20, 1 << 20], np.int64))


@case
def an_expansion_of_half_a_gigabyte() -> onnx.ModelProto:
    return pairs("Expand", constant("a", [1], np.int64), constant("s", [1 << 26], np.int64))


@case
def a_tiling_of_a_terabyte() -> onnx.ModelProto:
    return pairs("Tile", constant("a", [1], np.int64), constant("s", [1 << 40], np.int64))


@case
def a_tiling_whose_size_overflows() -> onnx.ModelProto:
    return pairs("Tile", constant("a", [[1, 1]], np.int64), constant("s", [HUGE, HUGE], np.int64))


@case
def a_range_of_a_terabyte() -> onnx.ModelProto:
    limits = constant("a", 0, np.int64), constant("b", 1 << 40, np.int64), constant("c", 1, np.int64)
    return pairs("Range", *limits)


@case
def a_range_without_end() -> onnx.ModelProto:
    return pairs("Range", constant("a", 0.0), constant("b", np.inf), constant("c", 1.0))


@case
def a_range_without_steps() -> onnx.ModelProto:
    return pairs("Range", constant("a", 0, np.int64), constant("b", 9, np.int64), constant("c", 0, np.int64))


@case
def the_places_of_a_billion_ones() -> onnx.ModelProto:
    nodes = [
        node("ConstantOfShape", ["s"], ["big"], value=constant("one", [1], np.int64)),
        node("NonZero", ["big"], ["places"]),
        node("ReduceSum", ["places"], ["sum"], keepdims=0),
        node("Cast", ["sum"], ["real"], to=FLOAT),
        node("MatMul", ["x", "w"], ["h"]),
        node("Add", ["h", "real"]),
    ]
    return model(nodes, [constant("s", [1_000_000_000], np.int64), WEIGHT])


@case
def fillings_joined_beyond_all_numbers() -> onnx.ModelProto:
    nodes = [
        node("ConstantOfShape", ["s"], ["big"], value=constant("one", [1], np.int64)),
        node("Concat", ["big", "big"], ["bigger"], axis=0),
        node("ReduceSum", ["bigger"], ["sum"], keepdims=0),
        node("Cast", ["sum"], ["real"], to=FLOAT),
        node("MatMul", ["x", "w"], ["h"]),
        node("Add", ["h", "real"]),
    ]
    return model(nodes, [constant("s", [10**18, 10**18, 10**4], np.int64), WEIGHT])


@case
def a_one_hot_of_a_terabyte() -> onnx.ModelProto:
    depth = constant("depth", 1 << 40, np.int64)
    return pairs("OneHot", constant("places", [1, 2], np.int64), depth, constant("values", [0, 1], np.int64))


@case
def a_pad_of_a_terabyte() -> onnx.ModelProto:
    return pairs("Pad", constant("a", [1], np.int64), constant("pads", [0, 1 << 40], np.int64))


@case
def a_pad_of_less_than_nothing() -> onnx.ModelProto:
    return pairs("Pad", constant("a", [1], np.int64), constant("pads", [-9, -9], np.int64))


@case
def a_resize_of_a_terabyte() -> onnx.ModelProto:
    sizes = constant("sizes", [1, 1, 1 << 20, 1 << 20], np.int64)
    return model([node("Resize", ["x", "", "", "sizes"])], [sizes], [value("x", 1, 1, 2, 2)], [value("y")])


@case
def a_sum_over_many_letters() -> onnx.ModelProto:
    letters = "abcdefghijklmnopqrst"
    made = node("Einsum", [f"c{i}" for i in range(20)], ["big"], equation=",".join(letters) + "->")
    nodes = [made, node("Add", ["h", "big"]), node("MatMul", ["x", "w"], ["h"])]
    return model(nodes, [*(constant(f"c{i}", np.ones(64)) for i in range(20)), WEIGHT])


def loop(trips: int, body_nodes: Sequence[NodeProto], inner: str = "next") -> onnx.ModelProto:
    body = helper.make_graph(
        body_nodes,
        "body",
        [value("i", element=INT64), value("go", element=BOOL), value("state", 4, 8)],
        [value("go_on", element=BOOL), value(inner, 4, 8)],
    )
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("Loop", ["trips", "", "h"], ["y"], body=body)]
    return model(nodes, [constant("trips", trips, np.int64), WEIGHT])


_GO = node("Identity", ["go"], ["go_on"])


@case
def an_endless_loop() -> onnx.ModelProto:
    return loop(HUGE, [_GO, node("Tanh", ["state"], ["next"])])


@case
def a_loop_of_less_than_no_trips() -> onnx.ModelProto:
    return loop(-HUGE, [_GO, node("Tanh", ["state"], ["next"])])


@case
def an_endless_loop_that_grows() -> onnx.ModelProto:
    return loop(HUGE, [_GO, node("Concat", ["state", "state"], ["next"], axis=0)])


@case
def a_loop_whose_body_makes_nothing() -> onnx.ModelProto:
    return loop(3, [_GO])


@case
def a_loop_whose_body_has_a_cycle() -> onnx.ModelProto:
    return loop(3, [_GO, node("Add", ["state", "back"], ["next"]), node("Neg", ["next"], ["back"])])


@case
def a_loop_without_a_body() -> onnx.ModelProto:
    made = loop(3, [_GO, node("Tanh", ["state"], ["next"])])
    del made.graph.node[1].attribute[:]
    return made


@case
def a_loop_with_inputs_missing() -> onnx.ModelProto:
    made = loop(3, [_GO, node("Tanh", ["state"], ["next"])])
    del made.graph.node[1].input[:]
    return made


@case
def a_branch_that_is_missing() -> onnx.ModelProto:
    branch = helper.make_graph([node("Tanh", ["h"], ["z"])], "then", [], [value("z", 4, 8)])
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("If", ["c"], ["y"], then_branch=branch)]
    return model(nodes, [WEIGHT], [value("x", 4, 8), value("c", element=BOOL)])


@case
def branches_with_other_numbers_of_outputs() -> onnx.ModelProto:
    one = helper.make_graph([node("Tanh", ["h"], ["z"])], "then", [], [value("z", 4, 8)])
    none = helper.make_graph([node("Tanh", ["h"], ["z2"])], "else", [], [])
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("If", ["c"], ["y"], then_branch=one, else_branch=none)]
    return model(nodes, [WEIGHT], [value("x", 4, 8), value("c", element=BOOL)])


def nested(depth: int) -> onnx.ModelProto:
    graph = helper.make_graph([node("Tanh", ["h"], ["z0"])], "g0", [], [value("z0", 4, 8)])
    for level in range(1, depth):
        other = helper.make_graph([node("Neg", ["h"], [f"n{level}"])], "n", [], [value(f"n{level}", 4, 8)])
        made = helper.make_node("If", ["c"], [f"z{level}"], f"if{level}", then_branch=graph, else_branch=other)
        graph = helper.make_graph([made], f"g{level}", [], [value(f"z{level}", 4, 8)])
    nodes = [node("MatMul", ["x", "w"], ["h"]), *graph.node, node("Neg", [f"z{depth - 1}"])]
    return model(nodes, [WEIGHT], [value("x", 4, 8), value("c", element=BOOL)])


@case
def branches_within_branches() -> onnx.ModelProto:
    return nested(30)


@case
def branches_within_branches_to_the_limit() -> onnx.ModelProto:
    """protobuf reads 100 messages within each other; a branch takes three of them."""
    return nested(32)


def field(number: int, payload: bytes) -> bytes:
    """A field of a message as protobuf writes it."""
    size, length = len(payload), b""
    while size > 127:
        length += bytes([size & 127 | 128])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + payload


@case
def branches_within_branches_beyond_the_limit() -> bytes:
    """What protobuf itself does not write."""
    graph = helper.make_graph([node("Neg")], "g", [value("x", 4)], [value("y", 4)]).SerializeToString()
    for _ in range(500):
        attribute = field(1, b"then_branch") + field(6, graph) + bytes([0xA0, 0x01, 5])
        graph = field(1, field(4, b"If") + field(5, attribute)) + field(2, b"g")
    return bytes([8, 10]) + field(7, graph) + field(8, bytes([16, 21]))


def lstm(weights: Sequence[TensorProto], **attributes: Any) -> onnx.ModelProto:
    made = node("LSTM", ["x", *(weight.name for weight in weights)], **attributes)
    return model([made], weights, [value("x", 5, 2, 8)], [value("y", None, None, None, None)])


_R = constant("r", np.ones((1, 16, 4)))


@case
def a_recurrence_with_weights_of_another_size() -> onnx.ModelProto:
    return lstm([constant("w", np.ones((1, 15, 8))), _R], hidden_size=4)


@case
def a_recurrence_with_weights_of_one_axis() -> onnx.ModelProto:
    return lstm([constant("w", np.ones(7)), _R], hidden_size=4)


@case
def a_recurrence_without_weights() -> onnx.ModelProto:
    return lstm([], hidden_size=4)


@case
def a_recurrence_of_no_hidden_size() -> onnx.ModelProto:
    return lstm([constant("w", np.ones((1, 16, 8))), _R], hidden_size=0)


@case
def a_recurrence_of_a_huge_hidden_size() -> onnx.ModelProto:
    return lstm([constant("w", np.ones((1, 16, 8))), _R], hidden_size=HUGE)


@case
def a_recurrence_with_an_unknown_activation() -> onnx.ModelProto:
    return lstm([constant("w", np.ones((1, 16, 8))), _R], hidden_size=4, activations=["Foo", "Bar", "Baz"])


@case
def a_recurrence_in_an_unknown_direction() -> onnx.ModelProto:
    return lstm([constant("w", np.ones((1, 16, 8))), _R], hidden_size=4, direction="sideways")


@case
def a_scan_without_inputs() -> onnx.ModelProto:
    body = helper.make_graph([node("Tanh", ["s"], ["n"])], "body", [value("s", 4, 8)], [value("n", 4, 8)])
    return model([node("Scan", ["x"], body=body, num_scan_inputs=HUGE)])


@case
def a_transpose_of_no_such_axes() -> onnx.ModelProto:
    return model([node("Transpose", perm=[0, 9])])


@case
def a_softmax_over_no_such_axis() -> onnx.ModelProto:
    return model([node("MatMul", ["x", "w"], ["h"]), node("Softmax", ["h"], axis=HUGE)], [WEIGHT])


@case
def a_reshape_to_a_huge_shape() -> onnx.ModelProto:
    return model([node("Reshape", ["x", "s"])], [constant("s", [HUGE, -1], np.int64)])


@case
def a_reshape_to_two_unknowns() -> onnx.ModelProto:
    return model([node("Reshape", ["x", "s"])], [constant("s", [-1, -1], np.int64)])


@case
def a_gather_far_outside() -> onnx.ModelProto:
    return model([node("Gather", ["x", "i"])], [constant("i", [HUGE], np.int64)])


@case
def a_slice_of_no_steps() -> onnx.ModelProto:
    names = ["starts", "ends", "axes", "steps"]
    constants = [constant(name, [number], np.int64) for name, number in zip(names, (0, 9, 0, 0), strict=True)]
    return model([node("Slice", ["x", *names])], constants)


@case
def an_attribute_of_another_type() -> onnx.ModelProto:
    return model([node("MatMul", ["x", "w"], ["h"]), node("Softmax", ["h"], axis="one")], [WEIGHT])


@case
def an_operator_with_too_many_inputs() -> onnx.ModelProto:
    return model([node("Tanh", ["x", "x", "x"])])


@case
def an_operator_without_inputs() -> onnx.ModelProto:
    return model([node("MatMul", [])])


@case
def an_operator_without_outputs() -> onnx.ModelProto:
    return model([node("Tanh", ["x"], []), node("Neg")])


@case
def an_operator_without_a_name() -> onnx.ModelProto:
    return model([node("")])


@case
def two_values_of_one_name() -> onnx.ModelProto:
    return model([node("Tanh", ["x"], ["y"]), node("Neg", ["x"], ["y"])])


@case
def names_that_are_empty() -> onnx.ModelProto:
    return model([node("Tanh", ["x"], [""])], outputs=[value("", 4, 8)])


@case
def an_operator_set_from_the_future() -> onnx.ModelProto:
    made = model([node("Tanh")])
    made.opset_import[0].version = HUGE
    return made


@case
def a_negative_operator_set() -> onnx.ModelProto:
    made = model([node("Tanh")])
    made.opset_import[0].version = -5
    return made


@case
def a_file_version_from_the_future() -> onnx.ModelProto:
    made = model([node("Tanh")])
    made.ir_version = HUGE
    return made


@case
def a_function_that_calls_itself() -> onnx.ModelProto:
    made = model([helper.make_node("F", ["x"], ["y"], "call", domain="own")])
    made.opset_import.append(helper.make_opsetid("own", 1))
    inner = helper.make_node("F", ["a"], ["b"], "again", domain="own")
    made.functions.append(helper.make_function("own", "F", ["a"], ["b"], [inner], list(made.opset_import)))
    return made


@case
def functions_that_double_forty_times() -> onnx.ModelProto:
    made = model([helper.make_node("F40", ["x"], ["y"], "call", domain="own")])
    made.opset_import.append(helper.make_opsetid("own", 1))
    imports = list(made.opset_import)
    made.functions.append(helper.make_function("own", "F0", ["a"], ["b"], [node("Tanh", ["a"], ["b"])], imports))
    for level in range(1, 41):
        calls = [
            helper.make_node(f"F{level - 1}", [source], [target], domain="own")
            for source, target in (("a", "m"), ("m", "b"))
        ]
        made.functions.append(helper.make_function("own", f"F{level}", ["a"], ["b"], calls, imports))
    return made


def external(**entries: str) -> onnx.ModelProto:
    weight = TensorProto(name="w", data_type=FLOAT, dims=[8, 8], data_location=TensorProto.EXTERNAL)
    for key, text in entries.items():
        weight.external_data.add(key=key, value=text)
    return model([node("MatMul", ["x", "w"])], [weight])


@case
def external_data_without_a_location() -> onnx.ModelProto:
    return external(offset="0", length="256")


@case
def external_data_at_a_location_with_a_zero_byte() -> onnx.ModelProto:
    return external(location="weights\0.bin", offset="0", length="256")


@case
def external_data_at_a_negative_offset() -> onnx.ModelProto:
    return external(location="weights.bin", offset="-256", length="256")


@case
def external_data_of_negative_length() -> onnx.ModelProto:
    return external(location="weights.bin", offset="0", length="-256")


@case
def external_data_of_another_length() -> onnx.ModelProto:
    return external(location="weights.bin", offset="0", length="13")


@case
def external_data_at_a_huge_offset() -> onnx.ModelProto:
    return external(location="weights.bin", offset=str(HUGE), length=str(HUGE))


@case
def external_data_at_an_offset_that_is_no_number() -> onnx.ModelProto:
    return external(location="weights.bin", offset="one", length="256")


@case
def external_data_in_a_folder() -> onnx.ModelProto:
    return external(location=".", offset="0", length="256")


@case
def external_data_at_a_long_location() -> onnx.ModelProto:
    return external(location="w" * 5000, offset="0", length="256")


@case
def external_data_elsewhere() -> onnx.ModelProto:
    return external(location="../../../../../../etc/passwd", offset="0", length="256")


@case
def sparse_weights_outside_their_shape() -> onnx.ModelProto:
    made = model([node("MatMul", ["x", "s"])])
    sparse = made.graph.sparse_initializer.add(dims=[8, 8])
    sparse.values.CopyFrom(constant("s", [1.0]))
    sparse.indices.CopyFrom(constant("i", [HUGE], np.int64))
    return made


@case
def a_quantisation_by_nothing() -> onnx.ModelProto:
    constants = [constant("scale", np.zeros(0)), constant("zero", np.zeros(0), np.int8)]
    nodes = [node("QuantizeLinear", ["x", "scale", "zero"], ["q"]), node("DequantizeLinear", ["q", "scale", "zero"])]
    return model(nodes, constants)


@case
def a_normalisation_of_another_size() -> onnx.ModelProto:
    constants = [constant(name, np.ones(3)) for name in ("s", "b", "m", "v")]
    return model([node("BatchNormalization", ["x", "s", "b", "m", "v"])], constants, [value("x", 2, 4, 8, 8)])


@case
def a_training_graph_with_damaged_metadata() -> onnx.ModelProto:
    made = model([node("MatMul", ["x", "w"])], [WEIGHT])
    for key in ("parameters", "gradients", "updates", "retained", "plan", "loss", "predicted_activations"):
        made.metadata_props.add(key=f"pkg.ckplan.{key}", value='{"a": [1e999, NaN, null]}')
    return made


@case
def names_that_are_no_text() -> bytes:
    proto = model([node("MatMul", ["x", "w"], ["h"]), node("Tanh", ["h"])], [WEIGHT])
    proto.graph.node[0].name = "name"
    return proto.SerializeToString().replace(b"name", b"n\xff\xfee")


def written(made: Made) -> bytes:
    """The bytes of a case's file."""
    proto = made()
    return proto if isinstance(proto, bytes) else proto.SerializeToString()
