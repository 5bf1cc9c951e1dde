"""Running statistics that a tool merged with scales and shifts of equal values are tensors of their own again.

The running variance of an untrained BatchNormalization is one, as its scale is, and the running mean is zero, as its
shift is. What holds equal tensors once (onnxsim, onnxslim, torch's exporters) leaves one of two: its gradient would
have a part through the statistic, which no framework has, and an update of the scale would change the variance.
"""

from __future__ import annotations

import onnx_ir as ir

from ckplan.display import shortened
from ckplan.model.constants import copy_initializer
from ckplan.operators.matching import is_op

STATISTICS = {3: "mean", 4: "var"}
"""Inputs of a BatchNormalization, and how copies of them are called."""


def separate_from_scales(model: ir.Model) -> tuple[str, ...]:
    """Copy the statistics of BatchNormalizations that something else reads as well, in place.

    Returns:
        Notes.
    """
    copies: dict[tuple[ir.Value, str], ir.Value] = {}
    inseparable = []
    for node in model.graph:
        if not is_op(node, "BatchNormalization"):
            continue
        for index, kind in STATISTICS.items():
            shared = node.inputs[index] if index < len(node.inputs) else None
            if shared is not None and shared.producer() is not None and shared in node.inputs[1:3]:
                inseparable.append(f"'{node.name}'")
            if shared is None or not shared.is_initializer() or shared.const_value is None or not _has_others(shared):
                continue
            copy = copies.get((shared, kind))
            if copy is None:
                copy = copy_initializer(model.graph, shared, f"{shared.name}_running_{kind}")
                copies[shared, kind] = copy
            node.replace_input_with(index, copy)
    notes = []
    if copies:
        listed = shortened([f"'{shared.name}'" for shared in dict.fromkeys(value for value, _ in copies)], 3)
        notes.append(
            f"{len(copies)} running statistic(s) that a tool merged with other tensors ({listed}) are apart again"
        )
    if inseparable:
        listed = shortened(list(dict.fromkeys(inseparable)), 3)
        notes.append(
            f"BatchNormalization {listed}: one computed tensor is both a scale or shift and a running statistic, since "
            "a tool merged them, and its gradient has a part through the statistic; hand in the file as it was before, "
            "or one of ckplan.export"
        )
    return tuple(notes)


def _has_others(value: ir.Value) -> bool:
    """Whether something reads a value that is no statistic there."""
    return any(use.node.op_type != "BatchNormalization" or use.idx not in STATISTICS for use in value.uses())
