"""Padding is said in one way: ``auto_pad`` or ``pads``, as onnxruntime understands a node that has both.

ONNX allows one of them. onnxruntime runs poolings with both, its kernels read no ``pads`` beside an ``auto_pad``, and
an empty ``auto_pad`` is NOTSET to them; but inference, its own as well, takes sizes from ``pads`` beside a VALID.
Convolutions with both it does not load.
"""

from __future__ import annotations

import onnx_ir as ir

from ckplan.model.nested_graphs import written_nodes

_POOLINGS = frozenset({"AveragePool", "LpPool", "MaxPool"})
_WINDOWS = _POOLINGS | {"Conv", "ConvTranspose"}
_AUTOMATIC = frozenset({"SAME_LOWER", "SAME_UPPER", "VALID"})


def write_pads(model: ir.Model) -> None:
    """Leave of ``auto_pad`` and ``pads`` the one that counts, in place, in functions as well."""
    for node in written_nodes(model):
        automatic = node.attributes.get("auto_pad")
        if node.domain or node.op_type not in _WINDOWS or automatic is None or automatic.is_ref():
            continue
        if not automatic.as_string():
            del node.attributes["auto_pad"]
        elif node.op_type in _POOLINGS and automatic.as_string() in _AUTOMATIC:
            node.attributes.pop("pads", None)
