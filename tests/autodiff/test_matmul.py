"""Matrix products."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ckplan.autodiff import build_training_graph
from ckplan.autodiff.rules.linear_algebra import matmul as rules
from ckplan.errors import UnsupportedOperatorsError
from ckplan.model import normalise
from tests.autodiff.gradcheck import check_gradient, check_training_graph, infer, node_model, parse, values


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3, 4), (4, 5)),
        ((2, 3, 4), (4, 5)),
        ((2, 2, 3, 4), (4, 5)),
        ((2, 3, 4), (2, 4, 5)),
        ((2, 1, 3, 4), (1, 3, 4, 5)),
        ((3, 4), (2, 4, 5)),
        ((1, 3, 4), (2, 4, 5)),
        ((4,), (4,)),
        ((4,), (4, 5)),
        ((3, 4), (4,)),
        ((4,), (2, 4, 5)),
        ((2, 3, 4), (4,)),
        ((2, 1, 4), (2, 4, 1)),
        ((1, 1), (1, 1)),
        ((2, 3, 130), (2, 130, 4)),
        ((2, 2, 3, 130), (1, 2, 130, 4)),
    ],
)
def test_matmul(a, b):
    check_gradient(node_model("MatMul", values(*a), values(*b, seed=5)))


@pytest.mark.parametrize(("flip_a", "flip_b"), list(itertools.product([0, 1], [0, 1])))
@pytest.mark.parametrize("scales", [{}, {"alpha": 0.5, "beta": 2.0}])
def test_gemm_flags(flip_a, flip_b, scales):
    a = values(*((4, 3) if flip_a else (3, 4)))
    b = values(*((5, 4) if flip_b else (4, 5)), seed=5)
    check_gradient(node_model("Gemm", a, b, values(5, seed=6), transA=flip_a, transB=flip_b, **scales))


@pytest.mark.parametrize(
    "model",
    [
        node_model("MatMul", values(2, 3, 130), values(2, 130, 4, seed=5)),
        node_model("MatMul", values(2, 49, 49), values(2, 49, 16, seed=5)),
        node_model("MatMul", values(2, 40, 8), values(8, 4, seed=5)),
        node_model("Gemm", values(80, 8), values(8, 4, seed=5), alpha=0.5),
        node_model("Gemm", values(80, 4), values(8, 4, seed=5), transB=1),
    ],
    ids=["attention", "attention in windows", "rows", "gemm", "gemm of a transposed weight"],
)
def test_products_of_columns_gather_those_of_the_narrower_side(model, monkeypatch):
    monkeypatch.setattr(rules, "_CACHE", 0)
    check_gradient(model)
    training = build_training_graph(infer(model), loss="loss", wrt=["p1"])
    product = next(node for node in training.model.graph if node.op_type == "MatMul" and "/grad/" in (node.name or ""))
    gathered, other = (value for value in product.inputs)
    assert gathered.producer().op_type == "Transpose"
    assert gathered.shape[-2] < other.shape[-1]


@pytest.mark.parametrize(("order", "cancels"), [([0, 2, 1], True), ([1, 2, 0], False)])
def test_gradients_of_turned_matrices_are_made_as_they_lie(order, cancels, monkeypatch):
    """That of a matrix whose last two axes are exchanged is made so that Transposes cancel."""
    monkeypatch.setattr(rules, "_FEW", 1)
    shape = [3, 4, 5]
    stored = values(*[shape[order.index(axis)] for axis in range(3)])
    model = parse(
        f"g (double[3,2,4] x) => (double loss) {{ t = Transpose<perm={order}>(w) y = MatMul(x, t) b = Mul(y, y) "
        "loss = ReduceSum<keepdims=0>(b) }",
        w=stored,
    )
    training = build_training_graph(model)
    check_training_graph(training, {"x": values(3, 2, 4, seed=8)})
    product = next(node for node in training.model.graph if node.op_type == "MatMul" and "/grad/" in str(node.name))
    assert (product.inputs[1].name == "x") == cancels


@pytest.mark.parametrize(("columns", "copied"), [(4, True), (8, False)])
def test_the_narrower_side_is_copied_transposed_where_the_copy_is_small(columns, copied, monkeypatch):
    monkeypatch.setattr(rules, "_CACHE", 0)
    monkeypatch.setattr(rules, "_WORTH_A_COPY", 0)
    model = parse(
        "g (double[160,16] z) => (double loss) { x = Tanh(z) y = MatMul(x, w) b = Mul(y, y) "
        "loss = ReduceSum<keepdims=0>(b) }",
        w=values(16, columns),
    )
    training = build_training_graph(model)
    check_training_graph(training, {"z": values(160, 16, seed=8)})
    product = next(node for node in training.model.graph if node.op_type == "MatMul" and "/grad/" in str(node.name))
    assert product.inputs[1].name == "x"
    assert product.inputs[0].producer().op_type == ("Reshape" if copied else "Transpose")


@pytest.mark.parametrize(("columns", "copied"), [(16, True), (12, False)])
def test_a_tall_side_is_copied_transposed_where_the_copy_is_small(columns, copied, monkeypatch):
    monkeypatch.setattr(rules, "_WORTH_A_COPY", 0)
    model = node_model("MatMul", values(2, 40, 4), values(4, columns, seed=5))
    check_gradient(model)
    training = build_training_graph(infer(model), loss="loss", wrt=["p1"])
    product = next(node for node in training.model.graph if node.op_type == "Gemm" and "/grad/" in (node.name or ""))
    assert ("transA" not in product.attributes) == copied
    copy = product.inputs[0].producer().inputs[0].producer()
    assert (copy is not None and copy.op_type == "Transpose") == copied


@pytest.mark.parametrize(
    ("columns", "within", "copied"),
    [((8,), (1, 99), True), ((4, 4), (1, 99), True), ((7,), (1, 99), False), ((8,), (1, 23), False)],
)
def test_a_side_whose_products_have_many_columns_is_copied_transposed(columns, within, copied, monkeypatch):
    monkeypatch.setattr(rules, "_IN_CACHE", within)
    products = " ".join(f"a{at} = MatMul(x, w{at})" for at in range(len(columns)))
    joined = ", ".join(f"a{at}" for at in range(len(columns)))
    model = parse(
        f"g (double[2,3,4] z, double[2,3,99] other) => (double loss) {{ x = Tanh(z) {products} "
        f"y = Concat<axis=-1>({joined}, other) b = Mul(y, y) loss = ReduceSum<keepdims=0>(b) }}",
        **{f"w{at}": values(4, size, seed=at) for at, size in enumerate(columns)},
    )
    training = build_training_graph(model)
    check_training_graph(training, {"z": values(2, 3, 4, seed=8), "other": values(2, 3, 99, seed=9)})
    gradients = [node for node in training.model.graph if node.op_type == "Gemm" and "/grad/" in str(node.name)]
    assert len(gradients) == len(columns)
    assert all(("transA" not in node.attributes) == copied for node in gradients)


def test_chances_are_gathered_where_values_are_long():
    training = build_training_graph(
        infer(node_model("MatMul", values(2, 3, 256), values(2, 256, 64, seed=5))), loss="loss", wrt=["p1"]
    )
    product = next(node for node in training.model.graph if node.op_type == "MatMul" and "/grad/" in (node.name or ""))
    assert product.inputs[0].producer().inputs[0].name == "p0"


@pytest.mark.parametrize("c", [(3, 5), (1, 5), (3, 1), (5,), (1,), (), None])
def test_gemm_bias(c):
    bias = [] if c is None else [values(*c, seed=6)]
    check_gradient(node_model("Gemm", values(3, 4), values(4, 5, seed=5), *bias, beta=1.5))


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(3, 4), (4, 5)]),
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
        ("bhid,bhjd->bhij", [(2, 2, 3, 4), (2, 2, 5, 4)]),
        ("ij->ji", [(3, 4)]),
        ("ij->i", [(3, 4)]),
        ("ij,ik,kj->i", [(3, 4), (3, 5), (5, 4)]),
        ("bme,bnm,bn->bne", [(2, 4, 5), (2, 3, 4), (2, 3)]),
        ("ab,bc,cd,da->ac", [(2, 3), (3, 4), (4, 2), (2, 2)]),
        ("i,j,k->ijk", [(2,), (3,), (4,)]),
        ("a,b,ab->", [(2,), (3,), (2, 3)]),
        ("ij,jk", [(3, 4), (4, 5)]),
        ("i,i->", [(4,), (4,)]),
        ("...ij,...jk->...ik", [(2, 3, 4), (2, 4, 5)]),
        ("ij,kl->l", [(3, 4), (2, 5)]),
        ("ii->i", [(3, 3)]),
        ("ii->", [(3, 3)]),
        ("ii", [(3, 3)]),
        ("iji->j", [(3, 2, 3)]),
        ("iii->i", [(2, 2, 2)]),
        ("ii,ij->j", [(3, 3), (3, 4)]),
        ("...ii->...i", [(2, 3, 3)]),
        ("...ij,jk->...ik", [(4, 2, 3, 4), (4, 5)]),
        (",->", [(), ()]),
        ("ij -> ", [(3, 4)]),
        ("a...b,b...->...a", [(2, 3, 4), (4, 3)]),
    ],
)
def test_einsum(equation, shapes):
    inputs = [values(*shape, seed=seed) for seed, shape in enumerate(shapes)]
    check_gradient(node_model("Einsum", *inputs, equation=equation))


def test_gradients_of_three_factors_make_no_tensor_of_all_their_indices():
    positions, features, width = 64, 8, 8
    shapes = [(features, width), (positions, features), (positions,)]
    model = node_model("Einsum", *(values(*shape, seed=i) for i, shape in enumerate(shapes)), equation="me,nm,n->ne")
    graph = build_training_graph(infer(model)).model.graph
    gradients = [node for node in graph if node.op_type == "Einsum"][1:]
    assert len(gradients) == 5  # two have a factor in common
    for node in gradients:
        left, right = node.attributes["equation"].as_string().split("->")
        assert left.count(",") == 1
        assert len(right) <= 2


def stretching(equation: str, x: tuple[int, ...], w: tuple[int, ...]) -> ir.Model:
    """An Einsum that onnxruntime runs, though ONNX's shape inference overlooks that an axis is stretched."""
    model = node_model("Einsum", values(*x), values(*w, seed=1), equation=equation)
    del model.graph.value_info[:]
    model.graph.input.append(onnx.helper.make_tensor_value_info("zero", onnx.TensorProto.DOUBLE, x))
    model.graph.node[0].input[0] = "moved"
    model.graph.node.insert(0, onnx.helper.make_node("Add", ["p0", "zero"], ["moved"]))
    return normalise(ir.from_proto(model)).model


def test_einsum_that_stretches_an_axis():
    training = build_training_graph(stretching("bij,bjk->bik", (2, 3, 4), (1, 4, 5)), loss="loss", wrt=["p*"])
    check_training_graph(training, {"zero": np.zeros((2, 3, 4))})


def test_einsum_whose_shape_is_wrong_is_refused():
    with pytest.raises(UnsupportedOperatorsError, match="it stretches an axis"):
        build_training_graph(stretching("bij,bjk->bik", (1, 3, 4), (2, 4, 5)), loss="loss", wrt=["p*"])
