"""Recurrent layers of torch's that the default exporter writes as what they are not."""

from __future__ import annotations

import numpy as np
import pytest

from ckplan.errors import ModelError
from tests.model.torch_files import loaded, recurrent


def test_an_lstm_with_a_projection_is_refused_by_name() -> None:
    model = recurrent(np.zeros((1, 2, 4), np.float32), "%zeros, %zeros_1", {"p_weight_hr_l0": "r.weight_hr_l0"})
    (node,) = [node for node in model.graph.node if node.op_type == "LSTM"]
    node.name = "lstm"
    (line,) = [one for one in node.metadata_props if "lstm.input" in one.value]
    line.value = line.value.replace("%p_bias_hh_l0", "%p_bias_hh_l0, %p_weight_hr_l0")
    with pytest.raises(ModelError, match=r"LSTM 'lstm' is not what torch.nn.LSTM\(proj_size=...\) computes"):
        loaded(model)
    line.value = line.value.replace(", %p_weight_hr_l0", "")
    loaded(model)
