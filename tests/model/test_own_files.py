"""What a file says of itself is a remark: edited metadata change nothing of what it computes, or are named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import ckplan
from ckplan import keys
from ckplan.errors import ModelError
from ckplan.meter.facts import file_facts
from ckplan.meter.ranges import upper_bound
from tests.model.models import parse, write
from tests.writer.runtime import run

FORGED = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[2, 2] x, bool c) => (float[2, 2] y) {
   one = Constant <value = float[1] {1.0}> ()
   [a] s = Mul (x, one)
   [b] t = Tanh (x)
   [c] u = LeakyRelu <alpha = 0.1> (t)
   [d] v = LeakyRelu <alpha = 0.3> (t)
   [e] w = If (c) <then_branch = g1 () => (float[2, 2] p) { p = Neg (v) },
                   else_branch = g2 () => (float[2, 2] q) { q = Abs (v) }>
   [f] z = If (c) <then_branch = g3 () => (float[2, 2] p2) { p2 = Abs (v) },
                   else_branch = g4 () => (float[2, 2] q2) { q2 = Abs (v) }>
   first = Constant <value = int64[1] {0}> ()
   [g] r = Unsqueeze (z, first)
   [h] k = Mul (r, r)
   [i] m = Concat <axis = 0> (w, z)
   summed = ReduceSum <keepdims = 0> (m)
   largest = ReduceMax <keepdims = 0> (k)
   [j] n = Add (summed, largest)
   [k] o = Add (n, u)
   [l] y = Add (o, s)
}
"""
MARKS = {"b": "a", "d": "c", "f": "e"}
"""Nodes marked as repeats of others, which they are not."""


def test_what_is_no_repeat_and_no_alias_stays_what_it_is(tmp_path: Path) -> None:
    proto = parse(FORGED)
    proto.metadata_props.add(key=keys.PARAMETERS, value="[]")
    for node in proto.graph.node:
        marks = {keys.ROLE: "recompute", keys.RECOMPUTE_OF: MARKS[node.name]} if node.name in MARKS else {}
        if node.name in "gi":
            marks = {keys.ROLE: "control"}
        for key, value in marks.items():
            node.metadata_props.add(key=key, value=value)
    loaded = ckplan.load(write(proto, tmp_path)).model
    feeds = {"x": np.float32([[0.5, -1.5], [2, -3]]), "c": np.array(True)}
    expected = run(parse(FORGED), feeds)["y"]
    np.testing.assert_array_equal(run(ir.to_proto(loaded), feeds)["y"], expected)


DAMAGED = ("", "[", "5", '"name"', "[1]", '{"a": 1}', "[" * 100_000, "null")
SCAN = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[3, 2] x, float[2] first) => (float[3, 2] y) {
   [scan] last, y = Scan <num_scan_inputs = 1, body = b (float[2] s, float[2] i) => (float[2] o, float[2] r) {
       o = Add (s, i)
       r = Tanh (o)
   }> (first, x)
}
"""


@pytest.mark.parametrize("text", DAMAGED, ids=range(len(DAMAGED)))
def test_entries_that_decide_something_are_named_when_damaged(text: str, tmp_path: Path) -> None:
    def planned(proto: onnx.ModelProto) -> ckplan.Problem:
        found = ckplan.load(write(proto, tmp_path)).model
        return ckplan.problem_of(ckplan.build_training_graph(found, wrt=["first"]).model)

    reason = "is damaged: it is not a JSON list of names"
    for key in (keys.PARAMETERS, keys.CHECKPOINTS):
        proto = parse(SCAN)
        proto.metadata_props.add(key=key, value=text)
        with pytest.raises(ModelError, match=rf"the metadata entry `{key}` {reason}"):
            planned(proto)
    proto = parse(SCAN)
    proto.graph.node[0].metadata_props.add(key=keys.STORE, value=text)
    with pytest.raises(ModelError, match=rf"the metadata entry `{keys.STORE}` {reason}"):
        planned(proto)


NUMBERS = ("", "1e999", "nan", "²", "9" * 5000, "x", "-5", "[" * 100_000, '{"labels": []}', '{"labels": 1e400}')


@pytest.mark.parametrize("text", NUMBERS, ids=range(len(NUMBERS)))
def test_entries_that_only_tell_something_are_left_out_when_damaged(text: str) -> None:
    proto = parse("""<ir_version: 10, opset_import: ["" : 21]>
        g (int64[2] labels, float[5, 2] w) => (float[2, 2] y) { y = Gather (w, labels) }""")
    for key in (keys.LABELS, keys.PREDICTED_TOTAL, keys.GRADIENTS):
        proto.metadata_props.add(key=key, value=text)
    proto.metadata_props.add(key=keys.PLAN, value=f'{{"order_peak_activations": {text or 0}}}')
    proto.graph.input[0].metadata_props.add(key=keys.CLASSES, value=text)
    model = ir.from_proto(onnx.ModelProto.FromString(proto.SerializeToString()))
    assert upper_bound(model, model.graph.inputs[0]) == (5, "Gather ''")
    assert file_facts(model).prediction.peak_total in (None, -5)
