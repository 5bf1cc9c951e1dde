"""Gradients of values with many readers: summed as they come, at the end, or by what takes less memory."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ckplan.autodiff import TrainingGraph, build_training_graph
from ckplan.errors import UsageError
from ckplan.planner import simulate
from ckplan.runtime import problem_of
from tests.autodiff.gradcheck import check_training_graph, onnxruntime_run, parse, values

FAN = """
g (float[64] x) => (float loss) {
    h = Mul(x, w)
    a = Sin(h)
    b = Exp(a)
    c = Sigmoid(h)
    d = Tanh(c)
    e = Cos(h)
    f = Softplus(h)
    s = Sum(b, d, e, f)
    loss = ReduceSum <keepdims = 0> (s)
}
"""

FEEDS = {"x": values(64, seed=1).astype(np.float32)}


def fan(**options) -> TrainingGraph:
    return build_training_graph(parse(FAN, w=values(64).astype(np.float32)), **options)


def sums(training: TrainingGraph) -> list[int]:
    """Numbers of inputs of the nodes that sum gradients."""
    backward = [node for node in training.model.graph if node.metadata_props["pkg.ckplan.phase"] == "backward"]
    return [len(node.inputs) for node in backward if node.op_type in ("Add", "Sum")]


@pytest.mark.parametrize("mode", ["auto", "eager", "lazy"])
def test_the_numbers_are_the_same_to_the_bit(mode):
    expected = onnxruntime_run(fan(accumulation="eager").model, FEEDS)
    training = fan(accumulation=mode)
    onnx.checker.check_model(ir.to_proto(training.model), full_check=True)
    found = onnxruntime_run(training.model, FEEDS)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


def test_eagerly_there_is_a_running_sum_lazily_one_sum():
    assert sums(fan(accumulation="eager")) == [2, 2, 2]
    assert sums(fan(accumulation="lazy")) == [4]


def ladder(mode: str, rungs: int = 12) -> int:
    """Peak of activations, in tensors, of a chain of linear layers that all read one value."""
    layers = [f"a{i} = Add(z{i}, h) z{i + 1} = Mul(a{i}, c{i})" for i in range(rungs)]
    text = f"""g (float[64] x) => (float loss) {{
        h = Mul(x, w) z0 = Mul(x, x) {" ".join(layers)} loss = ReduceSum <keepdims = 0> (z{rungs})
    }}"""
    weights = {f"c{i}": values(64, seed=i).astype(np.float32) for i in range(rungs)}
    training = build_training_graph(parse(text, w=FEEDS["x"], **weights), wrt=["w"], accumulation=mode)
    problem = problem_of(training.model)
    return simulate(problem, range(len(problem.ops))).peak_activations // 256


def test_waiting_gradients_take_memory():
    assert ladder("eager") == ladder("auto") < 6
    assert ladder("lazy") >= 12


def test_gradients_that_would_only_wait_are_summed_as_they_come():
    assert sums(fan(accumulation="auto")) == [2, 2, 2]


RESIDUAL = """
g (float[64] x) => (float loss) {
    h = Mul(x, w)
    p = Add(h, u)
    q = Add(h, v)
    r = Add(h, t)
    a = Mul(p, q)
    b = Mul(a, r)
    loss = ReduceSum <keepdims = 0> (b)
}
"""


def test_gradients_that_are_outputs_anyway_are_summed_at_the_end():
    # Each gradient of h is that of an Add's other operand, too: an output of the file, alive to the end.
    weights = {name: values(64, seed=seed).astype(np.float32) for seed, name in enumerate("wuvt")}
    eager = build_training_graph(parse(RESIDUAL, **weights), accumulation="eager")
    auto = build_training_graph(parse(RESIDUAL, **weights), accumulation="auto")
    assert sums(eager) == [2, 2]
    assert sums(auto) == [3]
    expected, found = onnxruntime_run(eager.model, FEEDS), onnxruntime_run(auto.model, FEEDS)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


def test_a_retained_gradient_is_the_whole_sum():
    for mode in ("eager", "lazy"):
        training = fan(accumulation=mode, retain_grad=["h"])
        found = onnxruntime_run(training.model, FEEDS)
        np.testing.assert_array_equal(found["w_grad"], found["h_grad"] * FEEDS["x"])


def test_lazy_sums_belong_to_a_forward_node():
    told = []
    fan(accumulation="lazy", callbacks=[lambda forward, appended: told.extend(node.op_type for node in appended)])
    assert "Sum" in told


def test_double_precision_against_differences():
    model = parse(FAN.replace("float", "double"), w=values(64))
    check_training_graph(build_training_graph(model, accumulation="lazy"), {"x": values(64, seed=1)})


def test_unknown_mode():
    with pytest.raises(UsageError, match="the accumulation is 'later'; choose one of auto, eager, lazy"):
        fan(accumulation="later")
