"""The reverse sweep: what gets a gradient, in which order, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ckplan.autodiff import TrainingGraph, build_training_graph
from ckplan.errors import ModelError, UnsupportedOperatorsError, UsageError
from ckplan.model.constants import mark_constant
from tests.autodiff.gradcheck import check_training_graph, onnxruntime_run, parse, reference, values

MLP = """
g (double[6,3] x) => (double loss) {
    a = MatMul(x, w1)
    b = Add(a, b1)
    h = Tanh(b)
    c = MatMul(h, w2)
    s = Mul(c, c)
    loss = ReduceSum <keepdims = 0> (s)
}
"""
WEIGHTS = {"w1": values(3, 4), "b1": values(4, seed=1), "w2": values(4, 2, seed=2)}
FEEDS = {"x": values(6, 3, seed=8)}


def phases(training: TrainingGraph) -> list[str]:
    return [node.metadata_props["pkg.ckplan.phase"] for node in training.model.graph]


def backward(training: TrainingGraph) -> list[ir.Node]:
    return [n for n in training.model.graph if n.metadata_props["pkg.ckplan.phase"] == "backward"]


def test_interface_of_the_file():
    model = parse(MLP, **WEIGHTS)
    before = ir.to_proto(model).SerializeToString()
    training = build_training_graph(model)
    assert ir.to_proto(model).SerializeToString() == before
    graph = training.model.graph
    assert [value.name for value in graph.outputs] == ["loss", "w1_grad", "b1_grad", "w2_grad"]
    assert [value.name for value in graph.inputs] == ["x", "w1", "b1", "w2"]
    assert training.gradients == {"w1": "w1_grad", "b1": "b1_grad", "w2": "w2_grad"}
    assert set(training.gradients) <= set(graph.initializers)
    assert training.notes == ()
    props = training.model.metadata_props
    assert props["pkg.ckplan.loss"] == "loss"
    assert json.loads(props["pkg.ckplan.parameters"]) == ["w1", "b1", "w2"]
    assert json.loads(props["pkg.ckplan.gradients"]) == training.gradients
    assert phases(training) == sorted(phases(training), reverse=True)
    names = [node.name for node in graph]
    assert len(set(names)) == len(names)
    check_training_graph(training, FEEDS)


def test_parameters_may_be_fed():
    training = build_training_graph(
        parse(MLP.replace("double", "float"), **{k: v.astype("f") for k, v in WEIGHTS.items()})
    )
    feeds = {"x": FEEDS["x"].astype("f")}
    kept = onnxruntime_run(training.model, feeds)
    fed = onnxruntime_run(training.model, {**feeds, "w1": (WEIGHTS["w1"] / 2).astype("f")})
    assert kept["loss"] != fed["loss"]
    again = build_training_graph(
        parse(MLP.replace("double", "float"), **{k: (v / (1 + (k == "w1"))).astype("f") for k, v in WEIGHTS.items()})
    )
    np.testing.assert_array_equal(onnxruntime_run(again.model, feeds)["w2_grad"], fed["w2_grad"])


def test_weight_gradients_come_before_the_input_gradient():
    training = build_training_graph(parse(MLP, **WEIGHTS))
    position = {value.name: i for i, node in enumerate(backward(training)) for value in node.outputs}
    (to_hidden,) = (i for i, n in enumerate(backward(training)) if n.op_type == "Gemm" and "transB" in n.attributes)
    assert position["w2_grad"] < to_hidden
    assert position["b1_grad"] < position["w1_grad"]


def test_gradients_of_a_value_with_many_readers_are_summed_as_they_come():
    model = parse(
        """g (double[3] x) => (double loss) {
            h = Mul(x, w)
            a = Sin(h)
            b = Sigmoid(h)
            c = Exp(h)
            s = Sum(a, b, c)
            loss = ReduceSum <keepdims = 0> (s)
        }""",
        w=values(3),
    )
    training = build_training_graph(model)
    check_training_graph(training, {"x": values(3, seed=3)})
    kinds = [node.op_type for node in backward(training)]
    assert kinds.count("Add") == 2
    assert kinds.index("Add") < kinds.index("Cos")
    # Two partial gradients at a time: what the third reader contributes is made after the first two were added.
    adds = [i for i, kind in enumerate(kinds) if kind == "Add"]
    assert adds[1] > kinds.index("Cos") > adds[0]


def test_one_value_read_several_times_by_one_node():
    model = parse(
        """g (double[3] x) => (double loss) {
            h = Mul(x, w)
            s = Sum(h, h, h)
            p = Mul(s, h)
            loss = ReduceSum <keepdims = 0> (p)
        }""",
        w=values(3),
    )
    check_training_graph(build_training_graph(model), {"x": values(3, seed=3)})


def test_only_what_the_loss_needs_is_left():
    model = parse(
        """g (double[3] x) => (double loss, double[3] other) {
            h = Mul(x, w)
            t = Tanh(h)
            e = Exp(h)
            other = Mul(e, unused)
            loss = ReduceSum <keepdims = 0> (t)
        }""",
        w=values(3),
        unused=values(3, seed=1),
    )
    training = build_training_graph(model)
    assert [node.op_type for node in training.model.graph if node.metadata_props["pkg.ckplan.phase"] == "forward"] == [
        "Mul",
        "Tanh",
        "ReduceSum",
    ]
    assert "unused" not in training.model.graph.initializers
    (note,) = training.notes
    assert note.startswith("1 parameter(s) get no gradient because the loss does not depend on them, but output 'o")
    assert note.endswith(": 'unused'")


def test_parameters_of_another_output_are_told_with_what_trains_them():
    text = """g (double[2,3] x) => (double[2,3] a, double[2,3] b, double[2,3] c) {
        a = MatMul(x, first)
        h = Mul(a, a)
        b = MatMul(a, second)
        c = MatMul(h, third)
    }"""
    weights = {name: values(3, 3, seed=seed) for seed, name in enumerate(("first", "second", "third"))}
    training = build_training_graph(parse(text, **weights), loss="mse:a")
    assert list(training.gradients) == ["first"]
    assert "but output 'b' does (several --loss are summed): 'second', 'third'" in training.notes[-1]
    training = build_training_graph(parse(text, **weights))
    assert list(training.gradients) == ["first", "second"]


def test_gradients_that_are_equal_or_constant_have_values_of_their_own():
    model = parse(
        "g (double[3] x) => (double loss) { s = Sum(x, p, q) loss = ReduceSum <keepdims = 0> (s) }",
        p=values(3),
        q=values(3, seed=1),
    )
    training = build_training_graph(model)
    assert [value.name for value in training.model.graph.outputs] == ["loss", "p_grad", "q_grad"]
    check_training_graph(training, {"x": values(3)})
    scalar = parse("g () => (double loss) { loss = Identity(p) }", p=np.float64(2))
    training = build_training_graph(scalar, wrt=["p"])
    assert reference(training.model)["p_grad"] == 1


def test_a_taken_name_is_left_alone():
    training = build_training_graph(parse(MLP.replace("h = ", "w1_grad = ").replace("(h,", "(w1_grad,"), **WEIGHTS))
    assert training.gradients["w1"] == "w1_grad_0"
    check_training_graph(training, FEEDS)


def test_integers_and_steps_carry_no_gradient():
    model = parse(
        """g (double[6,3] x) => (double loss) {
            h = MatMul(x, w)
            i = Cast <to = 7> (h)
            f = Cast <to = 11> (i)
            r = Floor(h)
            k = ArgMax <axis = 1> (h)
            o = Cast <to = 11> (k)
            a = Add(h, f)
            b = Add(a, r)
            c = Mul(b, o)
            loss = ReduceSum <keepdims = 0> (c)
        }""",
        w=values(3, 2),
    )
    training = build_training_graph(model)
    check_training_graph(training, FEEDS)
    assert not {"Floor", "ArgMax"} & {node.op_type for node in backward(training)}


def test_rounded_parameters_are_no_parameters():
    model = parse(
        "g (double[3] x) => (double loss) { r = Round(w) y = Mul(x, r) loss = ReduceSum<keepdims=0>(y) }", w=values(3)
    )
    with pytest.raises(ModelError, match="can be differentiated"):
        build_training_graph(model)


def test_wrt_and_no_grad():
    model = parse(MLP, **WEIGHTS)
    assert list(build_training_graph(model, wrt=["w*"]).gradients) == ["w1", "w2"]
    assert list(build_training_graph(model, no_grad=["w?"]).gradients) == ["b1"]
    only = build_training_graph(model, wrt=["*"], no_grad=["*1"])
    assert list(only.gradients) == ["w2"]
    assert [value.name for value in only.model.graph.inputs] == ["x", "w2"]
    check_training_graph(only, FEEDS)
    # Nothing is propagated below the last trained parameter.
    assert not [n for n in backward(only) if n.op_type == "Tanh" or "Tanh" in n.name]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"wrt": ["w3"]}, r"`--wrt w3` matches no floating-point parameter, input or activation; did you mean `w"),
        ({"no_grad": ["encoder.*"]}, r"`--no-grad encoder\.\*` matches no .* there are, for example, `w1`, `b1`, `w2`"),
        ({"wrt": ["w1"], "no_grad": ["*"]}, "no parameter is left to train; loosen --wrt or --no-grad"),
    ],
)
def test_patterns_that_cannot_be_meant(options, message):
    with pytest.raises(UsageError, match=message):
        build_training_graph(parse(MLP, **WEIGHTS), **options)


def test_literals_are_not_trained():
    text = "g (double[3] x) => (double loss) { a = Mul(x, w) b = Mul(a, half) loss = ReduceSum <keepdims = 0> (b) }"
    model = parse(text, w=values(3), half=np.float64(0.5))
    training = build_training_graph(model)
    assert list(training.gradients) == ["w"]
    assert training.notes == ("1 constant(s) are not trained ('half'); name them with --wrt if they should be",)
    assert list(build_training_graph(model, wrt=["half"]).gradients) == ["half"]
    mark_constant(model.graph.initializers["half"], "Constant node")
    assert build_training_graph(model).notes == ()


def test_what_the_loader_took_for_a_constant_is_not_trained():
    text = "g (double[3] x) => (double loss) { a = Mul(x, w) b = Mul(a, v) loss = ReduceSum <keepdims = 0> (b) }"
    model = parse(text, w=values(3), v=values(3, seed=1))
    assert list(build_training_graph(model).gradients) == ["w", "v"]
    mark_constant(model.graph.initializers["v"], "test")
    assert list(build_training_graph(model).gradients) == ["w"]
    assert list(build_training_graph(model, wrt=["v"]).gradients) == ["v"]


def test_models_without_parameters():
    with pytest.raises(ModelError, match="no floating-point parameters"):
        build_training_graph(parse("g (double[3] x) => (double loss) { loss = ReduceSum <keepdims = 0> (x) }"))
    integers = parse(
        "g (int64[3] x) => (float[3] y) { a = Mul(x, w) y = Cast <to = 1> (a) }",
        w=np.asarray([1, 2, 3], dtype=np.int64),
    )
    with pytest.raises(ModelError, match="take the model as it was before quantisation"):
        build_training_graph(integers)
    tree = parse("g (double[3] x) => (double[3] y) { y = Relu(x) }")
    tree.graph[0].domain, tree.graph[0].op_type = "ai.onnx.ml", "Normalizer"
    with pytest.raises(ModelError, match=r"Normalizer '.*' \(ai.onnx.ml\) holds its numbers as attributes"):
        build_training_graph(tree)


def test_no_parameter_reaches_the_loss():
    model = parse(
        "g (double[3] x) => (double[3] y, double loss) { y = Mul(x, w) loss = ReduceSum <keepdims = 0> (x) }",
        w=values(3),
    )
    with pytest.raises(
        ModelError, match=r"no parameter reaches the loss \(the model's output 'loss'\); choose another"
    ):
        build_training_graph(model)


def test_all_unsupported_nodes_are_named_and_the_way_out_is_shown():
    model = parse(
        """g (double[4,4] x) => (double loss) {
            a = Mul(x, w1)
            b = Hardmax(a)
            c = Bernoulli(a)
            d = MatMul(b, w2)
            e = Mul(d, c)
            loss = ReduceSum <keepdims = 0> (e)
        }""",
        w1=values(4, 4),
        w2=values(4, 4, seed=1),
    )
    with pytest.raises(UnsupportedOperatorsError) as caught:
        build_training_graph(model)
    kinds = [name.split()[0] for name, _ in caught.value.nodes]
    assert kinds == ["Hardmax", "Bernoulli"]
    assert [reason for _, reason in caught.value.nodes] == [
        "a one-hot choice has no derivative",
        "a random sample has no derivative",
    ]
    assert "--no-grad 'w1'" in caught.value.hint
    assert "1 other(s) can still be trained" in caught.value.hint
    assert list(build_training_graph(model, no_grad=["w1"]).gradients) == ["w2"]


def test_nothing_helps_where_every_parameter_is_cut_off():
    model = parse(
        "g (double[4,4] x) => (double loss) { a = Mul(x, w) b = Hardmax(a) loss = ReduceSum <keepdims = 0> (b) }",
        w=values(4, 4),
    )
    with pytest.raises(UnsupportedOperatorsError, match="no choice of --no-grad helps"):
        build_training_graph(model)


def test_gradients_can_be_stopped_where_parameters_reach_the_loss_on_another_path_as_well():
    model = parse(
        """g (double[4,4] x) => (double loss) {
            a = Mul(x, w) b = Hardmax(a) c = Mul(a, b) loss = ReduceSum <keepdims = 0> (c)
        }""",
        w=values(4, 4),
    )
    with pytest.raises(UnsupportedOperatorsError, match="stop gradients at what they make"):
        build_training_graph(model)
    assert list(build_training_graph(model, no_grad=["b"]).gradients) == ["w"]


def test_arguments_computed_at_run_time_are_reported_with_the_node():
    model = parse(
        """g (double[4,4] x, int64[1] n) => (double loss) {
            a = Mul(x, w)
            b = ReduceSum(a, n)
            loss = ReduceSum <keepdims = 0> (b)
        }""",
        w=values(4, 4),
    )
    next(iter(model.graph.node(2).inputs)).shape = ir.Shape([1, 4])
    with pytest.raises(UnsupportedOperatorsError, match=r"ReduceSum '.*' \(its input 'axes' is computed at run time\)"):
        build_training_graph(model)


@pytest.mark.parametrize("branch", ["x", "w"])
def test_a_gradient_passes_through_control_flow(branch):
    then = onnx.helper.make_graph(
        [onnx.helper.make_node("Mul", [branch, branch], ["t"])],
        "then",
        [],
        [onnx.helper.make_tensor_value_info("t", onnx.TensorProto.DOUBLE, [3])],
    )
    other = onnx.helper.make_graph(
        [onnx.helper.make_node("Neg", ["x"], ["e"])],
        "else",
        [],
        [onnx.helper.make_tensor_value_info("e", onnx.TensorProto.DOUBLE, [3])],
    )
    model = parse(
        "g (double[3] x, bool flag) => (double loss) { y = Identity(x) m = Mul(y, w) loss = ReduceSum<keepdims=0>(m) }",
        w=values(3),
    )
    proto = ir.to_proto(model)
    proto.graph.node[0].CopyFrom(
        onnx.helper.make_node("If", ["flag"], ["y"], then_branch=then, else_branch=other, name="choice")
    )
    model = ir.from_proto(proto)
    training = build_training_graph(model)
    assert sum(node.op_type == "If" for node in training.model.graph) == (2 if branch == "w" else 1)
    check_training_graph(training, {"x": values(3, seed=2), "flag": np.asarray(True)})
