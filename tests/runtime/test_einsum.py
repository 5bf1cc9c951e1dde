"""What `einsum` says of the kernel's allocations, asked of the kernel."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ckplan.runtime.einsum import einsum_workspace
from tests.runtime.forked import workspace_seen

SIZES = {"b": 16, "h": 8, "q": 64, "k": 32, "d": 24, "i": 64, "j": 32, "l": 16}
ROUNDING = 256
"""Bytes to which the arena rounds up each tensor that it hands out."""

EQUATIONS = (
    "bqhd,bkhd->bhqk",
    "bhqk,bkhd->bqhd",
    "bij,bi->bj",
    "bi,ij->bj",
    "...i,ij->...j",
    "ij->ji",
    "ij->i",
    "bii->bi",
    "ibi->b",
    "i,j->ij",
    "bij,bij->b",
    "ij,jk,kl->il",
    "ib,bj,ji->b",
    "ij,jk",
)


@pytest.mark.parametrize("equation", EQUATIONS)
def test_is_what_the_arena_shows(equation: str) -> None:
    terms = equation.partition("->")[0].split(",")
    shapes = [tuple(SIZES[c] for c in term.replace("...", "bh" if len(term) > 3 else "")) for term in terms]
    names = [f"x{index}" for index in range(len(terms))]
    # The first high-water also covers the making of the session, so another node has to run before.
    nodes = [
        helper.make_node("Neg", ["z"], ["first"], name="first"),
        helper.make_node("Einsum", names, ["y"], name="probed", equation=equation),
    ]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in zip(names, shapes, strict=True)
    ]
    graph = helper.make_graph(
        nodes,
        "probe",
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, [1]), *inputs],
        [onnx.ValueInfoProto(name="first"), onnx.ValueInfoProto(name="y")],
    )
    model = onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    )
    feeds = {name: np.ones(shape, np.float32) for name, shape in zip(names, shapes, strict=True)}
    seen = workspace_seen(model.SerializeToString(), {**feeds, "z": np.ones(1, np.float32)}, "probed")
    assert abs(seen - 4 * einsum_workspace(equation, shapes)) <= 8 * ROUNDING


def test_an_equation_that_does_not_fit() -> None:
    with pytest.raises(ValueError, match="has 2 operands, not 1"):
        einsum_workspace("ij,jk->ik", [(2, 3)])
    with pytest.raises(ValueError, match="rank 3"):
        einsum_workspace("ij->ji", [(2, 3, 4)])
