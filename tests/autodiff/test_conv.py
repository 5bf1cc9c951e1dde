"""Conv and ConvTranspose."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
import pytest

from ckplan.autodiff import build_training_graph
from ckplan.autodiff.builder import Builder
from ckplan.autodiff.rules.convolution import conv_data_gradient, conv_forms, conv_weight_gradient, depthwise_forms
from ckplan.autodiff.rules.windows import Window
from ckplan.errors import UnsupportedOperatorsError
from tests.autodiff.gradcheck import check_gradient, check_training_graph, infer, node_model, parse, values
from tests.autodiff.reference_operators import use_reference_operators

pytestmark = pytest.mark.usefixtures("use_reference_operators")
__all__ = ["use_reference_operators"]

FORMS = ("image", "batch", "unfold", "conv")

#: Input, weight, attributes.
CONVOLUTIONS = [
    pytest.param((2, 3, 8), (4, 3, 3), {}, id="1d"),
    pytest.param((2, 3, 8), (4, 3, 3), {"strides": [2], "pads": [2, 1], "dilations": [2]}, id="1d-all"),
    pytest.param((2, 3, 5, 6), (4, 3, 3, 2), {}, id="2d"),
    pytest.param((2, 3, 5, 6), (4, 3, 3, 3), {"pads": [1, 1, 1, 1]}, id="same"),
    pytest.param((2, 3, 5, 6), (4, 3, 3, 3), {"pads": [2, 0, 1, 2]}, id="uneven-pads"),
    pytest.param((2, 3, 7, 6), (4, 3, 3, 2), {"strides": [2, 3]}, id="strides-with-unread-tail"),
    pytest.param((2, 3, 7, 8), (4, 3, 3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1]}, id="strides-padded"),
    pytest.param((2, 3, 7, 8), (4, 3, 3, 2), {"dilations": [2, 3], "pads": [1, 0, 2, 1]}, id="dilations"),
    pytest.param((2, 3, 4, 4), (4, 3, 2, 2), {"pads": [3, 3, 3, 3]}, id="pads-beyond-kernel"),
    pytest.param((2, 3, 5, 6), (4, 3, 1, 1), {}, id="1x1"),
    pytest.param((2, 3, 5, 6), (4, 3, 1, 1), {"strides": [2, 2]}, id="1x1-strides"),
    pytest.param((2, 3, 4, 4), (4, 3, 1, 1), {"pads": [1, 0, 0, 2]}, id="1x1-pads"),
    pytest.param((2, 3, 6, 6), (5, 3, 2, 2), {"strides": [2, 2]}, id="patches"),
    pytest.param((1, 3, 5, 5), (2, 3, 3, 3), {"pads": [1, 1, 1, 1]}, id="one-sample"),
    pytest.param((2, 1, 5, 5), (1, 1, 3, 3), {}, id="one-channel"),
    pytest.param((2, 3, 4, 4), (4, 3, 4, 4), {}, id="one-place"),
    pytest.param((2, 4, 5, 5), (6, 2, 3, 3), {"group": 2, "pads": [1, 1, 1, 1]}, id="groups"),
    pytest.param((2, 4, 6, 5), (6, 2, 3, 2), {"group": 2, "strides": [2, 1], "dilations": [1, 2]}, id="groups-all"),
    pytest.param((2, 4, 5, 5), (6, 2, 1, 1), {"group": 2}, id="groups-1x1"),
    pytest.param((2, 3, 5, 5), (3, 1, 3, 3), {"group": 3, "pads": [1, 1, 1, 1]}, id="depthwise"),
    pytest.param((2, 3, 7, 6), (6, 1, 3, 3), {"group": 3, "strides": [2, 2], "pads": [0, 1, 1, 1]}, id="multiplier"),
    pytest.param((2, 3, 5, 6), (4, 3, 3, 2), {"auto_pad": "VALID"}, id="valid"),
    pytest.param((2, 3, 5, 6), (4, 3, 2, 2), {"auto_pad": "SAME_UPPER"}, id="same-upper"),
    pytest.param((2, 3, 5, 6), (4, 3, 2, 2), {"auto_pad": "SAME_LOWER"}, id="same-lower"),
    pytest.param((2, 3, 5, 6), (4, 3, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}, id="same-upper-strides"),
    pytest.param((2, 3, 5, 6), (4, 3, 3, 3), {"auto_pad": "SAME_LOWER", "strides": [2, 2]}, id="same-lower-strides"),
    pytest.param((2, 2, 3, 4, 3), (3, 2, 2, 2, 2), {"pads": [1, 0, 0, 0, 1, 1]}, id="3d"),
    pytest.param((2, 2, 4, 4, 5), (2, 1, 2, 2, 3), {"strides": [2, 1, 2], "group": 2}, id="3d-depthwise"),
]

#: Input, weight, attributes.
TRANSPOSED = [
    pytest.param((2, 3, 4), (3, 2, 3), {}, id="1d"),
    pytest.param((2, 3, 4, 3), (3, 4, 2, 3), {}, id="2d"),
    pytest.param((2, 3, 4, 3), (3, 4, 2, 2), {"strides": [2, 2]}, id="upsampling"),
    pytest.param((2, 3, 4, 3), (3, 4, 3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1]}, id="pads"),
    pytest.param((2, 3, 4, 3), (3, 4, 3, 3), {"strides": [2, 3], "pads": [1, 0, 2, 1]}, id="uneven-pads"),
    pytest.param((2, 3, 4, 3), (3, 4, 3, 2), {"dilations": [2, 3], "pads": [1, 0, 0, 1]}, id="dilations"),
    pytest.param(
        (2, 3, 4, 3), (3, 4, 3, 3), {"strides": [2, 2], "output_padding": [1, 1], "pads": [1, 1, 1, 1]}, id="more"
    ),
    pytest.param((2, 3, 4, 3), (3, 4, 2, 2), {"strides": [2, 2], "output_padding": [1, 0]}, id="more-unpadded"),
    pytest.param((2, 3, 4, 3), (3, 4, 3, 3), {"strides": [2, 2], "output_shape": [8, 6]}, id="output-shape"),
    pytest.param(
        (2, 3, 4, 3),
        (3, 4, 3, 3),
        {"strides": [2, 2], "output_shape": [8, 6], "auto_pad": "SAME_UPPER"},
        id="output-shape-upper",
    ),
    pytest.param((2, 3, 4, 3), (3, 4, 3, 3), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}, id="same-upper"),
    pytest.param((2, 3, 4, 3), (3, 4, 3, 3), {"strides": [2, 2], "auto_pad": "SAME_LOWER"}, id="same-lower"),
    pytest.param((2, 3, 4, 3), (3, 4, 3, 3), {"strides": [2, 2], "auto_pad": "VALID"}, id="valid"),
    pytest.param((2, 4, 3, 3), (4, 3, 3, 2), {"group": 2, "strides": [2, 1]}, id="groups"),
    pytest.param((2, 3, 3, 3), (3, 1, 3, 3), {"group": 3, "strides": [2, 2], "pads": [1, 1, 1, 1]}, id="depthwise"),
    pytest.param((1, 2, 2, 3, 2), (2, 2, 2, 2, 2), {"strides": [2, 1, 2]}, id="3d"),
]


@pytest.mark.parametrize("form", [None, *FORMS])
@pytest.mark.parametrize(("x", "w", "attributes"), CONVOLUTIONS)
def test_conv(x, w, attributes, form, monkeypatch: pytest.MonkeyPatch):
    if form:
        monkeypatch.setattr(conv_weight_gradient, "weight_gradient_form", lambda *_: form)
    inputs = [values(*x), values(*w, seed=1), values(w[0], seed=2)]
    check_gradient(node_model("Conv", *inputs, **attributes), differences=form is None)


@pytest.mark.parametrize(("x", "w", "attributes"), [case for case in CONVOLUTIONS if "group" not in case.values[2]])
def test_rows_of_taps_by_columns_of_taps(x, w, attributes, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(conv_weight_gradient, "weight_gradient_form", lambda *_: "sample")
    monkeypatch.setattr(Builder, "largest", 10**9)
    model = node_model("Conv", values(*x), values(*w, seed=1), **attributes)
    check_gradient(model, differences=False)
    nodes = build_training_graph(infer(model), loss="loss").model.graph.all_nodes()
    crossed = any(node.attributes.get_string("equation") == "oihw,hwjc->oijc" for node in nodes)
    assert crossed == (len(w) == 4 and min(w[2:]) > 1 and attributes.get("strides", [1])[0] == 1)


@pytest.mark.parametrize("size", [3, 6])
def test_a_convolution_by_dy_has_a_group_for_each_sample_unless_the_sums_of_all_are_large(
    size, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(conv_weight_gradient, "weight_gradient_form", lambda *_: "conv")
    monkeypatch.setattr(conv_forms, "APART_ELEMENTS", 1)
    model = node_model("Conv", values(3, 2, size, size), values(4, 2, 3, 3, seed=1), pads=[1, 1, 1, 1])
    check_gradient(model, differences=False)
    nodes = build_training_graph(infer(model), loss="loss", wrt=["p1"]).model.graph
    groups = [node.attributes.get_int("group", 1) for node in nodes if node.op_type == "Conv"]
    assert sorted(groups) == [1, 3 if size == 6 else 1]


#: Spatial shape of the input and of the kernel, attributes.
DEPTHWISE = [
    pytest.param((9,), (3,), {"pads": [1, 1]}, id="1d"),
    pytest.param((9,), (3,), {"strides": [3], "dilations": [2], "pads": [2, 1]}, id="1d-all"),
    pytest.param((5, 6), (3, 3), {"pads": [1, 1, 1, 1]}, id="same"),
    pytest.param((5, 6), (3, 2), {}, id="unpadded"),
    pytest.param((6, 8), (3, 3), {"pads": [1, 1, 1, 1], "strides": [2, 2]}, id="strides"),
    pytest.param((7, 7), (3, 3), {"pads": [1, 1, 1, 1], "strides": [2, 2]}, id="strides-odd"),
    pytest.param((7, 9), (2, 3), {"pads": [0, 2, 1, 1], "strides": [1, 3]}, id="strides-uneven"),
    pytest.param((9, 8), (3, 2), {"dilations": [2, 3], "pads": [2, 1, 0, 2], "strides": [3, 2]}, id="all"),
    pytest.param((4, 4), (1, 3), {"strides": [3, 1]}, id="few-residues"),
    pytest.param((4, 3, 5), (2, 2, 3), {"strides": [2, 1, 2], "pads": [1, 0, 1, 0, 1, 1]}, id="3d"),
]


@pytest.mark.parametrize("form", ["dot", "row"])
@pytest.mark.parametrize(("x", "w", "attributes"), DEPTHWISE)
def test_depthwise(x, w, attributes, form, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(conv_weight_gradient, "weight_gradient_form", lambda *_: form)
    check_gradient(node_model("Conv", values(2, 3, *x), values(3, 1, *w, seed=1), group=3, **attributes))


@pytest.mark.parametrize("columns", [0, 40])
@pytest.mark.parametrize(("x", "w", "attributes"), DEPTHWISE)
def test_dot_products_with_columns_moved_by_rows_or_all_at_once(x, w, attributes, columns: int, monkeypatch):
    monkeypatch.setattr(conv_weight_gradient, "weight_gradient_form", lambda *_: "dot")
    monkeypatch.setattr(depthwise_forms, "MASKED_COLUMNS", columns)
    check_gradient(node_model("Conv", values(2, 3, *x), values(3, 1, *w, seed=1), group=3, **attributes))


def test_dot_products_of_planes_read_x_where_it_lies_on_a_cpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(conv_weight_gradient, "weight_gradient_form", lambda *_: "dot")
    model = infer(node_model("Conv", values(2, 3, 5, 6), values(3, 1, 3, 3, seed=1), group=3, pads=[1, 1, 1, 1]))
    cuda = build_training_graph(model, loss="loss", wrt=["p1"], device="cuda").model.graph.all_nodes()
    assert not {"Conv", "Mul"} & {node.op_type for node in cuda if "/weight_gradient/" in str(node.name)}
    nodes = list(build_training_graph(model, loss="loss", wrt=["p1"]).model.graph.all_nodes())
    sliding = [node for node in nodes if node.op_type == "Conv" and "/grad/" in str(node.name)]
    assert "Gather" not in [node.op_type for node in nodes]
    assert [list(node.attributes["kernel_shape"].as_ints()) for node in sliding] == [[5, 6]] * 3
    # onnxruntime makes padding of the convolution's of a Pad right before it, and then columns of what it reads.
    assert all(node.inputs[0].producer().op_type == "Reshape" for node in sliding)
    # It merges two Reshapes in a row, and runs what it makes of them last.
    reshapes = [node for node in nodes if node.op_type == "Reshape" and "/weight_gradient/" in str(node.name)]
    makers = [node.inputs[0].producer() for node in reshapes]
    assert all(maker is None or maker.op_type != "Reshape" for maker in makers)


@pytest.mark.parametrize(
    ("plane", "taps", "form"), [(19, 3, "row"), (20, 3, "dot"), (20, 5, "row"), (40, 3, "dot"), (40, 7, "row")]
)
def test_planes_with_the_places_take_dot_products_by_few_taps(plane: int, taps: int, form: str):
    window = Window((plane,) * 2, (plane,) * 2, (taps,) * 2, (1, 1), (1, 1), (taps // 2,) * 2)
    assert depthwise_forms.form_for(1, window) == form
    assert depthwise_forms.form_for(1, window, "cuda") == ("row" if plane * plane <= 240 * taps else "dot")


def test_one_pass_tells_columns_of_all_residues_apart(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(conv_weight_gradient, "weight_gradient_form", lambda *_: "dot")
    model = node_model("Conv", values(2, 3, 7, 7), values(3, 1, 3, 3, seed=1), group=3, strides=[2, 2])
    check_gradient(model)
    kinds = [node.op_type for node in build_training_graph(infer(model), loss="loss").model.graph.all_nodes()]
    assert kinds.count("Split") == 1
    assert "Slice" not in kinds


@pytest.mark.parametrize(("x", "w", "attributes"), DEPTHWISE)
def test_gradients_of_input_and_weight_by_the_same_copies(x, w, attributes, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(conv_weight_gradient, "weight_gradient_form", lambda *_: "row")
    monkeypatch.setattr(Builder, "largest", 10**9)
    monkeypatch.setattr(conv_weight_gradient, "SHARED_ELEMENTS", 1)
    model = node_model("Conv", values(2, 3, *x), values(3, 1, *w, seed=1), group=3, **attributes)
    check_gradient(model)
    nodes = build_training_graph(infer(model), loss="loss").model.graph.all_nodes()
    shared = all(node.op_type != "ConvTranspose" for node in nodes)
    assert shared == (max(attributes.get("strides", [1])) == 1)


@pytest.mark.parametrize("frozen", ["x", "w"])
def test_one_gradient_alone_where_the_other_is_not_asked_for(frozen, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(conv_weight_gradient, "weight_gradient_form", lambda *_: "row")
    model = parse(
        "g (double[2,3,5,6] x) => (double loss) "
        "{ a = Conv<pads=[1,1,1,1], group=3>(x, w) b = Mul(a, a) loss = ReduceSum<keepdims=0>(b) }",
        w=values(3, 1, 3, 3),
    )
    training = build_training_graph(model, wrt=[{"x": "w", "w": "x"}[frozen]])
    check_training_graph(training, {"x": values(2, 3, 5, 6, seed=3)})


@pytest.mark.parametrize("perm", ["[0,3,1,2]", "[3,0,1,2]"])
def test_a_gradient_that_was_transposed_is_read_before_that(perm, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(conv_weight_gradient, "weight_gradient_form", lambda *_: "row")
    monkeypatch.setattr(Builder, "largest", 10**9)
    monkeypatch.setattr(conv_weight_gradient, "SHARED_ELEMENTS", 1)
    back = {"[0,3,1,2]": "[0,2,3,1]", "[3,0,1,2]": "[1,2,3,0]"}[perm]
    model = parse(
        f"g (double[2,3,5,6] x) => (double loss) {{ a = Conv<pads=[1,1,1,1], group=3>(x, w, b) "
        f"c = Transpose<perm={back}>(a) d = Tanh(c) e = Mul(d, d) loss = ReduceSum<keepdims=0>(e) }}",
        w=values(3, 1, 3, 3),
        b=values(3, seed=1),
    )
    training = build_training_graph(model, wrt=["x", "w", "b"])
    check_training_graph(training, {"x": values(2, 3, 5, 6, seed=3)})
    perms = [n.attributes.get_ints("perm") for n in training.model.graph if n.op_type == "Transpose"]
    assert perms.count(tuple(map(int, perm.strip("[]").split(",")))) == 0


def test_a_tap_that_reads_padding_only_has_no_place_in_the_forms_of_depthwise():
    assert depthwise_forms.is_inside(Window((4, 4), (4, 4), (3, 3), (1, 1), (1, 1), (1, 1)))
    assert not depthwise_forms.is_inside(Window((1, 9), (1, 9), (3, 3), (1, 1), (1, 1), (1, 1)))
    assert not depthwise_forms.is_inside(Window((4, 4), (9, 9), (2, 2), (1, 1), (1, 1), (9, 9)))


@pytest.mark.parametrize(("x", "w", "attributes"), TRANSPOSED)
def test_conv_transpose(x, w, attributes):
    inputs = [values(*x), values(*w, seed=1), values(w[1] * attributes.get("group", 1), seed=2)]
    oracle_knows = not {"auto_pad", "output_shape"} & attributes.keys()
    check_gradient(node_model("ConvTranspose", *inputs, **attributes), torch=oracle_knows)


@pytest.mark.parametrize(
    ("w", "attributes"),
    [((16, 16, 3, 3), {}), ((16, 16, 3, 3), {"pads": [0, 1, 2, 2]}), ((16, 16, 3, 2), {"dilations": [2, 3]})],
)
def test_a_flipped_kernel_gives_the_data_gradient(w, attributes, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(conv_data_gradient, "data_gradient_form", lambda *_: "flipped")
    check_gradient(node_model("Conv", values(2, 16, 7, 8), values(*w, seed=1), **attributes))


@pytest.mark.parametrize(
    ("plane", "strides", "product"),
    [
        ((5,), [1], True),
        ((7, 7), [1, 1], True),
        ((2, 3, 4), [1, 1, 1], True),
        ((13, 14), [2, 2], True),
        ((5, 4, 7), [2, 1, 3], True),
        ((7, 8), [1, 1], False),
        ((15, 15), [2, 2], False),
    ],
)
def test_kernels_of_one_tap_on_small_planes_take_one_product(plane, strides, product: bool):
    model = node_model("Conv", values(2, 3, *plane), values(4, 3, *[1] * len(plane), seed=1), strides=strides)
    nodes = build_training_graph(infer(model), loss="loss").model.graph
    assert all(node.op_type != "ConvTranspose" for node in nodes) == product
    check_gradient(model)


@pytest.mark.parametrize(("filters", "transposed"), [(4, False), (9, True)])
def test_few_channels_take_the_flipped_kernel_where_filters_are_no_more(filters: int, transposed: bool):
    # The buffer of a ConvTranspose is as large as 15 copies of a sample; a product of few, long rows is slower.
    model = node_model("Conv", values(2, 4, 9, 9), values(filters, 4, 3, 5, seed=1), pads=[1, 2, 1, 2])
    nodes = build_training_graph(infer(model), loss="loss").model.graph
    assert any(node.op_type == "ConvTranspose" for node in nodes) == transposed
    check_gradient(model)


@pytest.mark.parametrize("op_type", ["Conv", "ConvTranspose"])
def test_no_pad_stands_right_before_the_kernel_of_a_depthwise_convolution_of_one_channel(op_type: str):
    # onnxruntime's fusion of pads takes it for one of the image, and the graph is invalid.
    model = node_model(op_type, values(3, 1, 24, 24), values(1, 1, 3, 3, seed=1))
    check_gradient(model)
    nodes = build_training_graph(infer(model), loss="loss").model.graph.all_nodes()
    kernels = [node.inputs[1] for node in nodes if node.op_type == "Conv"]
    makers = {maker.op_type for kernel in kernels if kernel is not None and (maker := kernel.producer()) is not None}
    assert "Reshape" in makers
    assert "Pad" not in makers


@pytest.mark.parametrize(("samples", "transposed"), [(4, False), (3, True)])
def test_a_kernel_larger_than_what_it_reads_is_flipped_where_places_are_many(samples: int, transposed: bool):
    model = node_model("Conv", values(samples, 128, 10, 10), values(120, 128, 1, 1, seed=1))
    nodes = build_training_graph(infer(model), loss="loss").model.graph
    assert any(node.op_type == "ConvTranspose" for node in nodes) == transposed


@pytest.mark.parametrize(
    ("size", "kernel", "pads"), [(8, 3, [1, 1]), (9, 3, [1, 1]), (8, 5, [2, 2]), (8, 3, [0, 1]), (8, 2, [0, 0])]
)
def test_transposed_convolutions_pad_both_ends_alike_where_they_can(size: int, kernel: int, pads: list[int]):
    # onnxruntime's CUDA provider leaves others to the CPU.
    ends = [pads[0]] * 2 + [pads[1]] * 2
    model = node_model(
        "Conv", values(2, 3, size, size), values(4, 3, kernel, kernel, seed=1), strides=[2, 2], pads=ends
    )
    nodes = build_training_graph(infer(model), loss="loss").model.graph
    (found,) = (node for node in nodes if node.op_type == "ConvTranspose")
    padding = found.attributes["pads"].as_ints()
    assert (padding[:2] == padding[2:]) == (pads[0] == pads[1])
    check_gradient(model)


@pytest.mark.parametrize(("pads", "group"), [([1, 0], 1), ([1, 0], 2), ([2, 1], 2)])
def test_output_padding_is_less_than_a_stride(pads: list[int], group: int):
    # With dilations more would be an attribute that onnx allows and onnxruntime refuses.
    ends = [pads[0]] * 2 + [pads[1]] * 2
    weight = values(4, 4 // group, 2, 2, seed=1)
    check_gradient(node_model("Conv", values(2, 4, 7, 7), weight, dilations=[2, 2], pads=ends, group=group))


def test_wide_kernels_of_sound_take_no_table_of_their_taps():
    model = node_model("Conv", values(2, 1, 1, 596), values(1, 1, 1, 256, seed=1), strides=[1, 2])
    initializers = build_training_graph(infer(model), loss="loss").model.graph.initializers.values()
    assert max(value.const_value.size for value in initializers) == 2 * 596
    check_gradient(model, differences=False)


def test_a_large_input_goes_through_the_batch_in_parts():
    model = node_model("Conv", values(7, 9, 5, 5), values(2, 9, 3, 3, seed=1), pads=[1, 1, 1, 1])
    check_gradient(model)


def test_conv_without_bias_and_with_one_gradient_wanted():
    x, w = values(2, 3, 5, 5), values(4, 3, 3, 3, seed=1)
    both = check_gradient(node_model("Conv", x, w), differences=False)
    for name in both:
        model = node_model("Conv", x, w)
        alone = check_gradient(model, differences=False, wrt=[name], idle=set(both) - {name})
        np.testing.assert_array_equal(alone[name], both[name])


def chosen(
    samples: int, channels: int, size: int, filters: int, taps: int, groups: int = 1, largest: int = 0, stride: int = 1
) -> conv_forms.Form:
    places = size // stride
    pairs = (size, size), (places, places), (taps, taps), (stride, stride), (1, 1), (taps // 2, taps // 2)
    window = Window(*pairs)
    return conv_weight_gradient.weight_gradient_form(samples, channels, filters, groups, window, largest)


def test_the_form_suits_the_shape():
    assert chosen(8, 64, 56, 64, 3) == chosen(8, 64, 56, 256, 1) == "sample"
    assert chosen(8, 64, 56, 64, 3, groups=4) == "image"
    assert chosen(8, 512, 7, 512, 3) == "batch"
    assert chosen(8, 2048, 7, 512, 1) == "batch"
    assert chosen(8, 3, 224, 64, 3) == "unfold"
    assert chosen(8, 3, 224, 64, 7) == "conv"
    assert chosen(8, 144, 56, 144, 3, groups=144) == chosen(8, 96, 56, 96, 7, groups=96) == "dot"
    assert chosen(8, 384, 14, 384, 3, groups=384) == chosen(8, 96, 40, 96, 7, groups=96) == "row"
    assert chosen(8, 144, 56, 144, 3, groups=144, stride=2) == "dot"
    assert chosen(8, 144, 28, 144, 3, groups=144, stride=2) == "row"
    assert chosen(8, 96, 56, 96, 11, groups=96) == chosen(8, 1, 28, 32, 3) == "conv"
    assert chosen(8, 144, 56, 288, 3, groups=144) == chosen(8, 128, 56, 128, 3, groups=32) == "unfold"
    assert chosen(8, 128, 56, 128, 3, groups=32, largest=8 * 256 * 56 * 56) == "conv"  # copies of half a tensor
    assert chosen(16, 128, 56, 128, 3, groups=32, largest=16 * 256 * 56 * 56) == "unfold"


def test_einsum_is_for_weights_that_are_small_beside_the_activations():
    largest = 8 * 64 * 112 * 112
    assert chosen(8, 256, 14, 256, 3, largest=largest) == chosen(8, 256, 14, 1024, 1, largest=largest) == "einsum"
    assert chosen(8, 512, 7, 512, 3, largest=largest) == chosen(8, 2048, 7, 512, 1, largest=largest) == "batch"
    assert chosen(8, 480, 14, 112, 1, largest=largest) == "einsum"  # copies of little account, too
    assert chosen(8, 40, 28, 240, 1, largest=largest) == "sample"


@pytest.mark.parametrize("form", conv_forms.FORMS)
@pytest.mark.parametrize(
    ("taps", "places"), [((1, 1), 6), ((2, 3), 6), ((1, 1), 1), ((3,), 5), ((1,), 4), ((2, 2, 1), 3)]
)
@pytest.mark.parametrize("largest", [0, 10**9])
def test_every_form_gives_the_same_gradient(form, taps, places, largest, monkeypatch: pytest.MonkeyPatch):
    """Taps one by one, and all together; planes of one place too."""
    monkeypatch.setattr(Builder, "largest", largest)
    monkeypatch.setattr(conv_weight_gradient, "weight_gradient_form", lambda *_: form)
    depthwise = form in ("dot", "row")
    model = node_model(
        "Conv",
        values(2, 3, *[places] * len(taps)),
        values(*((3, 1) if depthwise else (4, 3)), *taps, seed=1),
        pads=[tap // 2 for tap in taps] * 2,
        group=3 if depthwise else 1,
    )
    check_gradient(model, differences=False)


@pytest.mark.parametrize("form", ["sample", "einsum"])
@pytest.mark.parametrize(("filters", "places", "is_dy"), [(2, 5, True), (9, 5, False), (5, 2, False)])
def test_the_narrower_side_of_a_pointwise_product_is_the_last(
    form, filters, places, is_dy, monkeypatch: pytest.MonkeyPatch
):
    """Unless its result, which would have to be turned, is as large as what it is made of."""
    monkeypatch.setattr(conv_weight_gradient, "weight_gradient_form", lambda *_: form)
    check_gradient(node_model("Conv", values(2, 6, places, places), values(filters, 6, 1, 1, seed=1)))
    check_gradient(node_model("Conv", values(2, 6, places), values(filters, 6, 1, seed=1)))
    model = parse(
        f"g (float[2,6,{places},{places}] x, float[2,{filters},{places},{places}] z) => (float loss) "
        "{ a = Conv(x, w) b = Mul(a, z) loss = ReduceSum<keepdims=0>(b) }",
        w=values(filters, 6, 1, 1).astype(np.float32),
    )
    graph = build_training_graph(model, wrt=["w"]).model.graph
    (product,) = (node for node in graph if node.op_type == {"sample": "MatMul", "einsum": "Einsum"}[form])
    pending, read = [product.inputs[1]], set()
    while pending:
        value = pending.pop()
        read.add(value.name)
        pending += [] if value.producer() is None else [one for one in value.producer().inputs if one is not None]
    assert ("z" in read) == is_dy


@pytest.mark.parametrize("kernel", [(64, 64, 3, 3), (256, 64, 1, 1), (512, 512, 3, 3), (64, 3, 3, 3), (64, 1, 3, 3)])
def test_temporaries_are_few_beside_the_operands(kernel):
    """A weight gradient holds at most three times the bytes of x, dy and w, results included."""
    samples, size, pair = 8, 14, (1, 1)
    side = kernel[2]
    window = Window((size, size), (size, size), (side, side), pair, pair, (side // 2, side // 2))
    groups = 64 if kernel[1] == 1 else 1
    shapes = [samples, kernel[1] * groups, size, size], [samples, kernel[0], size, size]
    x, dy = (
        ir.Value(name=n, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(s))
        for n, s in zip("xd", shapes, strict=True)
    )
    graph = ir.Graph([x, dy], [], nodes=[], opset_imports={"": 21}, name="g")
    graph.outputs.append(conv_weight_gradient.weight_gradient(Builder(graph, {"": 21}), x, dy, kernel, window))
    operands = sum(math.prod(shape) for shape in (*shapes, kernel))
    assert most_elements(list(graph)) <= 3 * operands


def most_elements(nodes: list[ir.Node]) -> int:
    """The largest sum of elements of live results when the nodes run in order; a Reshape makes none."""
    root: dict[ir.Value, ir.Value] = {}
    last: dict[ir.Value, int] = {}
    for step, node in enumerate(nodes):
        last.update((root.get(value, value), step) for value in node.inputs if value is not None)
        if node.op_type == "Reshape":
            root[node.outputs[0]] = root.get(node.inputs[0], node.inputs[0])
    live: dict[ir.Value, int] = {}
    most = 0
    for step, node in enumerate(nodes):
        if node.op_type != "Reshape":
            live[node.outputs[0]] = math.prod(node.outputs[0].shape)
        most = max(most, sum(live.values()))
        live = {value: size for value, size in live.items() if last.get(value, len(nodes)) > step}
    return most


@pytest.mark.parametrize("axis", ["axis=1", "axis=-3"])
@pytest.mark.parametrize("few", [1, conv_weight_gradient.FEW_CHANNELS])
def test_the_weight_gradient_reads_what_the_input_is_joined_of(
    monkeypatch: pytest.MonkeyPatch, axis: str, few: int
) -> None:
    monkeypatch.setattr(conv_weight_gradient, "FEW_CHANNELS", few)
    model = parse(
        "g (double[2,3,5,6] x) => (double loss) { a = Relu(x) b = Tanh(v) "
        f"c = Concat<{axis}>(a, b) d = Conv<pads=[1,1,1,1]>(c, w) e = Mul(d, d) loss = ReduceSum<keepdims=0>(e) }}",
        v=values(2, 2, 5, 6, seed=1),
        w=values(4, 5, 3, 3, seed=2),
    )
    training = build_training_graph(model)
    check_training_graph(training, {"x": values(2, 3, 5, 6, seed=3)})
    (joined,) = (node.outputs[0] for node in training.model.graph if node.name == "Concat_2")
    readers = [node.op_type for node, _ in joined.uses()]
    assert (readers == ["Conv"]) == (few == 1)  # narrow parts stay joined, for a product of them would be slow


def test_a_transposed_convolution_to_less_than_its_input_is_refused():
    # ONNX's inference leaves out the axes of such a result.
    text = """g (double[1,1,3,3] x) => (double loss) {
        y = ConvTranspose <output_shape = [1, 1], strides = [3, 2]> (x, w) loss = ReduceSum<keepdims = 0>(y) }"""
    with pytest.raises(UnsupportedOperatorsError, match="its output_shape is smaller than its input"):
        build_training_graph(parse(text, w=values(1, 2, 3, 3)), loss="loss", wrt=["w"])
