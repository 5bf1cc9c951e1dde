"""The events of a profile."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

import ckplan
from ckplan.errors import EnvironmentUnavailableError
from ckplan.meter import measure, measurement
from ckplan.meter.memory.events import events_of, read_events

ROWS = """
<ir_version: 10, opset_import: ["": 21]>
g (float[500,4] x) => (float[500,4] y) {
    y = Scan <num_scan_inputs = 1, body = b (float[4] row) => (float[4] out) {
        a = Tanh (row)
        out = Neg (a)
    }> (x)
}"""


def event(name: str, in_use: int) -> dict:
    return {"cat": "Node", "name": name, "args": {"mem_bytes_requested_in_use": str(in_use)}}


def test_of_a_node_that_runs_often_what_is_no_new_high_is_left_out(tmp_path: Path) -> None:
    end = {"cat": "Session", "name": "model_run", "args": {}}
    often = [event("body", 10)] * 500
    run = [event("first", 5), *often, event("body", 12), *often, event("last", 3), end]
    (tmp_path / "profile.json").write_text(",\n".join(json.dumps(one) for one in [*run, *run]).join(("[\n", "\n]")))
    found = list(read_events(tmp_path / "profile.json"))
    names = [one["name"] for one in found]
    assert names == ["first", *["body"] * 101, "last", "model_run"] * 2
    assert max(int(one["args"].get("mem_bytes_requested_in_use", 0)) for one in found) == 12


@pytest.mark.parametrize("kept", [0, 2, 3, 70])
def test_a_profile_that_is_cut_off_tells_no_peak(tmp_path: Path, kept: int) -> None:
    whole = ",\n".join(json.dumps(event(name, 1)) for name in "ab").join(("[\n", "\n]"))
    cut = tmp_path / "profile.json"
    cut.write_text(whole[:kept])
    with pytest.raises(EnvironmentUnavailableError, match="is cut off; free some space"):
        list(read_events(cut))


def test_the_steps_of_a_loop_are_counted() -> None:
    assert events_of(ir.from_proto(onnx.parser.parse_model(ROWS)).graph) == 1 + 500 * (1 + 2)


def test_no_more_is_run_than_a_profile_has_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured of one run is the same as of three; the steady state is not known then."""
    ckplan.save(ir.from_proto(onnx.parser.parse_model(ROWS)), tmp_path / "rows.onnx")
    often = measure(tmp_path / "rows.onnx", runs=1, heap=False)
    monkeypatch.setattr(measurement, "MOST_EVENTS", 2000)
    once = measure(tmp_path / "rows.onnx", runs=1, heap=False)
    assert often.peak_activations == once.peak_activations
    assert often.counters is not None
    assert once.counters is not None
    assert (often.counters.steady is None, once.counters.steady is None) == (False, True)
