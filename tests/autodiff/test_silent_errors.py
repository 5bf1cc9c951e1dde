"""What other tools get wrong without a word, one test each: their users' reports say where to look.

onnxruntime-training treats an inference-mode BatchNormalization as one in training, and its own loss changes; it gets
Conv's gradients wrong under ``auto_pad`` and the shape of Split's gradient where an output is not read; it demands
optional outputs; and it refuses cross-entropy over (N, C, H, W).
"""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ckplan.autodiff import build_training_graph
from ckplan.errors import ModelError
from ckplan.model.loading import normalise
from tests.autodiff.gradcheck import (
    check_gradient,
    infer,
    node_model,
    onnxruntime_run,
    reference,
    to_dtype,
    values,
    weighed,
)
from tests.autodiff.reference_operators import use_reference_operators  # noqa: F401  (a fixture)


def test_batch_normalization_for_inference_stays_so():
    """The loss is what the forward model computes, from the statistics in the file, and so are the gradients."""
    x, scale, bias, mean = values(3, 2, 4), values(2, seed=1), values(2, seed=2), values(2, seed=3)
    variance = np.asarray([0.4, 2.5])
    model = node_model("BatchNormalization", x, scale, bias, mean, variance)
    training = build_training_graph(infer(model), loss="loss", wrt=["p0", "p1", "p2"])
    (node,) = (node for node in training.model.graph if node.op_type == "BatchNormalization")
    assert "training_mode" not in node.attributes
    expected = reference(model)["loss"]
    np.testing.assert_allclose(reference(training.model)["loss"], expected, rtol=1e-12)
    single = build_training_graph(infer(to_dtype(model, np.float32)), loss="loss", wrt=["p0", "p1", "p2"])
    np.testing.assert_allclose(onnxruntime_run(single.model)["loss"], expected, rtol=1e-5)
    check_gradient(model, wrt=["p0", "p1", "p2"], idle=["p3", "p4"])


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("attributes", [{}, {"strides": [2, 3]}, {"strides": [2, 2]}])
def test_conv_with_auto_pad(auto_pad, attributes):
    """Even kernels and sizes that strides do not divide: one side gets more padding than the other."""
    x, w, b = values(2, 2, 7, 6), values(4, 2, 2, 3, seed=1), values(4, seed=2)
    check_gradient(node_model("Conv", x, w, b, auto_pad=auto_pad, **attributes))


@pytest.mark.parametrize("read", [[0], [1], [2], [0, 2]])
def test_split_with_outputs_that_nothing_reads(read):
    x = values(7, 3)
    node = onnx.helper.make_node("Split", ["p0", "sizes"], ["y0", "y1", "y2"], name="node")
    tensors = [onnx.numpy_helper.from_array(x, "p0"), onnx.numpy_helper.from_array(np.asarray([2, 4, 1]), "sizes")]
    gradients = check_gradient(weighed([node], tensors, [f"y{index}" for index in read]))
    assert gradients["p0"].shape == x.shape
    parts = np.split(gradients["p0"], [2, 6])
    assert [bool(part.any()) for part in parts] == [index in read for index in range(3)]


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes"),
    [
        ("MaxPool", [values(1, 2, 5, 4)], {"kernel_shape": [2, 2]}),
        ("LayerNormalization", [values(3, 4), values(4, seed=1)], {}),
        ("TopK", [values(3, 4), np.asarray([2])], {}),
        ("Dropout", [values(3, 4)], {}),
    ],
)
@pytest.mark.usefixtures("use_reference_operators")
def test_optional_outputs_are_not_demanded(op_type, inputs, attributes):
    """Indices of a MaxPool, mean and deviation of a LayerNormalization, the mask of a Dropout: left out in models."""
    check_gradient(node_model(op_type, *inputs, outputs=2 if op_type == "TopK" else 1, **attributes))


@pytest.mark.parametrize("op_type", ["SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_cross_entropy_over_pixels(op_type, reduction):
    labels = np.random.default_rng(0).integers(0, 3, (2, 4, 5))
    check_gradient(node_model(op_type, values(2, 3, 4, 5), labels, reduction=reduction))


DATA_SIZED = {
    "chosen rows": """n = NonZero(mask) i = Transpose(n) r = GatherND(p, i) c = Shape(r)
        o = ConstantOfShape<value = float[1] {1}>(c) d = ReduceSum<keepdims = 0>(o) s = ReduceSum<keepdims = 0>(r)
        loss = Div(s, d)""",
    "their number": """n = NonZero(mask) k = Shape<start = 1>(n) j = Squeeze(k) a = Constant<value_int = 0>()
        b = Constant<value_int = 1>() g = Range(a, j, b) d = Cast<to = 1>(g) e = ReduceSum<keepdims = 0>(d)
        s = ReduceSum<keepdims = 0>(p) loss = Div(s, e)""",
    "places written over": """n = NonZero(mask) i = Transpose(n) m = Cast<to = 7>(mask) k = ReduceSum(m)
        z = ReduceMax(x) u = Expand(z, k) v = Pow(u, u) y = ScatterND(p, i, v) loss = ReduceSum<keepdims = 0>(y)""",
    "compressed": """r = Compress<axis = 0>(p, mask) k = Constant<value_ints = [1]>() v, q = TopK(r, k)
        loss = Squeeze(v)""",
    "shared out": """m = Cast<to = 7>(mask) k = ReduceSum(m) n = Cast<to = 7>(mask) l = Size(n) j = Sub(l, k)
        s = Concat<axis = 0>(k, j) a, b = Split(p, s) c = Concat<axis = 0>(b, a) d = Mul(c, x)
        loss = ReduceSum<keepdims = 0>(d)""",
}


@pytest.mark.parametrize("case", DATA_SIZED)
def test_what_is_as_large_as_the_data_say_is_refused(case):
    """Its size is learnt of one run; with other data the step failed, or divided by the number of that run."""
    model = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 21]>
        g (float[6] x, bool[6] mask) => (float loss) <float[6] w = {{1, 2, 3, 4, 5, 6}}> {{
            p = Mul(x, w)
            {DATA_SIZED[case]}
        }}""")
    with pytest.raises(ModelError, match=r"'.*' finds in the data"):
        build_training_graph(normalise(ir.from_proto(model)).model, loss="loss", wrt=["w"])


FED_SIZES = {
    "Unsqueeze": "y = Unsqueeze(w, fed) z = Mul(y, c)",
    "ReduceSum": "r = ReduceSum<keepdims = 1>(w, fed) y = Mul(r, x) z = Mul(y, w)",
    "Slice": "a = Constant<value_ints = [0]>() b = Constant<value_ints = [1]>() y = Slice(w, a, b, fed) z = Mul(y, x)",
    "Pad": "a = Constant<value_ints = [1, 2]>() y = Pad(w, a, , fed) z = Tanh(y)",
}


@pytest.mark.parametrize("op_type", FED_SIZES)
def test_axes_that_are_fed_are_no_more_fixed_than_sizes(op_type):
    """The gradient was that for the axes of one run on random numbers, and with others nothing said so."""
    model = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 21]>
        g (float[3,3] x, int64[1] fed) => (float loss)
        <float[3,3] w = {{1, 2, 3, 4, 5, 6, 7, 8, 9}}, float[3,3,1] c = {{1, 2, 3, 4, 5, 6, 7, 8, 9}}> {{
            {FED_SIZES[op_type]}
            loss = ReduceSum<keepdims = 0>(z)
        }}""")
    with pytest.raises(ModelError, match=rf"{op_type} '.*' finds in the data.*if 'fed' is the same"):
        build_training_graph(normalise(ir.from_proto(model)).model, loss="loss", wrt=["w"])


@pytest.mark.parametrize(
    ("edges", "found", "is_named"),
    [("int64[2,6]", "different = Equal(a, b)", True), ("float[2,6]", "different = Less(a, b)", False)],
)
def test_the_input_that_decides_a_size_is_named_if_it_may_be_the_same_in_each_step(edges, found, is_named):
    """Layers of graphs take away the loops that a graph has already, as many as it has."""
    model = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 21]>
        g (float[6,2] x, {edges} edges) => (float[k,2] y) <float[2] w = {{1, 2}}> {{
            a, b = Split<num_outputs = 2>(edges)
            {found}
            kept = NonZero(different)
            rows = Gather<axis = 0>(x, kept)
            z = Mul(rows, w)
            y = ReduceSum<keepdims = 0>(z, first)
        }}""")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray([0]), "first"))
    with pytest.raises(ModelError, match="let each expert of a mixture see all tokens") as refused:
        build_training_graph(normalise(ir.from_proto(model)).model)
    assert ("if 'edges' is the same in each step, fix it: --set edges=NUMBERS" in str(refused.value)) == is_named


def test_a_detector_that_suppresses_boxes_is_to_be_cut_before_it():
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 21]>
        g (float[1,6,4] x, float[1,1,6] scores) => (float[k,4] loss)
        <float[4] w = {1, 2, 3, 4}, int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] three = {3}> {
            boxes = Mul(x, w)
            chosen = NonMaxSuppression(boxes, scores, three)
            n = Slice(chosen, two, three, one)
            i = Squeeze(n, one)
            all = Squeeze(boxes, zero)
            loss = Gather(all, i)
        }""")
    with pytest.raises(ModelError, match=r"NonMaxSuppression .* finds in the data.*; cut the model before it"):
        build_training_graph(normalise(ir.from_proto(model)).model)


def test_places_that_are_counted_only_are_no_size():
    """What is as large as before, whatever was found in the data, is differentiated."""
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 21]>
        g (float[6] x, bool[6] mask) => (float loss) <float[6] w = {1, 2, 3, 4, 5, 6}, int64[1] one = {1}> {
            n = NonZero(mask)
            i = Cast<to = 1>(n)
            k = ReduceSum<keepdims = 0>(i)
            p = Mul(x, w)
            s = ReduceSum<keepdims = 0>(p)
            loss = Mul(s, k)
        }""")
    training = build_training_graph(normalise(ir.from_proto(model)).model, loss="loss", wrt=["w"])
    for found in (2, 5):
        feeds = {"x": np.ones(6, np.float32), "mask": np.arange(6) < found}
        results = onnxruntime_run(training.model, feeds)
        np.testing.assert_array_equal(results["w_grad"], np.full(6, sum(range(found)), np.float32))
