"""Operators of com.microsoft inside the bodies of control-flow nodes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ckplan.model.contrib.expand import expand
from ckplan.model.contrib.registry import MICROSOFT
from ckplan.model.inference.infer import NodeInference, is_known
from ckplan.model.node_reads import fixed_tensor


def expand_nested(model: ir.Model) -> list[str]:
    """Replace the nodes of com.microsoft in all bodies by standard ones, in place, where what they read is known.

    Whole-graph inference stops at such nodes, so that what comes behind them is inferred here, node by node.

    Args:
        model: types and shapes of what the bodies read stand on the values.

    Returns:
        The operators that were replaced, one entry a node.
    """
    inference = NodeInference(model.graph, model.ir_version)
    replaced = []
    for body in list(model.graph.subgraphs()):
        if not any(node.domain == MICROSOFT for node in body):
            continue
        for node in list(body):
            known = all(value is None or is_known(value) for value in node.inputs)
            if known and expand(node, lambda fresh: _infer(inference, fresh), _constant, model.graph):
                replaced.append(node.op_type)
            elif not all(is_known(output) for output in node.outputs):
                _infer(inference, node)
    return replaced


def _infer(inference: NodeInference, node: ir.Node) -> None:
    inference.run(node, _constant)


def _constant(value: ir.Value | None) -> np.ndarray | None:
    """The content of a value that is fixed in the file."""
    tensor = fixed_tensor(value)
    return None if tensor is None else np.asarray(tensor.numpy())
