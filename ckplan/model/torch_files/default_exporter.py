"""What torch's default exporter says of the tensors in a file, and what its optimiser did to them.

The exporter (``torch.onnx.export``, ``dynamo=True``) writes the signature of the program into the graph's metadata:
which inputs were parameters of the module, which buffers and which constants. Then its optimiser goes over the graph,
and

- computes what depends on parameters alone: a transposed weight becomes ``val_110``, a name as constants have it;
- merges initializers of up to a thousand equal values: the biases of an untrained module, all zero, become one, and
  of layers that begin as copies of one (``torch.nn.TransformerEncoder``) everything, so that layers share what they did
  not share;
- drops biases of zeros (see `ckplan.model.torch_files.dropped_biases`).

Constants are merged with parameters as well (see `ckplan.model.torch_files.merged_constants`).

And of a module in training mode it writes BatchNormalization in its inference form.

Each node still says which line of the program it was made of, and that line names its operands. So merged tensors are
taken apart again (see `ckplan.model.torch_files.merged_initializers`, and `merged_nodes` and `merged_siblings` beside
it), and computed ones are matched with the parameters that they stand for (`stood_for`).
"""

from __future__ import annotations

import onnx_ir as ir

from ckplan import keys
from ckplan.model.torch_files.dropped_biases import restore_biases
from ckplan.model.torch_files.exporter_metadata import (
    BUFFER,
    PARAMETER,
    buffers_of,
    constants_of,
    operand_of,
    operands_in,
    parameters_of,
)
from ckplan.model.torch_files.exporter_notes import doubtful_notes, mistaken_notes, signature_notes
from ckplan.model.torch_files.merged_constants import separate_constants
from ckplan.model.torch_files.merged_initializers import separate_computed, separate_merged
from ckplan.model.torch_files.merged_nodes import separate_nodes
from ckplan.model.torch_files.merged_siblings import separate_siblings
from ckplan.model.torch_files.stood_for import frozen_modules, join_copies, mark_computed, mark_constants


def read_signature(model: ir.Model) -> tuple[str, ...]:
    """Take apart what torch's optimiser merged, and mark what it computed of parameters, in place.

    An initializer that stands for a parameter gets `keys.STANDS_FOR`; one that stands for none, as all parameters are
    in the file, gets it as an empty text. Other exporters' files are left alone.

    Returns:
        Notes.
    """
    graph = model.graph
    operands = operands_in(graph)
    if not operands:
        return ()
    for value in graph.initializers.values():
        if keys.FILLED in value.metadata_props:  # parameters are initializers, and no node makes what one begins with
            value.metadata_props.setdefault(keys.STANDS_FOR, "")
    separated = separate_constants(graph)
    present = {operand_of(value): value for value in graph.initializers.values()}
    restored = restore_biases(graph, operands, present)
    separated += separate_computed(graph, operands) + separate_merged(graph, operands, present)
    join_copies(graph)
    parameters = parameters_of(graph)
    mark_computed(graph, parameters, buffers_of(graph) | constants_of(graph))
    stood_for = {value.metadata_props.get(keys.STANDS_FOR) for value in graph.initializers.values()}
    lost = [
        operand.target
        for name, operand in operands.items()
        if operand.is_parameter and operand.target not in stood_for
        if name not in present or not present[name].uses()
    ]
    listed = [operand.target for operand in operands.values() if operand.is_parameter]
    held = [operand.target for operand in operands.values() if operand.kind in (PARAMETER, BUFFER)]
    siblings = separate_siblings(graph, held, lost)
    found = separate_nodes(graph, listed, [target for target in lost if target not in siblings])
    lost = [target for target in lost if target not in siblings and target not in found]
    doubtful = [] if lost else doubtful_notes(graph)
    mark_constants(graph, parameters, frozen_modules(operands.values()), complete=not lost)
    return (
        *signature_notes(graph, separated + len(found), restored, siblings, lost),
        *mistaken_notes(graph),
        *doubtful,
    )
