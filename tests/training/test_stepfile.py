"""Sessions of training steps."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from ckplan.training.stepfile import session_of


def test_what_onnxruntime_says_of_an_error_is_no_line_of_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    """Its log has colours, and names of the model as they are."""
    text = '<ir_version: 10, opset_import: ["": 21]> g (float[4] x, int64[1] s) => (float[n] y) { y = Reshape(x, s) }'
    model = onnx.parser.parse_model(text)
    model.graph.node[0].name = "\n::error file=x::pwned"
    session = session_of(model.SerializeToString())
    with pytest.raises(Exception, match="Reshape"):
        session.run(None, {"x": np.ones(4, np.float32), "s": np.asarray([3])})
    assert capfd.readouterr().err == ""
