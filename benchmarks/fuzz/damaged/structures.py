"""Damaged bodies, recurrences, functions, names, versions and data files."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks.fuzz.damaged.parts import (
    BOOL,
    FLOAT,
    GO,
    HUGE,
    WEIGHT,
    case,
    constant,
    loop,
    lstm,
    model,
    nested,
    node,
    value,
)


@case
def an_endless_loop() -> onnx.ModelProto:
    return loop(HUGE, [GO, node("Tanh", ["state"], ["next"])])


@case
def a_loop_of_less_than_no_trips() -> onnx.ModelProto:
    return loop(-HUGE, [GO, node("Tanh", ["state"], ["next"])])


@case
def an_endless_loop_that_grows() -> onnx.ModelProto:
    return loop(HUGE, [GO, node("Concat", ["state", "state"], ["next"], axis=0)])


@case
def a_loop_whose_body_makes_nothing() -> onnx.ModelProto:
    return loop(3, [GO])


@case
def a_loop_whose_body_has_a_cycle() -> onnx.ModelProto:
    return loop(3, [GO, node("Add", ["state", "back"], ["next"]), node("Neg", ["next"], ["back"])])


@case
def a_loop_without_a_body() -> onnx.ModelProto:
    made = loop(3, [GO, node("Tanh", ["state"], ["next"])])
    del made.graph.node[1].attribute[:]
    return made


@case
def a_loop_with_inputs_missing() -> onnx.ModelProto:
    made = loop(3, [GO, node("Tanh", ["state"], ["next"])])
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
def an_old_operator_with_an_attribute_of_another_type() -> onnx.ModelProto:
    """onnx's converter takes it for what it should be, and crashes."""
    made = model([node("MatMul", ["x", "w"], ["h"]), node("ReduceSum", ["h"], axes=1e38, keepdims=0)], [WEIGHT])
    made.opset_import[0].version = 2
    return made


@case
def a_scan_of_before_operator_set_nine() -> onnx.ModelProto:
    """It has an axis more."""
    body = helper.make_graph(
        [node("Add", ["state", "row"], ["next"]), node("Identity", ["next"], ["out"])],
        "body",
        [value("state", 2), value("row", 2)],
        [value("next", 2), value("out", 2)],
    )
    nodes = [node("Scan", ["", "w", "x"], ["last", "y"], num_scan_inputs=1, body=body)]
    made = model(nodes, [constant("w", np.ones((1, 2)))], [value("x", 1, 3, 2)], [value("y", 1, 3, 2)])
    made.opset_import[0].version = 8
    made.ir_version = 3
    made.graph.input.append(value("w", 1, 2))
    return made


@case
def metadata_nested_without_end() -> onnx.ModelProto:
    made = model([node("MatMul", ["x", "w"])], [WEIGHT])
    for key in ("parameters", "checkpoints", "gradients", "updates", "plan", "labels"):
        made.metadata_props.add(key=f"pkg.ckplan.{key}", value="[" * 100_000)
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
