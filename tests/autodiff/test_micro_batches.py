"""Networks in blocks of the samples: the gradients, the bits, the memory, and what stays whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import ckplan
from ckplan.autodiff import TrainingGraph, build_training_graph
from ckplan.errors import UsageError
from ckplan.keys import PHASE
from ckplan.meter.inputs import make_inputs
from ckplan.planner import lower_bound
from ckplan.planner.demanded_order import demanded_order
from sample_models.catalogue import SMALL
from tests.autodiff.gradcheck import check_close, check_training_graph, onnxruntime_run, parse, reference, values

SAMPLES = 4
SQUARES = "e = Mul(p, p) loss = ReduceMean<keepdims=0>(e)"


def network(loss: str = SQUARES, dtype: type = np.float64, **more: np.ndarray) -> ir.Model:
    """Convolution, normalisation, rows of places, a product with a number for each sample, and a layer."""
    kind = "double" if dtype is np.float64 else "float"
    arrays = {
        "w": values(3, 2, 3, 3, seed=1),
        "scale": values(3, seed=2),
        "shift": values(3, seed=3),
        "mean": values(3, seed=4),
        "variance": 1 + values(3, seed=5) ** 2,
        "each": values(SAMPLES, 1, 3, seed=6),
        "v": values(3, 5, seed=7),
    }
    numbers = {name: array.astype(dtype) for name, array in {**arrays, **more}.items()}
    return parse(
        f"""g ({kind}[{SAMPLES},2,4,4] x) => ({kind}[] loss, {kind}[{SAMPLES},16,5] p) {{
            c = Conv<pads=[1,1,1,1]>(x, w)
            n = BatchNormalization(c, scale, shift, mean, variance)
            r = Sigmoid(n)
            f = Reshape(r, shape)
            t = Transpose<perm=[0,2,1]>(f)
            m = Mul(t, each)
            p = MatMul(m, v)
            {loss}
        }}""",
        **numbers,
        first=np.asarray(0),
        shape=np.asarray([SAMPLES, 3, 16]),
    )


def graph_of(model: ir.Model, chunks: int | str = "batch=2", **options: Any) -> TrainingGraph:
    return build_training_graph(model, loss="loss", chunks=chunks, **options)


def forward_of(training: TrainingGraph) -> list[str]:
    return [node.op_type for node in training.model.graph if node.metadata_props[PHASE] == "forward"]


def same_as_whole(
    cut: TrainingGraph, whole: TrainingGraph, dtype: type = np.float64, rtol: float = 1e-11
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Hold every output with blocks against that without; return both."""
    feeds = {"x": values(SAMPLES, 2, 4, 4, seed=9).astype(dtype)}
    run = reference if dtype is np.float64 else onnxruntime_run  # which has no convolutions of float64
    expected, found = (run(made.model, feeds) for made in (whole, cut))
    assert list(found) == list(expected)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=rtol, atol=rtol, err_msg=name)
    return expected, found


@pytest.mark.parametrize(("asked", "blocks"), [(2, 2), (3, 2), (4, 4), (64, 4)])
def test_gradients_agree_with_finite_differences(asked: int, blocks: int) -> None:
    cut, whole = graph_of(network(), f"batch={asked}"), graph_of(network(), "off")
    assert forward_of(cut).count("Conv") == blocks
    assert cut.notes[0].startswith(f"samples 0..{SAMPLES - 1} in {blocks} pieces: '")
    check_training_graph(whole, {"x": values(SAMPLES, 2, 4, 4, seed=9)})
    same_as_whole(cut, whole)


def test_what_is_made_sample_by_sample_is_equal_to_the_bit() -> None:
    cut, whole = (graph_of(network(dtype=np.float32), chunks, retain_grad=["x"]) for chunks in ("batch=4", "off"))
    expected, found = same_as_whole(cut, whole, np.float32, rtol=1e-5)
    for name in ("loss", whole.retained["x"]):
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


@pytest.mark.parametrize("blocks", [2, 4])
def test_an_output_is_joined_of_blocks(blocks: int) -> None:
    model = network()
    cut, whole = (build_training_graph(model, loss="mean:p", chunks=chunks) for chunks in (f"batch={blocks}", "off"))
    assert "Concat" in forward_of(cut)
    same_as_whole(cut, whole)


@pytest.mark.parametrize("loss", ["loss", "mean:p", "mse:p", "cross-entropy:p"])
@pytest.mark.parametrize("blocks", [2, 4])
def test_a_block_goes_through_its_loss_and_back_before_the_next_one_begins(loss: str, blocks: int) -> None:
    model = network(dtype=np.float32)
    cut, whole = (build_training_graph(model, loss=loss, chunks=chunks) for chunks in (f"batch={blocks}", "off"))
    problem = ckplan.problem_of(cut.model)
    order = demanded_order(problem)
    for block in range(1, blocks):
        before = (step for step, index in enumerate(order) if f"/block{block}/" in problem.ops[index].name)
        behind = (step for step, index in enumerate(order) if problem.ops[index].name.endswith(f"/block{block - 1}"))
        assert max(before) < min(behind)
    feeds = dict(make_inputs(whole.model).arrays)
    expected, found = (onnxruntime_run(made.model, feeds) for made in (whole, cut))
    np.testing.assert_array_equal(found[cut.loss], expected[whole.loss])
    for name, gradient in whole.gradients.items():
        np.testing.assert_allclose(found[cut.gradients[name]], expected[gradient], rtol=1e-4, atol=1e-6, err_msg=name)


def test_a_value_whose_gradient_is_asked_for_is_whole() -> None:
    cut, whole = (graph_of(network(), chunks, retain_grad=["r"]) for chunks in ("batch=2", "off"))
    counts = [forward_of(cut).count(name) for name in ("Conv", "Sigmoid", "MatMul")]
    assert counts == [2, 2, 1]
    assert any("'r/anchored' reads all samples at once" in note for note in cut.notes)
    same_as_whole(cut, whole)


def test_what_mixes_samples_ends_the_region() -> None:
    loss = "s = CumSum(p, first) q = MatMul(s, u) e = Mul(q, q) loss = ReduceMean<keepdims=0>(e)"
    model = network(loss, u=values(5, 5, seed=8))
    cut, whole = (graph_of(model, chunks) for chunks in ("batch=2", "off"))
    assert forward_of(cut).count("MatMul") == 3  # two blocks of the layer, and the one behind the sum
    assert any("CumSum" in note and "is not cut" in note for note in cut.notes)
    same_as_whole(cut, whole)


def test_each_block_draws_no_mask_of_its_own() -> None:
    text = """g (float[4,3] x) => (float[] loss) {
        h = MatMul(x, w) d = Dropout(h, ratio, on) p = MatMul(d, v) loss = ReduceMean<keepdims=0>(p) }"""
    more = {"ratio": np.asarray(0.5, np.float32), "on": np.asarray(True)}
    model = parse(text, w=values(3, 3).astype(np.float32), v=values(3, 3, seed=1).astype(np.float32), **more)
    cut = build_training_graph(model, loss="loss", wrt=["w", "v"], chunks="batch=2")
    counts = [forward_of(cut).count(name) for name in ("MatMul", "Dropout")]
    assert counts == [3, 1]


@pytest.mark.parametrize(
    "text",
    [
        "g (float[1,3] x) => (float[] loss) { h = MatMul(x, w) loss = ReduceSum<keepdims=0>(h) }",
        "g (float[0,3] x) => (float[] loss) { h = MatMul(x, w) loss = ReduceSum<keepdims=0>(h) }",
        "g (float[4,3] x) => (float[] loss) { h = Mul(x, b) loss = ReduceSum<keepdims=0>(h) }",
        "g () => (float[] loss) { h = MatMul(w, w) loss = ReduceSum<keepdims=0>(h) }",
    ],
    ids=["one sample", "no sample", "nothing heavy", "no input"],
)
def test_nothing_to_cut(text: str) -> None:
    model = parse(text, w=values(3, 3).astype(np.float32), b=values(3).astype(np.float32))
    with pytest.raises(UsageError, match="nothing that is heavy works sample by sample"):
        build_training_graph(model, loss="loss", chunks="batch=2")


def test_a_number_for_all_kinds_leaves_the_batch_whole() -> None:
    with pytest.raises(UsageError, match="there is nothing to cut"):
        graph_of(network(), 2)


@pytest.mark.parametrize("name", ["unet_tiny", "gpt_tiny", "bert_tiny", "resnet_tiny", "mobilenet_tiny", "mlp"])
def test_networks(name: str) -> None:
    whole, cut = (ckplan.open_model(SMALL[name](), dims={"batch": 4}, chunks=chunks) for chunks in ("off", "batch=2"))
    assert cut.training is not None
    (region,) = [region for region in cut.training.regions if region.kind == "batch"]
    assert (region.rows, region.pieces) == (4, 2)
    if name != "mlp":  # whose weights, summed over blocks, are larger than all that is made of the samples
        assert lower_bound(cut.problem)[0] < lower_bound(whole.problem)[0]
    feeds = dict(make_inputs(whole.model).arrays)
    check_close(*(onnxruntime_run(step.model, feeds) for step in (cut, whole)))
