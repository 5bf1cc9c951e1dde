"""Parameters of a file that nothing it returns depends on."""

from __future__ import annotations

import json

import onnx_ir as ir

from ckplan import keys
from ckplan.model.constants import is_constant
from ckplan.model.files.metadata import listed_names
from ckplan.model.node_reads import needed_nodes, reads


def note_unread(model: ir.Model) -> None:
    """Write into the metadata which floating-point initializers no output depends on: loading drops them.

    Args:
        model: as it was read, or once more when the branches that are not taken have fallen away. Its metadata gets
            `keys.UNREAD` where there are any, beside those that it tells of already; and `keys.RULED_OUT` where a
            number that an input is set to has made them so.
    """
    graph = model.graph
    read = {*graph.outputs, *(value for node in needed_nodes(graph, graph.outputs) for value in reads(node))}
    floating = (value for value in graph.initializers.values() if value.dtype and value.dtype.is_floating_point())
    found = [str(value.name) for value in floating if value not in read and not is_constant(value)]
    if found:
        before = listed_names(model.metadata_props, keys.UNREAD)
        model.metadata_props[keys.UNREAD] = json.dumps(list(dict.fromkeys([*before, *found])))
        if keys.SET in model.metadata_props and (ruled_out := [name for name in found if name not in before]):
            model.metadata_props[keys.RULED_OUT] = json.dumps(ruled_out)
