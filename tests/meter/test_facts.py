"""What a file says of itself: who makes its outputs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime

from ckplan.meter.facts import file_facts

TEXT = """<ir_version: 10, opset_import: ["": 21]> g (float[4] x) => (float[4] y, float[4] z) {
    c = Constant<value = float[4] {1.0, 2.0, 3.0, 4.0}>()
    a = Mul(x, c)
    y = Exp(a)
    [named] z = Neg(a)
}"""


def test_nodes_without_a_name_are_called_as_in_a_profile(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(TEXT)
    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    session.run(None, {"x": np.ones(4, np.float32)})
    events = json.loads(Path(session.end_profiling()).read_text())
    ran = {event["args"]["op_name"]: event["name"] for event in events if event.get("cat") == "Node"}
    producers = file_facts(ir.from_proto(model)).producers
    assert {f"{name}_kernel_time" for name in producers.values()} == {ran["Exp"], ran["Neg"]}
    assert producers["z"] == "named"
