"""A Squeeze whose list of axes is empty takes away all axes of one element, as onnxruntime has it.

Inference, its own as well, lets it take away none: what is behind would be differentiated in a shape that it has not.
"""

from __future__ import annotations

import onnx_ir as ir

from ckplan.model.nested_graphs import all_nodes
from ckplan.model.node_reads import fixed_tensor
from ckplan.operators.matching import input_of, is_op


def drop_empty_axes(model: ir.Model) -> None:
    """Leave the axes of a Squeeze out where none are named, in place."""
    for node in all_nodes(model.graph):
        if is_op(node, "Squeeze") and (axes := fixed_tensor(input_of(node, 1))) is not None and not axes.size:
            node.resize_inputs(1)
