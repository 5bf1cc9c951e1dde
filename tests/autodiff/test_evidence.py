"""Which initializers are trained when nobody says it: names, values and uses that decide."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ckplan.autodiff import build_training_graph
from ckplan.errors import ModelError
from ckplan.keys import STANDS_FOR
from ckplan.model.constants import IN_NODE, mark_constant
from ckplan.model.torch_files.exporter_metadata import KIND
from tests.autodiff.gradcheck import parse, values

POSITIONS = np.cos(np.outer(np.arange(16), 0.3 + np.arange(16)))
FORGETTING = np.repeat([[0.0, 1.0, 0.0]], [8, 8, 112], axis=1)
"""The bias that LSTMs of Keras begin with, by smaller gates: ones for what they forget."""
MASK = np.triu(np.full((16, 16), -1e30), 1)

READ = {
    "added": "y = Add(h, tensor)",
    "added to scores": "a = Add(h, tensor) y = Softmax(a)",
    "multiplied": "y = Mul(h, tensor)",
    "product": "y = MatMul(h, tensor)",
    "table": "y = Gather(tensor, ids)",
    "chosen": "y = Where(where, h, tensor)",
    "written into": 'y = ScatterElements <axis = 0, reduction = "add"> (tensor, ids2, h)',
    "scale": "y = LayerNormalization(h, tensor)",
    "slope": "y = PRelu(h, tensor)",
    "bias of a recurrence": "t = Unsqueeze(h, axis) y = LSTM <hidden_size = 16> (t, input_weight, own_weight, tensor)",
    "bias of a product": "y = Gemm(h, first, tensor)",
    "encoding": "y = OneHot(ids, depth, tensor)",
    "scale behind a reshape": "n = LayerNormalization(h, norm) r = Unsqueeze(tensor, axis) y = Mul(n, r)",
}


def trained(name: str, array: np.ndarray, how: str, **metadata: str) -> tuple[list[str], str]:
    """The parameters of a model that reads one initializer in some way, and its notes."""
    text = f"""g (double[16,16] x, int64[16] ids, int64[16,16] ids2, bool[16,16] where) => (double loss) {{
        h = MatMul(x, first)
        {READ[how]}
        s = Mul(y, h)
        loss = ReduceSum <keepdims = 0> (s)
    }}"""
    own = {"first": values(16, 16), "norm": values(16, seed=2), "axis": np.array([0])}
    own |= {"depth": np.array(16)}
    own |= {"input_weight": values(1, 64, 16), "own_weight": values(1, 64, 16)}
    model = parse(text.replace("tensor", f'"{name}"'), **own, **{name: array})
    model.graph.initializers[name].metadata_props.update(metadata)
    training = build_training_graph(model)
    return [found for found in training.gradients if found not in own], " ".join(training.notes)


@pytest.mark.parametrize(
    ("name", "array", "how", "is_trained"),
    [
        ("blocks.0.bias", np.zeros(16), "added", True),
        ("b", np.zeros(16), "added", True),
        ("model.final_logits_bias", np.zeros((1, 16)), "added", False),
        ("val_3", np.zeros((1, 16)), "added to scores", False),
        ("val_3", np.zeros(16), "added to scores", True),
        ("val_3", values(16, 16, seed=1), "added to scores", True),
        ("relative_bias", np.zeros((1, 16)), "added to scores", True),
        ("w1", np.eye(16), "product", True),
        ("val_3", values(16, 16, seed=1), "product", True),
        ("onnx::MatMul_120", values(16, 16, seed=1), "product", True),
        ("onnx::MatMul_120", -np.zeros((16, 16)), "product", True),
        ("onnx::MatMul_120", np.ones((16, 16)), "product", False),
        ("val_3", np.zeros(16), "scale", True),
        ("val_3", np.ones(16), "scale behind a reshape", True),
        ("onnx::PRelu_4", np.full((1, 1), 0.25), "slope", True),
        ("192", np.zeros((1, 128)), "bias of a recurrence", True),
        ("192", FORGETTING, "bias of a recurrence", True),
        ("192", FORGETTING[0, :16], "bias of a product", True),
        ("192", np.eye(16), "bias of a product", False),
        ("rows", values(16, 16, seed=1), "table", True),
        ("stft.weight", POSITIONS, "product", False),
        ("/norm/Constant_1_output_0", np.ones(16), "scale", False),
        ("norm.running_var", values(16, seed=1), "multiplied", False),
        ("bn/moving_mean/read:0", values(16, seed=1), "added", False),
        ("val_3", MASK, "added", False),
        ("attention.mask", MASK, "added", False),
        ("rotary.cos_cached", POSITIONS, "multiplied", False),
        ("val_3", POSITIONS, "product", False),
        ("val_3", 3 * np.eye(16), "added", False),
        ("zeros", np.zeros((16, 16)), "written into", False),
        ("buffer", np.zeros((16, 16)), "written into", False),
        ("buffer", np.zeros((16, 16)), "chosen", False),
        ("val_3", np.full((1, 16), 2.0), "multiplied", False),
        ("val_3", values(1, 1, seed=1), "multiplied", False),
        ("off_on", np.array([0.0, 1.0]), "encoding", False),
        ("w", np.array([0.01, 0.9]), "encoding", False),
        ("auto.cast.4", np.full((1,), 0.35), "multiplied", False),
        ("auto.cast.4", values(16, 16, seed=1), "product", True),
        ("Func/StatefulPartitionedCall/input/_15:0", np.full((1, 1), 1.5), "added", False),
        ("Func/StatefulPartitionedCall/input/_15:0", values(16, 16, seed=1), "product", True),
    ],
)
def test_names_values_and_uses(name: str, array: np.ndarray, how: str, is_trained: bool) -> None:
    found, notes = trained(name, array, how)
    assert found == [name] * is_trained
    assert (f"constant(s) are not trained ('{name}': " in notes) is not is_trained
    assert "may be constants" not in notes


def test_doubt_is_said_with_what_to_do_about_it() -> None:
    found, notes = trained("val_3", values(16, seed=1), "multiplied")
    assert found == ["val_3"]
    assert "1 tensor(s) are trained that may be constants ('val_3': read element by element)" in notes
    assert "--no-grad" in notes


def test_doubt_is_not_said_of_what_no_loss_reaches() -> None:
    text = """g (double[2,4] x) => (double loss, double[2,4] beside) {
        h = Mul(x, own)
        loss = ReduceSumSquare <keepdims = 0> (h)
        t = Tanh(h)
        beside = Mul(t, val_3)
    }"""
    model = parse(text, own=values(4), val_3=values(4, seed=1))
    training = build_training_graph(model, loss="loss")
    assert list(training.gradients) == ["own"]
    assert not any("'val_3'" in note and "may be constants" in note for note in training.notes)
    assert any("val_3" in note for note in training.notes)


FEW = """g (double[2,4] x) => (double loss) {
    y = Mul(x, tensor)
    z = Mul(y, own)
    loss = ReduceSumSquare <keepdims = 0> (z)
}"""


def of_few(name: str, array: np.ndarray, **others: np.ndarray) -> tuple[list[str], str]:
    """Which initializers are trained, of a few numbers that scale an input, and what is noted."""
    model = parse(FEW.replace("tensor", f'"{name}"'), own=values(4), **{name: array}, **others)
    training = build_training_graph(model, loss="loss")
    return sorted(set(training.gradients) - {"own"}), " ".join(training.notes)


def test_a_mask_of_a_few_zeros_and_ones_is_no_parameter() -> None:
    """As of a coupling layer. What is called otherwise may be a weight that begins so."""
    ones = np.array([1.0, 0.0, 1.0, 0.0])
    found, notes = of_few("flow.mask", ones)
    assert not found
    assert "1 constant(s) are not trained ('flow.mask': of zeros and ones)" in notes
    found, notes = of_few("flow.mix", ones)
    assert found == ["flow.mix"]
    assert "may be constants" in notes
    assert "'flow.mix': of zeros and ones" in notes


def test_the_vectors_of_a_spectral_norm_are_no_parameters() -> None:
    """A normalised weight has a `weight_v` as well, which is trained."""
    vector = values(4, seed=2)
    assert of_few("l.weight_v", vector, **{"l.weight_g": values(1)})[0] == ["l.weight_v"]
    found, notes = of_few("l.weight_v", vector, **{"l.weight_orig": values(4, 4)})
    assert not found
    assert "'l.weight_v': of a spectral norm" in notes


@pytest.mark.parametrize("shape", [(), (1,), (4,)])
def test_a_few_numbers_that_the_old_exporter_computed_are_told(shape: tuple[int, ...]) -> None:
    """It computes of parameters and buffers alone, as the halves of a learnt step."""
    found, notes = of_few("onnx::Mul_12", np.full(shape, 0.15) * np.arange(1, 1 + max(shape, default=1)).reshape(shape))
    assert not found
    assert "1 tensor(s) of a few numbers are not trained ('onnx::Mul_12')" in notes
    assert "of a few numbers" not in of_few("onnx::Mul_12", np.ones(shape))[1]


def test_what_an_input_is_scaled_by_may_be_a_constant() -> None:
    nodes = "d = Sub(x, offset) s = Mul(d, scale) h = MatMul(s, weight) t = Tanh(h) y = Mul(t, gain)"
    text = f"g (double[2,16] x) => (double loss) {{ {nodes} loss = ReduceSumSquare <keepdims = 0> (y) }}"
    vectors = {name: values(16, seed=seed) for seed, name in enumerate(("offset", "scale", "gain"))}
    training = build_training_graph(parse(text, weight=values(16, 16), **vectors), loss="loss")
    assert set(training.gradients) == {"offset", "scale", "weight", "gain"}
    why, notes = "read beside an input of the model", " ".join(training.notes)
    assert f"2 tensor(s) are trained that may be constants ('offset': {why}, 'scale': {why})" in notes


def test_what_torch_said_decides() -> None:
    assert trained("table", POSITIONS, "multiplied", **{KIND: "BUFFER"})[0] == []
    assert trained("table", values(16, 16), "product", **{KIND: "CONSTANT_TENSOR"})[0] == []
    assert trained("val_3", values(16, 16), "product", **{STANDS_FOR: ""})[0] == []
    assert trained("zeros", np.zeros(16), "added", **{STANDS_FOR: "layer.bias"})[0] == ["zeros"]
    assert trained("scale", np.ones(16), "multiplied", **{KIND: "PARAMETER"})[0] == ["scale"]
    for name, said in (("positions.weight", {KIND: "PARAMETER"}), ("unsqueeze_3", {STANDS_FOR: "positions.weight"})):
        found, notes = trained(name, POSITIONS, "added", **said)
        assert found == [name]
        assert f"may be constants ('{name}': a table of a formula)" in notes


BETWEEN = """g (double[2,16] x) => (double loss, double[2,16] out) {
    h = MatMul(x, weight)
    t = Mul(h, scale)
    a = Add(t, shift)
    b = Tanh(a)
    d = MatMul(b, matrix)
    y = Mul(d, own_scale)
    out = Add(y, own_shift)
    loss = ReduceSumSquare <keepdims = 0> (out)
}"""


def test_weights_of_a_frozen_module_are_constant_nodes() -> None:
    """The matrix, and what scales and shifts between two products; at the end it may be what undoes a normalisation."""
    arrays = {"matrix": values(16, 16, seed=2)} | {name: values(16, seed=3) for name in ("scale", "shift")}
    arrays |= {"own_scale": values(16, seed=4), "own_shift": values(16, seed=5)}
    model = parse(BETWEEN, weight=values(16, 16), **arrays)
    for name in arrays:
        mark_constant(model.graph.initializers[name], IN_NODE)
    training = build_training_graph(model, loss="loss")
    assert set(training.gradients) == {"weight", "matrix", "scale", "shift"}
    assert "3 tensor(s) are trained that may be constants ('matrix': in a Constant node" in " ".join(training.notes)
    tables = {"matrix": POSITIONS, "scale": np.ones(16), "shift": POSITIONS[3]}
    for name, table in tables.items():
        model.graph.initializers[name].const_value = ir.tensor(table)
    assert set(build_training_graph(model, loss="loss").gradients) == {"weight"}


@pytest.mark.parametrize(
    ("nodes", "is_trained"),
    [("p = MatMul(c, w)", False), ("t = Transpose(w) p = MatMul(c, t)", False), ("p = MatMul(w, c)", True)],
)
def test_a_constant_node_that_a_layer_multiplies_by_its_weight_is_data(nodes: str, is_trained: bool) -> None:
    """As coordinates of which a module computes a bias for each pair of positions."""
    text = f"g (double[8,8] x) => (double loss) {{ {nodes} y = Mul(p, x) loss = ReduceSumSquare <keepdims = 0> (y) }}"
    model = parse(text, w=values(8, 8, seed=2), c=values(8, 8, seed=3))
    mark_constant(model.graph.initializers["c"], IN_NODE)
    assert ("c" in build_training_graph(model, loss="loss").gradients) is is_trained


@pytest.mark.parametrize(
    ("array", "is_trained"), [(np.round(values(64, 64), 1), True), (np.indices((64, 64)).sum(0), False)]
)
def test_weights_that_were_quantised_once_are_told_from_steps(array: np.ndarray, is_trained: bool) -> None:
    nodes = "h = Mul(x, w) y = MatMul(h, val_1) loss = ReduceSumSquare <keepdims = 0> (y)"
    text = f"g (double[2,64] x) => (double loss) {{ {nodes} }}"
    training = build_training_graph(parse(text, w=values(64, seed=2), val_1=array.astype(float)))
    assert ("val_1" in training.gradients) is is_trained
    said = "may be constants ('val_1': of " if is_trained else "not trained ('val_1': "
    assert any(said in note for note in training.notes)


def test_one_letter_for_everything_tells_nothing() -> None:
    """Where an exporter calls all tensors v1, v2 and so on, a window of a spectrogram is no weight by its name."""
    text = """g (double[4,16] x) => (double loss) {
        v1 = MatMul(x, v2)
        v3 = Mul(v1, v4)
        v5 = MatMul(v3, v6)
        loss = ReduceSumSquare <keepdims = 0> (v5)
    }"""
    arrays = {"v2": values(16, 16), "v4": np.hanning(16), "v6": values(16, 3, seed=2)}
    assert set(build_training_graph(parse(text, **arrays)).gradients) == {"v2", "v6"}
    named = text.replace("v1", "h").replace("v3", "windowed").replace("v5", "y")
    assert set(build_training_graph(parse(named, **arrays)).gradients) == {"v2", "v4", "v6"}


NORMALISED = {
    "at once": "d = Sub(h, statistic) s = Mul(d, scale) y = Add(s, shift)",
    "by a deviation": "d = Sub(h, statistic) v = Sqrt(scale) n = Div(d, v) s = Mul(scale, n) y = Add(shift, s)",
}


@pytest.mark.parametrize("nodes", NORMALISED.values(), ids=NORMALISED)
def test_a_mean_of_a_normalisation_that_is_written_out_is_not_trained(nodes: str) -> None:
    nodes = f"h = MatMul(x, w) {nodes} loss = ReduceSumSquare <keepdims = 0> (y)"
    text = f"g (double[2,3] x) => (double loss) {{ {nodes} }}"
    arrays = {"w": values(3, 16), "scale": values(16, seed=2) + 2.0, "shift": values(16, seed=3)}
    arrays["statistic"] = values(16, seed=4)
    assert set(build_training_graph(parse(text, **arrays)).gradients) == {"w", "scale", "shift"}
    read_elsewhere = text.replace("y = Add", "e = Tanh(d) z = Add").replace("loss = ", "y = Mul(e, z) loss = ")
    assert "statistic" in build_training_graph(parse(read_elsewhere, **arrays)).gradients


def test_patterns_overrule_it() -> None:
    text = "g (double[16,16] x) => (double loss) { h = Mul(x, zeros) loss = ReduceSum <keepdims = 0> (h) }"
    model = parse(text, zeros=np.zeros((16, 16)))
    assert list(build_training_graph(model, wrt=["zeros"]).gradients) == ["zeros"]


def test_a_model_of_constants_has_nothing_to_train() -> None:
    model = parse("g (double[3] x) => (double[3] y) { y = Mul(x, factor) }", factor=np.array(0.5))
    with pytest.raises(ModelError, match=r"no parameters to train, only constants \('factor'\); name with --wrt"):
        build_training_graph(model)
    assert list(build_training_graph(model, wrt=["factor"]).gradients) == ["factor"]


def test_a_few_numbers_that_torch_computed_are_named_where_nothing_else_is_left_to_train() -> None:
    text = (
        "g (double[3,3] x) => (double[3,3] y) "
        '{ matrix = ScatterND (zeros, places, "onnx::ScatterND_46") y = MatMul (x, matrix) }'
    )
    places, numbers = np.array([[1, 0], [2, 0], [2, 1]]), np.array([1.58, -0.21, -2.25])
    model = parse(text, zeros=np.zeros((3, 3)), places=places, **{"onnx::ScatterND_46": numbers})
    with pytest.raises(ModelError, match=r"only constants \('onnx::ScatterND_46', .*; name with --wrt"):
        build_training_graph(model)


@pytest.mark.parametrize("training", [False, True])
def test_composites_do_not_hide_how_the_model_reads_a_tensor(training: bool) -> None:
    text = """g (double[2,3,6,6] x) => (double loss) {
        c = Conv(x, val_1)
        n = BatchNormalization(c, val_2, val_3, mean, variance)
        s = Mul(n, n)
        loss = ReduceSum <keepdims = 0> (s)
    }"""
    statistics = {"mean": np.zeros(4), "variance": np.ones(4)}
    model = parse(text, val_1=values(4, 3, 3, 3), val_2=np.ones(4), val_3=np.zeros(4), **statistics)
    assert list(build_training_graph(model, training=training).gradients) == ["val_1", "val_2", "val_3"]


APART = """g (double[2,3,6,6] x) => (double loss) {
    v = Add("65", epsilon)  root = Sqrt(v)
    HOW
    column = Unsqueeze(factor, axes)
    folded = Mul("64", column)
    centred = Sub("63", "62")
    scaled = Mul(centred, factor)
    bias = Add(scaled, "61")
    y = Conv(x, folded, bias)
    loss = ReduceSumSquare <keepdims = 0> (y)
}"""


@pytest.mark.parametrize(
    "how", ['factor = Div("60", root)', 'inverse = Reciprocal(root) factor = Mul("60", inverse)'], ids=["Div", "Mul"]
)
@pytest.mark.parametrize("epsilon", [1e-5, 0.5])
def test_running_statistics_of_a_normalisation_that_stands_before_a_convolution(how: str, epsilon: float) -> None:
    """Tools that fuse a normalisation leave what they compute of its numbers to others, and number these."""
    vectors = {name: np.abs(values(16, seed=int(name))) for name in ("60", "61", "62", "63", "65")}
    arrays = {"64": values(16, 3, 3, 3), "epsilon": np.array(epsilon), "axes": np.array([1, 2, 3])} | vectors
    training = build_training_graph(parse(APART.replace("HOW", how), **arrays), loss="loss")
    larger = {"65"} if epsilon > 0.1 else set()  # than what keeps a quotient finite
    assert set(training.gradients) == {"60", "61", "63", "64"} | larger


IMAGE = """g (float[2,8,8,3] image) => (double loss) {
    c = Cast <to = 11> (image)
    s = Mul(c, "model/rescaling/mul:0")
    t = Add(s, "model/rescaling/add:0")
    x = Transpose <perm = [0, 3, 1, 2]> (t)
    y = Conv(x, w)
    n = BatchNormalization(y, "model/bn/Const:0", beta, mean, variance)
    a = Add(n, "const_fold_opt__7")
    b = Add(a, shift)
    sq = Mul(b, b)
    loss = ReduceSum <keepdims = 0> (sq)
}"""


def test_constants_that_keras_leaves_among_the_weights() -> None:
    """What an image is normalised by, a scale that a layer does without, and the three of a hard swish."""
    arrays = {
        "model/rescaling/mul:0": np.full((1, 1, 1, 3), 1 / 127.5),
        "model/rescaling/add:0": np.array([0.1, 0.2, 0.3]).reshape(1, 1, 1, 3),
        "model/bn/Const:0": np.ones(4),
        "const_fold_opt__7": np.full((1, 1, 1, 1), 3.0),
        "shift": np.arange(4.0).reshape(4, 1, 1),
    }
    own = {"w": values(4, 3, 3, 3), "beta": np.zeros(4), "mean": np.zeros(4), "variance": np.ones(4)}
    training = build_training_graph(parse(IMAGE, **arrays, **own))
    assert set(training.gradients) == {"w", "beta", "shift"}
    for name, why in (("rescaling/add", "an image"), ("Const:0", "TensorFlow"), ("fold_opt__7", "all 3")):
        assert any(name in note and why in note and "not trained" in note for note in training.notes), (name, why)


@pytest.mark.parametrize("added", ["cell/BiasAdd:0", "cell/add_1:0"])
def test_the_bias_of_a_cell_that_tensorflow_runs_in_a_loop_is_trained(added: str) -> None:
    """It is added to the sum of two products, and the function of the layer takes it like a constant."""
    text = """g (double[4,3] x, double[4,4] h) => (double loss) {
        a = MatMul(x, w)  b = MatMul(h, r)  sum = Add(a, b)
        "added" = Add(sum, "Func/lstm/PartitionedCall/input/_5:0")
        y = Tanh("added")
        loss = ReduceSum <keepdims = 0> (y)
    }""".replace("added", added)
    arrays = {"w": values(3, 4), "r": values(4, 4), "Func/lstm/PartitionedCall/input/_5:0": values(4)}
    training = build_training_graph(parse(text, **arrays))
    assert set(arrays) - set(training.gradients) == (set() if "BiasAdd" in added else {list(arrays)[-1]})


def test_numbers_of_paddles_formulas_are_not_trained() -> None:
    """An exponent, what a hard swish adds and divides by: scalars, or of one element for all channels."""
    text = """g (double[2,3] x) => (double loss) {
        h = MatMul(x, "linear_0.w_0")
        d = Pow(h, "helper.constant.11")
        a = Add(d, "p2o.helper.constant.2")
        y = Div(a, "p2o.helper.constant.1.0")
        loss = ReduceSum <keepdims = 0> (y)
    }"""
    numbers = {"helper.constant.11": np.array(2.0), "p2o.helper.constant.2": np.array([3.0])}
    arrays = {"linear_0.w_0": values(3, 4), **numbers, "p2o.helper.constant.1.0": np.array([6.0])}
    training = build_training_graph(parse(text, **arrays))
    assert list(training.gradients) == ["linear_0.w_0"]
    assert any("a constant of Paddle's" in note for note in training.notes)


@pytest.mark.parametrize("variable", [False, True])
def test_weights_that_jax_hands_to_tensorflow_are_constants_by_name(variable: bool) -> None:
    """A file with variables has its weights in these; in one without, what takes part in products is a weight."""
    bias = "model/dense/ReadVariableOp:0" if variable else "bias"
    text = f"""g (double[2,3] x) => (double loss) {{
        h = MatMul(x, "jax2tf/Const_24:0")
        m = MatMul(h, "jax2tf/Const_25:0")
        s = Mul(m, "jax2tf/Const_2:0")
        y = Add(s, "{bias}")
        q = Mul(y, y)
        loss = ReduceSum <keepdims = 0> (q)
    }}"""
    arrays = {"jax2tf/Const_24:0": values(3, 4), "jax2tf/Const_25:0": np.eye(4), "jax2tf/Const_2:0": np.array([0.5])}
    training = build_training_graph(parse(text, **arrays, **{bias: values(4, seed=3)}))
    assert set(training.gradients) == ({bias} if variable else {bias, "jax2tf/Const_24:0"})


@pytest.mark.parametrize(("batch", "is_trained"), [(2, False), (1, True)])
def test_a_state_of_each_sample_is_no_parameter(batch: int, is_trained: bool) -> None:
    """One for all samples may be learnt; zeros for each of them are where a recurrence begins."""
    text = f"""g (float[5,{batch},3] x) => (float loss) {{
        y, last = GRU <hidden_size = 4> (x, w, r, b, "", state)
        loss = ReduceSumSquare <keepdims = 0> (last)
    }}"""
    shapes = {"w": (1, 12, 3), "r": (1, 12, 4), "b": (1, 24)}
    own = {name: values(*shape, seed=seed).astype(np.float32) for seed, (name, shape) in enumerate(shapes.items())}
    training = build_training_graph(parse(text, **own, state=np.zeros((1, batch, 4), np.float32)))
    assert ("state" in training.gradients) is is_trained
    assert any("'state': a state to begin with" in note for note in training.notes) is not is_trained


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("model/conv/BiasAdd_weights_fused_bn", True),
        ("model/dense/Add:0", True),
        ("mul:0", True),
        ("ConstantFolding/model/normalization/truediv_recip:0", True),
        ("model/dense/MatMul/ReadVariableOp:0", False),
        ("model/attention/query/Reshape:0", False),
    ],
)
def test_a_note_names_what_tensorflow_computed(name: str, told: bool) -> None:
    found, notes = trained(name, values(16, 16), "product")
    assert found == [name]
    assert ("TensorFlow or tf2onnx computed" in notes and name in notes) == told


@pytest.mark.parametrize(
    ("name", "metadata", "told"),
    [
        ("/layer/Concat_output_0", {}, True),
        ("/Mul_3_output_0", {}, True),
        ("mul_2", {}, True),
        ("mul_2", {STANDS_FOR: "layer.weight"}, False),
        ("embedding_1", {}, True),
        ("slice_2", {}, True),
        ("/layer/Transpose_output_0", {}, False),
        ("multiplier", {}, False),
    ],
)
def test_a_note_names_what_a_tool_computed_beforehand(name: str, metadata: dict[str, str], told: bool) -> None:
    """As onnxruntime's optimiser does with a file of torch's: ones beside a parameter are trained with it."""
    found, notes = trained(name, values(16, 16), "product", **metadata)
    assert found == [name]
    assert (f"1 tensor(s) are trained that a tool computed of parameters or constants ('{name}')" in notes) == told


@pytest.mark.parametrize("name", ["embedding", "embedding_1"])
def test_no_note_says_of_a_table_that_a_tool_computed_it(name: str) -> None:
    found, notes = trained(name, values(16, 16), "table")
    assert found == [name]
    assert "that a tool computed" not in notes
