"""Masks of Dropout in bits: the same numbers to the bit, an eighth of the bytes kept."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

import ckplan
from ckplan import keys
from ckplan.autodiff.pieces.regions import Region
from ckplan.errors import UsageError
from ckplan.pipeline import step_of
from tests.autodiff.gradcheck import parse, values

EVEN, ODD = (16, 96), (101, 43)
"""Shapes of a number of elements that bytes are filled by, and of one that they are not."""


def network(
    shape: tuple[int, int] = EVEN, node: str = "Dropout (t, ratio, yes)", opset: int = 21, dtype: type = np.float32
) -> ir.Model:
    """Three layers, each dropped out of, and a loss."""
    samples, width = shape
    layers = " ".join(
        f"h{k} = MatMul ({'x' if k == 0 else f'd{k - 1}'}, w{k}) t{k} = Tanh (h{k}) "
        f"d{k} = {node.replace('t,', f't{k},')}"
        for k in range(3)
    )
    kind = {np.float32: "float", np.float16: "float16", np.float64: "double"}[dtype]
    arrays = {f"w{k}": values(width, width, seed=k).astype(dtype) / 4 for k in range(3)}
    model = parse(
        f"g () => ({kind} loss) {{ {layers} q = Mul (d2, d2) loss = ReduceSum <keepdims = 0> (q) }}",
        x=values(samples, width, seed=7).astype(dtype) / 4,
        ratio=np.float32(0.3),
        yes=np.array(True),
        **arrays,
    )
    model.graph.opset_imports[""] = opset
    return model


def graph_of(chunks: str, model: ir.Model | None = None, **options: Any) -> ckplan.TrainingGraph:
    options = {"training": True, "wrt": ["w*"], **options}
    return ckplan.build_training_graph(model or network(), chunks=chunks, **options)


def steps(model: ir.Model, feeds: dict[str, np.ndarray] | None = None, count: int = 3) -> list[np.ndarray]:
    """All outputs of so many steps of one session."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    content = ir.to_proto(model).SerializeToString()
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return [output for _ in range(count) for output in session.run(None, feeds or {})]


def assert_equal_to_the_bit(one: ir.Model, other: ir.Model, feeds: dict[str, np.ndarray] | None = None) -> None:
    first, second = steps(one, feeds), steps(other, feeds)
    assert len(first) == len(second)
    assert not np.array_equal(first[0], first[len(first) // 3])  # each step has masks of its own
    for mine, theirs in zip(first, second, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("shape", [EVEN, ODD])
@pytest.mark.parametrize("opset", [21, 22])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gradients_are_the_same_to_the_bit(shape, opset, dtype):
    packed = graph_of("masks=8", network(shape, opset=opset, dtype=dtype))
    assert [region.pieces for region in packed.regions] == [8, 8, 8]
    assert_equal_to_the_bit(graph_of("off", network(shape, opset=opset, dtype=dtype)).model, packed.model)


def test_half_precision():
    packed = graph_of("masks=8", network(dtype=np.float16))
    assert len(packed.regions) == 3
    assert_equal_to_the_bit(graph_of("off", network(dtype=np.float16)).model, packed.model)


def test_a_fed_ratio():
    models = []
    for chunks in ("off", "masks=8"):
        model = network()
        ratio = model.graph.initializers.pop("ratio")
        ratio.const_value = None
        model.graph.inputs.append(ratio)
        models.append(graph_of(chunks, model).model)
    assert_equal_to_the_bit(*models, {"ratio": np.array(0.6, np.float32)})


def test_a_node_that_drops_in_one():
    """Without --training a Dropout in training mode stays one node, which outputs the mask as well."""
    node = "Dropout <seed = 5> (t, ratio, yes)"
    whole, packed = (graph_of(chunks, network(node=node), training=False) for chunks in ("off", "masks=8"))
    assert [node.op_type for node in packed.model.graph].count("Dropout") == 3
    assert packed.regions[0].node == next(n.name for n in packed.model.graph if n.op_type == "Dropout")
    assert_equal_to_the_bit(whole.model, packed.model)


@pytest.mark.parametrize("shape", [EVEN, ODD])
def test_bits_are_planes_of_the_mask(shape):
    model = graph_of("masks=8", network(shape)).model
    (mask, *_), (bits, *_) = (
        [n.outputs[0] for n in model.graph if n.metadata_props.get(keys.ONCE) == mark] for mark in ("mask", "bits")
    )
    model.graph.outputs.extend((mask, bits))
    *_, drawn, packed = steps(model, count=1)
    planes = np.pad(drawn.reshape(-1), (0, -drawn.size % 8)).reshape(8, -1)
    np.testing.assert_array_equal(packed, np.packbits(planes, axis=0, bitorder="little"))


def test_nothing_but_bits_is_kept_of_a_mask():
    def kept(chunks: str) -> list[int]:
        """Bytes of what cannot be made again and the backward pass needs."""
        problem = step_of(graph_of(chunks)).problem
        return [problem.tensors[t].bytes for t in problem.stashed if not problem.ops[problem.producer[t]].recomputable]

    assert kept("off") == [16 * 96] * 3
    assert kept("masks=8") == [16 * 96 // 8] * 3


@pytest.mark.parametrize("shape", [EVEN, ODD])
def test_a_plan_takes_less_and_computes_the_same(shape):
    whole, packed = (step_of(graph_of(chunks, network(shape))) for chunks in ("off", "masks=8"))
    less = ckplan.rewrite(packed, strategy="memory")
    assert less.plan.recomputed
    assert less.after.peak_activations < ckplan.rewrite(whole, strategy="memory").after.peak_activations
    assert ckplan.measure(less).peak_activations == less.after.peak_activations
    assert_equal_to_the_bit(whole.ordered, less.model)


def test_what_is_packed_is_told():
    packed = graph_of("masks=8", network((256, 256)))
    told = [f"mask of '{packed.regions[0].node}' 64.0 KiB -> 8.0 KiB, and 2 more like this"]
    assert json.loads(packed.model.metadata_props[keys.CHUNKS]) == told
    assert told[0] in packed.notes
    assert "/" not in packed.regions[0].node
    assert str(Region("masks", "m", "elements", 17, 17, "drop", 8)) == "mask of 'drop' 17 B -> 3 B"


def test_small_masks_stay():
    assert not graph_of("off", network((8, 64))).regions
    with pytest.raises(
        UsageError, match="no Dropout draws a mask of 1024 elements or more that the backward pass reads"
    ):
        graph_of("masks=8", network((8, 64)))


def test_masks_stay_that_bodies_read():
    model = parse(
        """g (bool high) => (float loss) {
            t = Mul (w, w)
            d, k = Dropout (t, ratio, yes)
            c = If (high) <
                then_branch = a () => (float[16,96] u) { u = Where (k, d, t) },
                else_branch = b () => (float[16,96] v) { v = Tanh (d) }
            >
            loss = ReduceSum <keepdims = 0> (c)
        }""",
        w=values(*EVEN).astype(np.float32),
        ratio=np.float32(0.3),
        yes=np.array(True),
    )
    assert not graph_of("off", model).regions
    assert graph_of("off", model).gradients == {"w": "w_grad"}


def test_masks_go_into_eight_pieces_or_none():
    for chunks in ("masks=4", "masks=16"):
        with pytest.raises(UsageError, match="a byte has 8 bits"):
            graph_of(chunks)
    assert [region.pieces for region in graph_of("masks=1").regions] == [1, 1, 1]
