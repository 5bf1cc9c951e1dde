"""Damaged weights, types, attributes and sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from benchmarks.fuzz.damaged.parts import (
    FLOAT,
    HUGE,
    INT64,
    WEIGHT,
    case,
    constant,
    model,
    node,
    value,
)


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
