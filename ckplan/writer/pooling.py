"""Pooling in a form that onnxruntime rounds alike in every layout."""

from __future__ import annotations

import onnx_ir as ir

from ckplan.runtime.sizes import dimensions_of


def average_alike(graph: ir.Graph) -> None:
    """Let AveragePool over the whole image take the place of GlobalAveragePool, in place.

    Where the number of channels is known, onnxruntime runs pooling in a layout of blocks, and there GlobalAveragePool
    adds in another order (``onnxruntime/core/mlas/lib/snchwc.cpp``). AveragePool does not. In planned files the
    channels are not known (see `ckplan.writer.buffer_names.hide_channels`).
    """
    for node in graph:
        dims = dimensions_of(node.inputs[0]) if node.op_type == "GlobalAveragePool" and node.inputs[0] else None
        if dims is None or node.domain or len(dims) != 4:
            continue
        node.op_type = "AveragePool"
        node.attributes.add(ir.AttrInt64s("kernel_shape", dims[2:]))
