"""Sessions of training steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import ckplan
from ckplan import keys
from ckplan.errors import ModelError
from ckplan.training.buffers import bind, ort_value, run_bound
from ckplan.training.stepfile import read_step, session_of
from tests.cli.conftest import write_model


def test_what_onnxruntime_says_of_an_error_is_no_line_of_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    """Its log has colours, and names of the model as they are."""
    text = '<ir_version: 10, opset_import: ["": 21]> g (float[4] x, int64[1] s) => (float[n] y) { y = Reshape(x, s) }'
    model = onnx.parser.parse_model(text)
    model.graph.node[0].name = "\n::error file=x::pwned"
    session = session_of(model.SerializeToString())
    with pytest.raises(Exception, match="Reshape"):
        session.run(None, {"x": np.ones(4, np.float32), "s": np.asarray([3])})
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(("kind", "place"), [("output", "output"), ("input", "input")])
def test_metadata_that_name_what_is_not_there_are_damaged(tmp_path: Path, kind: str, place: str) -> None:
    file = tmp_path / "step.onnx"
    made = ckplan.build_training_graph(ckplan.load(write_model(tmp_path / "m.onnx", layers=2)).model)
    ckplan.save(made.model, file)
    assert read_step(file).gradients
    proto = onnx.load(file)
    ends = getattr(proto.graph, place)
    gone = set(made.gradients.values() if kind == "output" else made.gradients)
    kept = [value for value in ends if value.name not in gone]
    del ends[:]
    ends.extend(kept)
    onnx.save(proto, file)
    with pytest.raises(ModelError, match=f"name an {kind} '.*', which it does not have"):
        read_step(file)


def test_a_list_of_parameters_that_is_none_is_damaged(tmp_path: Path) -> None:
    file = tmp_path / "step.onnx"
    model = ckplan.build_training_graph(ckplan.load(write_model(tmp_path / "m.onnx", layers=2)).model).model
    model.metadata_props[keys.PARAMETERS] = ""
    ckplan.save(model, file)
    with pytest.raises(ModelError, match="is damaged"):
        read_step(file)


def test_a_step_that_holds_no_parameters_is_for_another_loop(tmp_path: Path) -> None:
    made = ckplan.artifacts(write_model(tmp_path / "m.onnx", layers=2), tmp_path / "made", dims={"batch": 2})
    with pytest.raises(ModelError, match=r"training\.onnx is for a loop that feeds the parameters.*ckplan artifacts"):
        read_step(made.path("training"))


def test_a_kernel_that_refuses_is_named_in_one_line() -> None:
    text = '<ir_version: 10, opset_import: ["": 21]> g (float[4] x, int64[1] s) => (float[n] y) { y = Reshape(x, s) }'
    session = session_of(onnx.parser.parse_model(text).SerializeToString())
    binding = bind(session, {"x": ort_value(np.ones(4, np.float32)), "s": ort_value(np.asarray([3]))}, {})
    binding.bind_output("y")
    with pytest.raises(ModelError, match=r"onnxruntime fails in a step of m\.onnx \(Reshape '.*") as error:
        run_bound(session, binding, "a step of m.onnx")
    assert "\n" not in error.value.message


def test_where_double_precision_has_no_kernel_the_model_is_to_be_exported_in_single(tmp_path: Path) -> None:
    """onnxruntime says it when a file is loaded, or only when an LSTM runs."""
    head = '<ir_version: 10, opset_import: ["": 21]> g (double[2, 1, 3] x) => (double[2, 1, 1, 4] y)'
    lacking = onnx.parser.parse_model(head.replace("[2, 1, 1, 4]", "[2, 1, 3]") + "{ y = Softplus(x) }")
    onnx.save(lacking, tmp_path / "step.onnx")
    for source in (lacking.SerializeToString(), str(tmp_path / "step.onnx")):
        with pytest.raises(ModelError, match=r"implementation for Softplus.*; .*: export the model in float32"):
            session_of(source)
    model = onnx.parser.parse_model(head + "{ y = LSTM<hidden_size = 4>(x, w, r) }")
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.ones((1, 16, size)), name) for name, size in (("w", 3), ("r", 4))
    )
    session = session_of(model.SerializeToString())
    binding = bind(session, {"x": ort_value(np.ones((2, 1, 3)))}, {})
    binding.bind_output("y")
    with pytest.raises(ModelError, match=r"does not support double yet.*; .*: export the model in float32"):
        run_bound(session, binding, "an evaluation")
