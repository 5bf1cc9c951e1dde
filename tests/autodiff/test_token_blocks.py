"""Stretches between attentions in blocks of the tokens: the gradients, what is cut, and what is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import ckplan
from ckplan.autodiff import TrainingGraph, build_training_graph
from ckplan.errors import UsageError
from ckplan.meter.inputs import make_inputs
from sample_models.catalogue import SMALL
from tests.autodiff.gradcheck import check_close, check_training_graph, onnxruntime_run, parse, values

TOKENS, WIDTH, INNER = 6, 3, 8


def layers(behind: str = "e = Mul(y, y) loss = ReduceSum<keepdims=0>(e)") -> ir.Model:
    """Embeddings, an attention, and a gated MLP with a residual connection around it."""
    arrays = {
        "words": values(5, WIDTH, seed=1),
        "up": values(WIDTH, INNER, seed=2),
        "gate": values(WIDTH, INNER, seed=3),
        "down": values(INNER, WIDTH, seed=4),
        "places": values(TOKENS, WIDTH, seed=5),
        "scale": values(WIDTH, seed=6),
    }
    return parse(
        f"""g (int64[2,{TOKENS}] ids) => (double[] loss) {{
            found = Gather(words, ids)
            x = Add(found, places)
            t = Transpose<perm=[0,2,1]>(x)
            s = MatMul(x, t)
            p = Softmax<axis=-1>(s)
            a = MatMul(p, x)
            r = Add(x, a)
            n = LayerNormalization<axis=-1>(r, scale)
            u = MatMul(n, up)
            g = MatMul(n, gate)
            k = Sigmoid(g)
            m = Mul(u, k)
            d = MatMul(m, down)
            y = Add(r, d)
            {behind}
        }}""",
        **arrays,
    )


def graph_of(model: ir.Model, chunks: str, **options: Any) -> TrainingGraph:
    return build_training_graph(model, loss="loss", chunks=chunks, **options)


IDS = {"ids": np.asarray([[0, 1, 4, 2, 3, 1], [2, 2, 0, 3, 1, 4]])}


@pytest.mark.parametrize(("asked", "blocks"), [(2, 2), (4, 3), (64, 6)])
def test_gradients_agree_with_finite_differences(asked: int, blocks: int) -> None:
    cut, whole = graph_of(layers(), f"tokens={asked}"), graph_of(layers(), "off")
    check_training_graph(whole, IDS)
    (region,) = [region for region in cut.regions if region.kind == "tokens"]
    assert (region.rows, region.pieces, region.bytes) == (TOKENS, blocks, 2 * TOKENS * INNER * 8)
    assert cut.notes[0].startswith(f"tokens 0..{TOKENS - 1} in {blocks} pieces: '")
    expected, found = (onnxruntime_run(made.model, IDS) for made in (whole, cut))
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-11, atol=1e-12, err_msg=name)


def test_what_is_inside_never_exists_for_all_tokens() -> None:
    cut = graph_of(layers(), "tokens=3")
    shapes = {tuple(v.shape or ()) for node in cut.model.graph for v in node.outputs if v.name and v.shape is not None}
    assert (2, TOKENS // 3, INNER) in shapes
    assert (2, TOKENS, INNER) not in shapes


def test_a_stretch_with_no_more_inside_than_at_its_ends_stays_whole() -> None:
    ends = parse(
        f"g (double[2,{TOKENS},{WIDTH}] x) => (double[] loss) {{ y = MatMul(x, w) loss = ReduceSum<keepdims=0>(y) }}",
        w=values(WIDTH, WIDTH),
    )
    with pytest.raises(UsageError, match="token by token"):
        graph_of(ends, "tokens=2")


def test_a_value_whose_gradient_is_asked_for_is_whole() -> None:
    cut, whole = (graph_of(layers(), chunks, retain_grad=["r", "n"]) for chunks in ("tokens=2", "off"))
    expected, found = (onnxruntime_run(made.model, IDS) for made in (whole, cut))
    assert set(cut.retained) == {"r", "n"}
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-11, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("name", ["gpt_tiny", "bert_tiny"])
@pytest.mark.parametrize("chunks", ["tokens=4", "loss=4,attention=2,tokens=2,batch=2"])
def test_networks(name: str, chunks: str) -> None:
    whole, cut = (ckplan.open_model(SMALL[name](), dims={"batch": 2}, chunks=asked) for asked in ("off", chunks))
    feeds = dict(make_inputs(whole.model).arrays)
    check_close(*(onnxruntime_run(step.model, feeds) for step in (cut, whole)))
