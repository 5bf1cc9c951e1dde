"""What `einsum` says of the kernel's allocations, asked of the kernel."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ckplan.meter import measure
from ckplan.planner.problem import Freed
from ckplan.runtime.kernels.einsum import einsum_pieces, einsum_workspace
from tests.runtime.forked import workspace_seen

SIZES = {"b": 16, "h": 8, "q": 64, "k": 32, "d": 24, "i": 64, "j": 32, "l": 16}

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
    assert seen == einsum_workspace(equation, shapes, 4)


def test_an_equation_that_does_not_fit() -> None:
    with pytest.raises(ValueError, match="has 2 operands, not 1"):
        einsum_workspace("ij,jk->ik", [(2, 3)], 4)
    with pytest.raises(ValueError, match="rank 3"):
        einsum_workspace("ij->ji", [(2, 3, 4)], 4)


@pytest.mark.parametrize("equation", EQUATIONS)
def test_what_is_taken_is_what_is_given_back_and_more(equation: str) -> None:
    terms = equation.partition("->")[0].split(",")
    shapes = [tuple(SIZES[c] for c in term.replace("...", "bh" if len(term) > 3 else "")) for term in terms]
    held: dict[int, int] = {}
    for place, piece in enumerate(einsum_pieces(equation, shapes, 4)):
        if isinstance(piece, Freed):
            del held[place - piece.back]
        elif isinstance(piece, int):
            held[place] = piece
    assert (
        sum(held.values())
        <= einsum_workspace(equation, shapes, 4) + 4 * SIZES["q"] * SIZES["k"] * SIZES["b"] * SIZES["h"]
    )


@pytest.mark.parametrize(("queries", "keys"), [(192, 256), (192, 320), (384, 320)])
def test_the_arena_grows_by_the_tensors_that_the_kernel_takes(queries: int, keys: int, tmp_path: Path) -> None:
    """As one tensor of the size of all they would take 11, 19 and 23 MiB; they take 15, 15 and 31."""
    nodes = [
        helper.make_node("Neg", ["x"], ["a"], name="a"),
        helper.make_node("Neg", ["z"], ["b"], name="b"),
        helper.make_node("Einsum", ["a", "b"], ["y"], equation="bqhd,bkhd->bhqk", name="e"),
        helper.make_node("ReduceMax", ["y"], ["r"], name="r", keepdims=0),
    ]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, length, 8, 64))
        for name, length in (("x", queries), ("z", keys))
    ]
    graph = helper.make_graph(nodes, "probe", inputs, [helper.make_tensor_value_info("r", TensorProto.FLOAT, [])])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), tmp_path / "probe.onnx"
    )
    found = measure(tmp_path / "probe.onnx", runs=1, heap=False, inside=True)
    assert found.counters is not None
    assert found.counters.steady is not None
    assert found.inside is not None
    assert found.counters.steady.held == found.inside.arena.steady.held


def test_the_output_lies_behind_the_product_that_is_copied_into_it(tmp_path: Path) -> None:
    """What is freed before it is large enough for two of its size; behind it there would not be room for that."""
    nodes = [
        helper.make_node("Neg", ["x"], ["a"], name="a"),
        helper.make_node("Einsum", ["x", "w"], ["y"], equation="ij,jk->ik", name="e"),
        helper.make_node("Concat", ["y", "y"], ["z"], name="z", axis=0),
        *(helper.make_node("ReduceMax", [n], [f"r{n}"], name=f"r{n}", keepdims=0) for n in "zay"),
        helper.make_node("Sum", ["rz", "ra", "ry"], ["r"], name="r"),
    ]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (256, 256)) for name in "xw"]
    result = helper.make_tensor_value_info("r", TensorProto.FLOAT, [])
    graph = helper.make_graph(nodes, "probe", inputs, [result])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), tmp_path / "probe.onnx"
    )
    found = measure(tmp_path / "probe.onnx", runs=1, heap=False, inside=True)
    assert found.inside is not None
    assert found.steady_without_pattern is not None
    assert found.steady_without_pattern.held == found.inside.arena.without_pattern.held
