"""Seeds of nodes that draw random numbers."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from ckplan import build_training_graph
from ckplan.model.loading import normalise

TEXT = """<ir_version: 10, opset_import: ["" : 21]> m (float[4] x) => (float[4] y) {
    a = RandomNormalLike(x)
    b = RandomNormalLike(x)
    c = RandomUniformLike<seed = 7.0>(x)
    n = Constant<value = int64 {2}>()
    t = Constant<value = bool {1}>()
    z = Loop(n, t, x) <body = body (int64 i, bool go, float[4] before) => (bool on, float[4] after) {
        on = Identity(go)
        d = Bernoulli(before)
        after = Mul(before, d)
    }>
    ab = Mul(a, b)
    cz = Mul(c, z)
    y = Add(ab, cz)
}"""


def seeds() -> tuple[dict[str, float], tuple[str, ...]]:
    forward = normalise(ir.serde.deserialize_model(onnx.parser.parse_model(TEXT)))
    drawing = [node for node in forward.model.graph.all_nodes() if "seed" in node.attributes]
    return {str(node.name): node.attributes["seed"].as_float() for node in drawing}, forward.notes


def test_what_draws_without_a_seed_gets_one_of_its_own() -> None:
    """A plan has nodes in another order, and onnxruntime hands out seeds in the order of the nodes."""
    found, notes = seeds()
    assert len(found) == len(set(found.values())) == 4
    assert 7.0 in found.values()
    assert any("3 node(s) that draw random numbers get a seed" in note for note in notes)


def test_seeds_are_the_same_in_each_file_of_a_model() -> None:
    assert seeds()[0] == seeds()[0]


def test_the_rest_behind_chunks_of_steps_does_not_draw_what_the_first_chunk_drew() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]> m (float[7] x, float s) => (float y) <float w = {0.5}> {
        y, o = Scan<num_scan_inputs = 1, body = body (float s, float xi) => (float n, float z) {
            z = RandomNormalLike(xi)
            p = Mul(s, w)
            n = Add(p, xi)
        }>(s, x)
    }"""
    made = build_training_graph(onnx.parser.parse_model(text), loss="y", wrt=["w"], time_checkpoints=3)
    drawing = [node for node in made.model.graph.all_nodes() if node.op_type == "RandomNormalLike"]
    assert len(drawing) == len({node.attributes["seed"].as_float() for node in drawing}) == 2
