"""Lets onnxruntime's arena take one large region at the start of a step, where it would take many that double.

In a first run the arena takes regions of 1, 2, 4, ... MiB as tensors need them, and in the second one more for the
block of all of them, which fits into none of those: in the end it holds about four times the peak. If the first thing
that is made is a tensor of more than half of a region, the arena takes that region at once. The tensor is dead as soon
as it is there; everything after it, and later the block, lies where it was.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import onnx_ir as ir

from ckplan.keys import ROLE
from ckplan.runtime.sizes import dimensions_of
from ckplan.writer.control_edges import ControlEdges

_NAME = "ckplan/reservation"


def reserve(inputs: Sequence[ir.Value], updated: Collection[str], size: int, edges: ControlEdges) -> ir.Value | None:
    """A tensor that no node reads; what reads the batch is to wait for it.

    Args:
        inputs: graph inputs.
        updated: names of inputs that may be written over; what reads them has to come before that.
        size: bytes of the tensor.
        edges: maker of the control edges. The tensor's shape is one of theirs, or it would be made at load time.

    Returns:
        The tensor, whose node is to stand first; None if none is wanted, or nothing is fed that it could be tied to.
    """
    fed = next((value for value in inputs if not value.is_initializer() and value.name not in updated), None)
    if size <= 0 or fed is None or dimensions_of(fed) is None:
        return None
    node = ir.node(
        "ConstantOfShape", [edges.shape_after((size,), fed)], name=_NAME, metadata_props={ROLE: "reservation"}
    )
    node.attributes["value"] = ir.AttrTensor("value", ir.tensor(np.zeros(1, np.uint8)))
    made = node.outputs[0]
    made.name, made.shape, made.type = _NAME, ir.Shape([size]), ir.TensorType(ir.DataType.UINT8)
    return made
