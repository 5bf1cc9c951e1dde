"""Parameters of a file that nothing it returns depends on."""

from __future__ import annotations

import json

import onnx_ir as ir

from ckplan import keys
from ckplan.model.node_reads import needed_nodes, reads


def note_unread(model: ir.Model) -> None:
    """Write into the metadata which floating-point initializers no output depends on: loading drops them.

    Args:
        model: as it was read. Its metadata gets `keys.UNREAD` where there are any.
    """
    graph = model.graph
    read = {*graph.outputs, *(value for node in needed_nodes(graph, graph.outputs) for value in reads(node))}
    floating = (value for value in graph.initializers.values() if value.dtype and value.dtype.is_floating_point())
    unread = [str(value.name) for value in floating if value not in read]
    if unread:
        model.metadata_props[keys.UNREAD] = json.dumps(unread)
