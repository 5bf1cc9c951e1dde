"""Loss heads in chunks: the gradients, the bits, and what is left as it is."""

from __future__ import annotations

import itertools
import math

import numpy as np
import onnx_ir as ir
import pytest

from ckplan import keys
from ckplan.autodiff import build_training_graph
from ckplan.autodiff.pieces.regions import largest_divisor, near_divisor
from ckplan.autodiff.pieces.row_writing import block_of
from ckplan.errors import UsageError
from ckplan.model.bodies import bodies_of
from ckplan.model.costs import node_cost
from tests.autodiff.gradcheck import check_training_graph, onnxruntime_run, parse, values
from tests.autodiff.softmax_heads import CLASSES, FEATURES, LABELS, LAYERS, SAMPLES, X

LOSSES = {
    "mean": "loss = SoftmaxCrossEntropyLoss(logits, labels)",
    "sum": 'loss = SoftmaxCrossEntropyLoss<reduction="sum">(logits, labels)',
    "ignoring": "loss = SoftmaxCrossEntropyLoss<ignore_index=4>(logits, labels)",
    "weighted": "loss = SoftmaxCrossEntropyLoss<ignore_index=4>(logits, labels, classes)",
    "single": 'losses = SoftmaxCrossEntropyLoss<reduction="none">(logits, labels) '
    "loss = ReduceSumSquare<keepdims=0>(losses)",
}


def head(layer: str, loss: str, dtype: str = "double") -> ir.Model:
    line, shape = LAYERS[layer]
    numbers = {"v": values(FEATURES, FEATURES, seed=1), "w": values(*shape, seed=2), "b": values(CLASSES, seed=3)}
    if "weighted" in loss or "classes" in LOSSES[loss]:
        numbers["classes"] = np.abs(values(CLASSES, seed=4)) + 0.5
    numbers = {name: array for name, array in numbers.items() if name != "b" or "b" in line.replace("trans", "")}
    kind = np.float64 if dtype == "double" else np.float32
    return parse(
        f"g ({dtype}[{SAMPLES},{FEATURES}] x, int64[{SAMPLES}] labels) => ({dtype}[] loss) "
        f"{{ h = MatMul(x, v) {line} {LOSSES[loss]} }}",
        **{name: array.astype(kind) for name, array in numbers.items()},
    )


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("chunks", ["loss=3", "loss=3x2"])
def test_gradients_agree_with_finite_differences(layer: str, loss: str, chunks: str) -> None:
    training = build_training_graph(head(layer, loss), chunks=chunks)
    twice = chunks == "loss=3x2" or loss == "single"  # a sum of squares of losses tells their gradients afterwards
    assert sum(node.op_type == "Scan" for node in training.model.graph) == 2 * twice
    (note,) = [n for n in training.notes if f"samples 0..{SAMPLES - 1} in 3 pieces: 'logits'" in n]
    assert note.endswith("made twice") == twice
    check_training_graph(training, {"x": X, "labels": LABELS})


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("passes", ["", "x2"])
def test_what_belongs_to_a_sample_is_equal_to_the_bit(layer: str, loss: str, passes: str) -> None:
    feeds = {"x": X.astype(np.float32), "labels": LABELS}
    found = []
    for chunks in ("off", f"loss=3{passes}"):
        training = build_training_graph(head(layer, loss, "float"), chunks=chunks, retain_grad=["h"])
        found.append(onnxruntime_run(training.model, feeds))
    whole, cut = found
    assert whole.keys() == cut.keys()
    for name in ("loss", "h_grad", "v_grad"):
        assert np.array_equal(whole[name], cut[name])
    for name in whole:
        np.testing.assert_allclose(whole[name], cut[name], rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("wrt", ["x", "w", "b", "classes"])
@pytest.mark.parametrize("chunks", ["loss=2", "loss=2x2"])
def test_single_gradients(wrt: str, chunks: str) -> None:
    training = build_training_graph(head("gemm", "weighted"), chunks=chunks, wrt=[wrt])
    check_training_graph(training, {"x": X, "labels": LABELS})


@pytest.mark.parametrize("after", ["loss = Mul(mean, mean)", "loss = Exp(mean)"])
def test_one_pass_does_for_whatever_becomes_of_the_loss(after: str) -> None:
    model = parse(
        f"g (double[{SAMPLES},{FEATURES}] x, int64[{SAMPLES}] labels) => (double[] loss) "
        f"{{ h = MatMul(x, v) logits = MatMul(h, w) mean = SoftmaxCrossEntropyLoss(logits, labels) {after} }}",
        v=values(FEATURES, FEATURES, seed=1),
        w=values(FEATURES, CLASSES, seed=2),
    )
    training = build_training_graph(model, chunks=3)
    assert not any(node.op_type == "Scan" for node in training.model.graph)
    check_training_graph(training, {"x": X, "labels": LABELS})


@pytest.mark.parametrize("scale", [8.0, "input"])
def test_a_scaled_loss_has_the_same_gradients(scale: float | str) -> None:
    feeds = {"x": X.astype(np.float32), "labels": LABELS}
    plain = build_training_graph(head("tied", "ignoring", "float"), chunks=3)
    scaled = build_training_graph(head("tied", "ignoring", "float"), chunks=3, loss_scale=scale)
    given = {"loss_scale": np.asarray(8, np.float32)} if scale == "input" else {}
    expected, found = onnxruntime_run(plain.model, feeds), onnxruntime_run(scaled.model, {**feeds, **given})
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name])


@pytest.mark.parametrize("chunks", ["loss=3", "loss=3x2"])
def test_a_table_that_is_looked_up_as_well(chunks: str) -> None:
    wide = 2 * 32  # two bands of features
    model = parse(
        f"g (int64[{SAMPLES}] tokens, int64[{SAMPLES}] labels) => (double[] loss) "
        "{ h = Gather(w, tokens) t = Transpose<perm=[1,0]>(w) logits = MatMul(h, t) "
        "loss = SoftmaxCrossEntropyLoss(logits, labels) }",
        w=values(CLASSES, wide, seed=2) / 8,
    )
    feeds = {"tokens": np.asarray([0, 4, 4, -1, 7, 0]), "labels": LABELS}
    whole = onnxruntime_run(build_training_graph(model).model, feeds)
    cut = onnxruntime_run(build_training_graph(model, chunks=chunks).model, feeds)
    for name in whole:
        np.testing.assert_allclose(cut[name], whole[name], rtol=1e-12, atol=1e-15)


def test_what_is_looked_up_is_scattered_once_and_not_into_each_band() -> None:
    model = parse(
        f"g (int64[{SAMPLES}] tokens, int64[{SAMPLES}] labels) => (double[] loss) "
        "{ h = Gather(w, tokens) t = Transpose<perm=[1,0]>(w) logits = MatMul(h, t) "
        "loss = SoftmaxCrossEntropyLoss(logits, labels) }",
        w=values(3 * 256, 8, seed=2) / 8,
    )
    feeds = {"tokens": np.asarray([0, 300, 300, -1, 767, 0]), "labels": LABELS}
    cut = build_training_graph(model, chunks="loss=3")
    bands = [n for n in cut.model.graph if n.op_type == "Gemm" and n.outputs[0].shape == ir.Shape((256, 8))]
    assert len({n.outputs[0].name for n in bands}) == 3 * 3
    into = [
        n.inputs[0].shape.numpy()
        for n in cut.model.graph
        if n.op_type == "ScatterElements" and n.inputs[2].dtype.is_floating_point()
    ]
    assert sorted(into) == [(2, 768), (2, 768), (2, 768), ((SAMPLES + 1) * 8,)]
    whole, found = onnxruntime_run(build_training_graph(model).model, feeds), onnxruntime_run(cut.model, feeds)
    for name in whole:
        np.testing.assert_allclose(found[name], whole[name], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("chunks", ["loss=3", "loss=3x2"])
def test_logits_never_exist_whole(chunks: str) -> None:
    training = build_training_graph(head("tied", "mean"), chunks=chunks)
    sizes = [
        math.prod(value.shape.numpy())
        for node in ir.traversal.RecursiveGraphIterator(training.model.graph)
        for value in node.outputs
        if value.shape is not None and value.shape.is_static()
    ]
    assert max(sizes) < SAMPLES * CLASSES


def test_logits_that_something_else_reads_stay_whole() -> None:
    model = parse(
        f"g (double[6,3] x, int64[6] labels) => (double[] loss, double[6,{CLASSES}] logits) "
        "{ logits = MatMul(x, w) loss = SoftmaxCrossEntropyLoss(logits, labels) }",
        w=values(FEATURES, CLASSES, seed=2),
    )
    assert build_training_graph(model, loss="loss", chunks=3).notes  # as a mere output they go
    for options in ({"retain_grad": ["logits"]}, {"loss": ["loss", "sum:logits"]}, {"no_grad": ["logits"]}):
        with pytest.raises(UsageError, match="nothing to cut"):
            build_training_graph(model, **{"loss": "loss", **options}, chunks=3)


def test_a_head_that_stays_whole_is_told_as_a_region() -> None:
    (region,) = [one for one in build_training_graph(head("tied", "mean")).regions if one.kind == "loss"]
    assert (region.tensor, region.rows, region.pieces) == ("logits", SAMPLES, 1)
    assert region.bytes == SAMPLES * CLASSES * 8


@pytest.mark.parametrize(("number", "limit"), list(itertools.product([1, 7, 12, 1024], [1, 5, 100])))
def test_largest_divisor(number: int, limit: int) -> None:
    found = largest_divisor(number, limit)
    assert number % found == 0
    assert found <= max(limit, 1)
    assert not any(number % other == 0 for other in range(found + 1, min(limit, number) + 1))


@pytest.mark.parametrize(
    ("number", "wanted", "found"),
    [(32000, 16, 16), (50257, 16, 29), (50257, 4, 29), (21, 4, 7), (7919, 16, 1), (3, 8, 3)],
)
def test_classes_go_into_about_as_many_pieces(number: int, wanted: int, found: int) -> None:
    assert near_divisor(number, wanted) == found


def test_rows_of_a_gradient_cost_what_their_blocks_do() -> None:
    """A block is made once, whatever the number of rows, and in whatever order the branches stand in the file."""
    (scan,) = [
        node
        for node in build_training_graph(head("tied", "mean"), chunks="loss=3x2").model.graph
        if node.op_type == "Scan" and node.metadata_props[keys.PHASE] == "backward"
    ]
    (choice,) = [node for node in bodies_of(scan)[0] if node.op_type == "If"]
    block, pieces = choice.attributes.get_graph("then_branch"), int(scan.metadata_props[keys.PIECES])
    assert block is not None
    assert 1 < pieces < CLASSES
    flops = node_cost(scan).flops
    made = sum(node_cost(node).flops for node in block)
    assert pieces * made <= flops < CLASSES * made
    turned = dict(reversed(list(choice.attributes.items())))
    choice.attributes.clear()
    choice.attributes.update(turned)
    assert node_cost(scan).flops == flops


@pytest.mark.parametrize(
    ("shape", "rows"),
    [((32000, 512), 32), ((32000, 2048), 16), ((50257, 768), 32), ((7919, 4096), 8), ((50, 64), 16), ((15, 64), 0)],
)
def test_blocks_of_tables(shape: tuple[int, int], rows: int) -> None:
    table = ir.Value(name="table", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(shape))
    assert block_of(table) == rows
