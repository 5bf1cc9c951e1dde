"""What a file of torch's may have lost that a tool went over (onnxsim, onnxslim, onnxoptimizer): it can only be noted.

Such tools remove the metadata by which a bias of zeros is found again that torch's default exporter dropped (see
`ckplan.model.torch_files.dropped_biases`), and they remove additions of zeros themselves. A trained file has no biases
of zeros and loses none; but that a normalisation was folded into a convolution its metadata said as well.
"""

from __future__ import annotations

import re

import onnx_ir as ir

from ckplan.display import shortened
from ckplan.model.torch_files.exporter_metadata import LINE, operands_in
from ckplan.model.torch_files.old_exporter import products_note
from ckplan.operators.matching import is_op

_REMOVED = "onnxsim.removed_values"
"""Where onnxsim lists what is in the file no more, the first few in the order of the alphabet."""
_PARAMETER = re.compile(r"(\w+\.)+(?!running_(mean|var)$|num_batches_tracked$)[A-Za-z]\w*", re.ASCII)
"""The path of an attribute in a module, but for statistics of a normalisation."""
_NORMALISED = re.compile(r"getitem(_\d+)?")
"""How the default exporter calls the first of several results, as those of a batch normalisation are."""
_LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_BIAS = 2
"""The input of the first three that holds a bias."""


def simplified_notes(model: ir.Model) -> tuple[str, ...]:
    """Note what a tool lists as removed, and layers that may have had biases; leave the model as it is.

    The default exporter calls a node by what it makes, ``node_linear`` of ``linear``; where the addition of zeros
    behind it was removed, what it makes has the name of the sum.
    """
    if model.producer_name != "pytorch":
        return ()
    notes = []
    removed = [name for name in model.metadata_props.get(_REMOVED, "").split(", ") if _PARAMETER.fullmatch(name)]
    if removed:
        notes.append(
            f"onnxsim dropped, merged or computed with {len(removed)} parameter(s) of the module or more "
            f"({shortened(list(map(repr, removed)), 3)}): where nothing has trained them yet, hand in the file as it "
            "was before"
        )
    is_told = operands_in(model.graph) or any(LINE in node.metadata_props for node in model.graph)
    if is_told:
        return tuple(notes)
    folded = [
        node.inputs[1]
        for node in model.graph
        if is_op(node, ("Conv", "ConvTranspose")) and _NORMALISED.fullmatch(str(node.outputs[0].name))
    ]
    if folded:
        notes.append(products_note(folded, "onnxsim or torch's exporter" if removed else "torch's exporter"))
    layers = [
        repr(node.name)
        for node in model.graph
        if (_REMOVED in model.metadata_props or _has_name_of_another(node)) and _adds_nothing(node)
    ]
    if layers:
        notes.append(
            f"{len(layers)} layer(s) ({shortened(layers, 3)}) may have lost biases of zeros, as tools and torch's "
            "exporter drop them where nothing has trained them yet: hand in the file as it was before"
        )
    return tuple(notes)


def _has_name_of_another(node: ir.Node) -> bool:
    """Whether the default exporter gave a node its name, and it is not that of what the node makes."""
    return str(node.name).startswith("node_") and node.name != f"node_{node.outputs[0].name}"


def _adds_nothing(node: ir.Node) -> bool:
    """Whether a node is a layer, and what it makes is used without a bias."""
    weight = node.inputs[1] if is_op(node, _LAYERS) else None
    if weight is None or not weight.is_initializer() or any(value is not None for value in node.inputs[_BIAS:]):
        return False
    made = node.outputs[0]
    added = [value for reader in made.consumers() if is_op(reader, "Add") for value in reader.inputs]
    return not any(value is not None and value.is_initializer() for value in added)
