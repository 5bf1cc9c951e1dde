"""The row of an embedding table that torch does not train: that of the token which pads short sentences.

``torch.nn.Embedding(..., padding_idx=0)`` gives row 0 no gradient of what is looked up. A Gather says nothing of it,
but torch's default exporter writes into its metadata the line of the program that it was made of, and the line does.
Of the old exporter's files a note tells where a table has a row of zeros, as such a row begins.
"""

from __future__ import annotations

import re

import onnx_ir as ir

from ckplan import keys
from ckplan.display import shortened
from ckplan.model.torch_files.exporter_metadata import LINE, line_of
from ckplan.operators.matching import is_op

_LOOKUP = re.compile(r"aten\.embedding\.default\]\(args = \(%\w+, %\w+, (-1|\d+)(?:, (True|False))?")
_MATRIX = 2
_FIRST = 4
"""How many rows at the beginning are looked at: the special tokens of a vocabulary stand there, or at its end."""


def mark_padding(model: ir.Model) -> tuple[str, ...]:
    """Mark lookups whose tables have a padding row with `keys.PADDING_ROW`, in place.

    Returns:
        Notes: which rows these are, and which gradients torch would divide by how often a row is looked up.
    """
    rows: dict[str, None] = {}
    zeros: dict[str, None] = {}
    scaled: dict[str, None] = {}
    for node in model.graph.all_nodes():
        if not is_op(node, "Gather") or node.inputs[0] is None or node.attributes.get_int("axis", 0) != 0:
            continue
        if found := _LOOKUP.search(line_of(node)):
            if found[1] != "-1":  # which is no row
                node.metadata_props[keys.PADDING_ROW] = found[1]
                rows[f"row {found[1]} of '{node.inputs[0].name}'"] = None
            if found[2] == "True":
                scaled[f"'{node.inputs[0].name}'"] = None
        elif model.producer_name == "pytorch" and LINE not in node.metadata_props:
            row = _row_of_zeros(node.inputs[0])
            if row is not None:
                zeros[f"row {row} of '{node.inputs[0].name}'"] = None
    notes = []
    if rows:
        notes.append(f"{shortened(list(rows), 3)}: padding, which gets no gradient of what is looked up, as in torch")
    if scaled:
        tables = shortened(list(scaled), 3)
        notes.append(
            f"torch divides the gradient of {tables} by how often a row is looked up (scale_grad_by_freq); here it is "
            "the plain sum"
        )
    if zeros:
        notes.append(
            f"{shortened(list(zeros), 3)} holds zeros, as torch's padding_idx leaves it, and is trained: the file does "
            "not say whether torch trains it; ckplan.export does"
        )
    return tuple(notes)


def _row_of_zeros(table: ir.Value) -> int | None:
    """The one row of zeros among the first and the last of a table of embeddings; None if there is none, or several."""
    if table.const_value is None or table.dtype is None or not table.dtype.is_floating_point():
        return None
    array = table.const_value.numpy()
    if array.ndim != _MATRIX or len(array) <= _FIRST or array.shape[1] == 1:
        return None
    found = [row for row in (*range(_FIRST), len(array) - 1) if not array[row].any()]
    return found[0] if len(found) == 1 else None
