"""Recurrent layers with a projection, which torch's default exporter writes as what they are not.

ONNX has no projection in its LSTM. The exporter takes the weights of ``torch.nn.LSTM(proj_size=...)`` by their places,
five in each direction instead of four, so that a projection is read as the weight of the input, or as a bias.
"""

from __future__ import annotations

import re

import onnx_ir as ir

from ckplan.errors import ModelError
from ckplan.model.torch_files.exporter_metadata import line_of, operands_in, operands_of
from ckplan.operators.matching import is_op

_PROJECTION = re.compile(r"(.*\.)?weight_hr_l\d+(_reverse)?")


def refuse_projections(model: ir.Model) -> tuple[str, ...]:
    """See that no LSTM of torch's default exporter has a projection; leave the model as it is.

    Returns:
        Notes: none.

    Raises:
        ModelError: one has.
    """
    operands = operands_in(model.graph)
    for node in model.graph:
        named = operands_of(line_of(node)) if is_op(node, "LSTM") else []
        if any(name in operands and _PROJECTION.fullmatch(operands[name].target) for name in named):
            raise ModelError(
                f"LSTM '{node.name}' is not what torch.nn.LSTM(proj_size=...) computes: ONNX has no projection, and "
                "torch's exporter mixes up the weights",
                "write the steps as a loop over an LSTMCell and a Linear, and export that",
            )
    return ()
