"""BatchNormalization by the statistics of the batch, in a model that is turned into training form."""

from __future__ import annotations

import json

import numpy as np
import onnx_ir as ir
import pytest

import ckplan
from ckplan import keys
from ckplan.autodiff.rules.normalisation import batch_norm
from ckplan.autodiff.training_mode import running
from tests.autodiff.gradcheck import check_training_graph, onnxruntime_run, parse, reference, values

MOMENTUM, EPSILON = 0.8, 1e-3
BN = f"BatchNormalization <momentum = {MOMENTUM}, epsilon = {EPSILON}>"


def statistics(channels: int, name: str = "") -> dict[str, np.ndarray]:
    """Scale, bias and running statistics that are no defaults."""
    return {
        f"s{name}": values(channels, seed=3),
        f"b{name}": values(channels, seed=4),
        f"m{name}": values(channels, seed=5),
        f"v{name}": values(channels, seed=6, low=0.5, high=1.5),
    }


def convolutional(dtype: str = "double") -> ir.Model:
    """Conv, whose output nothing but a BatchNormalization reads, Tanh, another pair, and a loss."""
    arrays = {
        "x": values(4, 2, 6, 6),
        "w": values(3, 2, 3, 3, seed=1),
        "w2": values(2, 3, 3, 3, seed=2),
        **statistics(3),
        **statistics(2, "2"),
    }
    kind = np.float64 if dtype == "double" else np.float32
    return parse(
        f"""g () => ({dtype} loss) {{
            c = Conv (x, w)
            n = {BN} (c, s, b, m, v)
            t = Tanh (n)
            c2 = Conv (t, w2)
            n2 = {BN} (c2, s2, b2, m2, v2)
            q = Mul (n2, n2)
            h = Mul (q, n2)
            loss = ReduceSum <keepdims = 0> (h)
        }}""",
        **{name: array.astype(kind) for name, array in arrays.items()},
    )


@pytest.mark.parametrize("shape", [(6, 3), (4, 3, 5), (2, 3, 4, 3), (2, 3, 2, 3, 2), (1, 3, 4)])
def test_gradients_flow_through_the_statistics_of_the_batch(shape):
    model = parse(
        f"""g () => (double loss) {{
            n = {BN} (x, s, b, m, v)
            t = Tanh (n)
            q = Mul (t, w)
            loss = ReduceSum <keepdims = 0> (q)
        }}""",
        x=values(*shape),
        w=values(*shape, seed=1),
        **statistics(3),
    )
    training = ckplan.build_training_graph(model, training=True)
    assert set(training.gradients) == {"x", "w", "s", "b"}
    check_training_graph(training)
    ran = reference(training.model)
    x, axes = values(*shape), tuple(axis for axis in range(len(shape)) if axis != 1)
    old = statistics(3)
    for name, statistic in (("m", x.mean(axes)), ("v", x.var(axes))):
        expected = MOMENTUM * old[name] + (1 - MOMENTUM) * statistic
        np.testing.assert_allclose(ran[training.updates[name]], expected, rtol=1e-6)


@pytest.mark.parametrize("shape", [(2, 3, 4, 3), (3, 3, 7), (2, 3, 5, 4)])
def test_large_planes_are_summed_by_dot_products(shape, monkeypatch):
    monkeypatch.setattr(batch_norm, "DOT_PLACES", 5)
    test_gradients_flow_through_the_statistics_of_the_batch(shape)


def test_a_convolution_and_its_normalisation_are_not_differentiated_as_one():
    training = ckplan.build_training_graph(convolutional(), training=True)
    check_training_graph(training)
    assert training.updates == {name: f"{name}_new" for name in ("m", "v", "m2", "v2")}
    assert json.loads(training.model.metadata_props[keys.UPDATES]) == training.updates
    assert {value.name for value in training.model.graph.inputs} >= set(training.updates)


def test_second_derivatives(tmp_path):
    first = ckplan.build_training_graph(convolutional(), training=True, wrt=["w"])
    ckplan.save(first.model, tmp_path / "first.onnx")
    again = ckplan.load(tmp_path / "first.onnx")
    second = ckplan.build_training_graph(again.model, loss="sum-of-squares:w_grad", wrt=["s", "w"])
    check_training_graph(second, rtol=1e-6)


def test_the_same_in_torch():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    training = ckplan.build_training_graph(convolutional("float"), training=True)
    ran = onnxruntime_run(training.model)
    start = {name: torch.tensor(v.const_value.numpy()) for name, v in convolutional("float").graph.initializers.items()}
    for name in training.gradients:
        start[name].requires_grad_()
    layers = {
        name: (start[f"s{name}"], start[f"b{name}"], start[f"m{name}"].clone(), start[f"v{name}"].clone())
        for name in ("", "2")
    }

    def normalise(x, name):
        scale, bias, mean, variance = layers[name]
        # In torch the momentum is the share of the new.
        return torch.nn.functional.batch_norm(x, mean, variance, scale, bias, True, 1 - MOMENTUM, EPSILON)

    hidden = torch.tanh(normalise(torch.conv2d(start["x"], start["w"]), ""))
    loss = (normalise(torch.conv2d(hidden, start["w2"]), "2") ** 3).sum()
    loss.backward()
    np.testing.assert_allclose(ran[training.loss], loss.item(), rtol=1e-5)
    for name, gradient in training.gradients.items():
        theirs = start[name].grad.numpy()
        np.testing.assert_allclose(ran[gradient], theirs, atol=2e-5 * np.abs(theirs).max(), rtol=0, err_msg=name)
    for name, count in (("", 4 * 4 * 4), ("2", 4 * 2 * 2)):
        np.testing.assert_allclose(ran[training.updates[f"m{name}"]], layers[name][2].numpy(), atol=1e-6)
        # torch puts the unbiased variance into the running one, ONNX the population variance.
        old = MOMENTUM * start[f"v{name}"].numpy()
        population = old + (layers[name][3].numpy() - old) * (count - 1) / count
        np.testing.assert_allclose(ran[training.updates[f"v{name}"]], population, rtol=1e-5)


def test_half_precision_sums_in_single():
    arrays = {name: array.astype(np.float16) for name, array in (("x", values(6, 3)), *statistics(3).items())}
    text = f"n = {BN} (x, s, b, m, v) t = Tanh (n) loss = ReduceSum <keepdims = 0> (t)"
    training = ckplan.build_training_graph(parse(f"g () => (float16 loss) {{ {text} }}", **arrays), training=True)
    dtypes = {value.name: value.dtype for value in training.model.graph.outputs}
    assert set(dtypes.values()) == {ir.DataType.FLOAT16}
    summing = ("ReduceMean", "ReduceSum", "MatMul")
    sums = [node for node in training.model.graph if node.op_type in summing and "BatchNorm" in str(node.name)]
    assert {node.outputs[0].dtype for node in sums} == {ir.DataType.FLOAT}


def shared_model(second: str) -> ir.Model:
    return parse(
        f"""g () => (double loss) {{
            n = {BN} (x, s, b, m, v)
            t = Tanh (n)
            o = {BN} (t, {second})
            q = Mul (o, w)
            loss = ReduceSum <keepdims = 0> (q)
        }}""",
        x=values(6, 3),
        w=values(6, 3, seed=1),
        **statistics(3),
        **statistics(3, "2"),
    )


def test_a_layer_that_is_applied_twice_updates_twice_one_after_the_other():
    training = ckplan.build_training_graph(shared_model("s, b, m, v"), training=True)
    assert training.updates == {"m": "m_new", "v": "v_new"}
    assert any("serve several nodes" in note for note in training.notes)
    check_training_graph(training)
    once = values(6, 3).mean(0)
    graph = training.model.graph
    n = next(value for node in graph for value in node.outputs if value.name == "t")
    graph.outputs.append(n)
    ran = reference(training.model)
    first = MOMENTUM * statistics(3)["m"] + (1 - MOMENTUM) * once
    np.testing.assert_allclose(ran["m_new"], MOMENTUM * first + (1 - MOMENTUM) * ran["t"].mean(0), rtol=1e-6)


def test_layers_whose_statistics_an_exporter_merged_get_their_own():
    training = ckplan.build_training_graph(shared_model("s2, b2, m, v"), training=True)
    assert len(training.updates) == 4
    assert {"m", "v"} < set(training.updates)
    assert not any("serve several nodes" in note for note in training.notes)
    check_training_graph(training)


def test_statistics_that_an_exporter_merged_with_parameters_get_their_own():
    model = parse(
        f"""g () => (double loss) {{
            n = {BN} (x, one, zero, zero, one)
            q = Mul (n, w)
            loss = ReduceSum <keepdims = 0> (q)
        }}""",
        x=values(6, 3),
        w=values(6, 3, seed=1),
        one=np.ones(3),
        zero=np.zeros(3),
    )
    training = ckplan.build_training_graph(model, training=True)
    assert {"one", "zero"} < set(training.gradients)
    assert len(training.updates) == 2
    assert not set(training.updates) & set(training.gradients)
    check_training_graph(training)


def test_layers_that_the_loss_does_not_need_are_not_updated():
    model = convolutional()
    aside = parse(f"g () => (double[4,2] y) {{ y = {BN} (z, s3, b3, m3, v3) }}", z=values(4, 2), **statistics(2, "3"))
    for value in list(aside.graph.initializers.values()):
        del aside.graph.initializers[value.name]
        model.graph.register_initializer(value)
    (node,) = aside.graph
    aside.graph.outputs.clear()
    aside.graph.remove(node)
    model.graph.append(node)
    model.graph.outputs.append(node.outputs[0])
    training = ckplan.build_training_graph(model, training=True, loss="loss")
    assert set(training.updates) == {"m", "v", "m2", "v2"}


def test_the_statistics_of_all_layers_are_updated_at_once_and_to_the_bit_as_one_by_one(monkeypatch):
    joined = ckplan.build_training_graph(convolutional("float"), training=True)
    monkeypatch.setattr(running, "FEWEST", 5)
    apart = ckplan.build_training_graph(convolutional("float"), training=True)
    assert joined.updates == apart.updates
    assert len(apart.model.graph) - len(joined.model.graph) == 4 * 3 + 2 - 8
    found, expected = onnxruntime_run(joined.model), onnxruntime_run(apart.model)
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name])


def test_a_running_statistic_that_the_loss_reads_is_updated_by_itself():
    layers = [f"n{i}, n{i}m, n{i}v = {BN[:-1]}, training_mode = 1> (x, s{i}, b{i}, m{i}, v{i})" for i in range(3)]
    text = " ".join(layers) + " q = Sum (n0, n1, n2) t = Tanh (q) y = Add (t, n0m) loss = ReduceSum <keepdims = 0> (y)"
    arrays = {name: array for i in range(3) for name, array in statistics(3, str(i)).items()}
    model = parse(f"g () => (double loss) {{ {text} }}", x=values(6, 3), **arrays)
    training = ckplan.build_training_graph(model, training=True)
    check_training_graph(training)
    (split,) = (node for node in training.model.graph if node.op_type == "Split")
    assert len(split.outputs) == 5
    ran = reference(training.model)
    for i in range(3):
        expected = MOMENTUM * arrays[f"m{i}"] + (1 - MOMENTUM) * values(6, 3).mean(0)
        np.testing.assert_allclose(ran[training.updates[f"m{i}"]], expected, rtol=1e-6)


@pytest.mark.parametrize(("size", "means"), [(6, 2), (600, 4)])
def test_means_of_a_large_tensor_are_taken_over_places_first(size, means):
    model = parse(
        f"g (float[2,3,{size},{size}] x, float[3] s, float[3] b, float[3] m, float[3] v) => (float loss) {{"
        " y, m2, v2 = BatchNormalization <training_mode = 1> (x, s, b, m, v)"
        " loss = ReduceSumSquare <keepdims = 0> (y) }"
    )
    nodes = ckplan.build_training_graph(model, loss="loss", wrt=["s"], training=True).model.graph
    assert sum(node.op_type == "ReduceMean" for node in nodes) == means
