"""What a user should know of a file of torch's default exporter: what was merged, computed, lost or left out."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping

import onnx_ir as ir

from ckplan import keys
from ckplan.display import shortened
from ckplan.model.structure import has_one_value
from ckplan.model.torch_files.exporter_metadata import (
    KIND,
    folded_from,
    is_moved_name,
    is_parameter,
    line_of,
    module_around,
    module_of,
    names_there,
    operand_of,
    operands_of,
    parameters_of,
    root_name,
)
from ckplan.operators.matching import is_op

_BATCH_NORM_IN_TRAINING = re.compile(r"_native_batch_norm_legit\w*\.default\]\(args = \(.*, True, ")
_SMOOTHED = re.compile(r"aten\.cross_entropy_loss\.default\]\(args = \((?:[^,]+, ){5}([\d.e-]+)\)")
_DIVIDED = re.compile(r"aten\.avg_pool[23]d\.default\]\(args = \(.*, (?:True|False), (?:True|False), (\d+)\)")
_MEAN = re.compile(r"aten\.scatter_reduce\.two\]\(args = \((?:[^,]+, ){4}mean\)")


def doubtful_notes(graph: ir.Graph) -> list[str]:
    """Note the tensors that may be computed of parameters which the file holds as well.

    Of the nodes that computed them nothing is left, and no gradient goes that way. It may be so where a tensor is read
    in the module of a parameter of as many elements. What the file says of it is certain; see
    `ckplan.model.torch_files.unfold`.
    """
    owned = defaultdict(list)
    for value in graph.initializers.values():
        if is_parameter(value):
            owned[module_of(str(value.name))].append(value)
    found = {}
    for value in graph.initializers.values():
        properties = value.metadata_props
        if operand_of(value) or KIND in properties or keys.STANDS_FOR in properties or folded_from(value):
            continue
        if value.dtype is None or not value.dtype.is_floating_point():
            continue
        if value.const_value is None or value.const_value.size < 2:
            continue
        for module in map(module_around, value.consumers()):
            for parameter in owned.get(module, ()):
                if parameter.const_value is not None and parameter.const_value.size == value.const_value.size:
                    found[value] = f"'{value.name}' of '{parameter.name}'"
    if not found:
        return []
    return [
        f"{len(found)} tensor(s) may be what torch's exporter computed of parameters that are in the file as well: "
        f"{shortened(list(found.values()), 3)}; if so, their gradients lack a part, and ckplan.export keeps it"
    ]


def mistaken_notes(graph: ir.Graph) -> list[str]:
    """Note parameters that are read where lines name a result which the file has not: equal numbers, merged with them.

    What torch computes of a parameter may begin equal to it, as ``1 - g`` of a half, or to another; and its parts may
    to each other, as the weights that layers are mixed with. Numbers that differ are what was made of the parameter
    without changing it.
    """
    there, parameters = names_there(graph), parameters_of(graph)
    found = {}
    for node in graph:
        names = operands_of(line_of(node))
        missing = [name for name in names if name not in there and not is_moved_name(name)]
        for value in node.inputs if missing else ():
            tensor = None if value is None else value.const_value
            if value is None or tensor is None or not has_one_value(tensor):
                continue
            if is_parameter(value) and operand_of(value) not in names:
                found[value] = f"'{missing[0]}' with '{value.name}'"
            elif not parameters.isdisjoint(folded_from(value)) and value.name not in names and _is_part(value.name):
                for name in filter(_is_part, missing):
                    found[value] = f"'{name}' with '{value.name}'"
    if not found:
        return []
    return [
        f"{len(found)} tensor(s) that torch computes may have been merged with parameters, or with parts of them, of "
        f"equal numbers ({shortened(list(found.values()), 3)}): if so, the gradients of these have parts of others; "
        "ckplan.export keeps them apart"
    ]


def _is_part(name: str | None) -> bool:
    """Whether torch calls by a name one of the parts that it takes something apart into."""
    return root_name(str(name)) == "getitem"


def signature_notes(
    graph: ir.Graph, separated: int, restored: int, siblings: Mapping[str, str], lost: list[str]
) -> tuple[str, ...]:
    """Note what became of parameters, and what the exporter wrote in another way than the module has it.

    Args:
        graph: the model's, with its marks.
        separated: how many tensors were taken apart.
        restored: how many biases of zeros are there again.
        siblings: the names in the module of parameters that were taken apart by what the module has lost, each with
            that of the one that it was merged with.
        lost: the names in the module of parameters that stand nowhere.
    """
    notes = []
    if separated:
        notes.append(f"{separated} tensor(s) that torch's exporter merged with others of equal values are apart again")
    if restored:
        notes.append(f"{restored} bias(es) of zeros that torch's exporter dropped are there again")
    if siblings:
        listed = [f"'{target}' from '{source}'" for target, source in siblings.items()]
        notes.append(
            f"{len(siblings)} parameter(s) that begin equal to others beside them are apart again, with what torch's "
            f"exporter had merged along with them: {shortened(listed, 3)}"
        )
    renamed = [
        f"'{value.name}' of '{target}'"
        for value in graph.initializers.values()
        if (target := value.metadata_props.get(keys.STANDS_FOR)) and target != value.name
    ]
    if renamed:
        notes.append(f"{len(renamed)} weight(s) are what torch's exporter computed: {shortened(renamed, 3)}")
    if lost:
        notes.append(
            f"{len(lost)} parameter(s) of the torch module are not in the file as such, being unused, tied to others, "
            f"merged with equal ones, all zero or computed with ({shortened([repr(name) for name in lost], 3)}): "
            "where one tensor of the file is read as several of them, its gradient is the sum of theirs; ckplan.export "
            "keeps them"
        )
    notes += _batch_norm_notes(graph)
    losses = _lines_of(graph, "SoftmaxCrossEntropyLoss")
    smoothed = {found[1] for line in losses if (found := _SMOOTHED.search(line))}
    if smoothed - {"0.0"}:
        notes.append(
            f"the loss had label_smoothing={', '.join(sorted(smoothed))} in torch, whose exporter leaves it out; "
            "ckplan.export keeps it"
        )
    means = [line for line in _lines_of(graph, "ScatterElements") - _lines_of(graph, "Div") if _MEAN.search(line)]
    if means:
        notes.append(
            f"{len(means)} scatter_reduce took a mean in torch, whose exporter writes the last element in its place; "
            "ckplan.export keeps the mean"
        )
    divided = [line for line in _lines_of(graph, "AveragePool") - _lines_of(graph, "Mul") if _DIVIDED.search(line)]
    if divided:
        notes.append(
            f"{len(divided)} average(s) had a divisor_override in torch, whose exporter leaves it out; ckplan.export "
            "keeps it, without ceil_mode"
        )
    return tuple(notes)


def _batch_norm_notes(graph: ir.Graph) -> list[str]:
    """Note which batch normalisations were in training mode in torch: of those that are there, and of those folded."""
    nodes = [node for node in graph if _BATCH_NORM_IN_TRAINING.search(line_of(node)) is not None]
    kept = sum(is_op(node, "BatchNormalization") for node in nodes)
    notes = []
    if kept:
        notes.append(
            f"{kept} BatchNormalization node(s) were in training mode in torch, whose exporter writes the inference "
            "form; --training takes the statistics of the batch"
        )
    if len(nodes) > kept:
        notes.append(
            f"{len(nodes) - kept} BatchNormalization node(s) were in training mode in torch, whose exporter folded "
            "their inference form into the layers before them: what they make is not what torch made of the batch; "
            "ckplan.export keeps them"
        )
    return notes


def _lines_of(graph: ir.Graph, op_type: str) -> set[str]:
    """The lines of the program of which nodes of one type were made."""
    return {line_of(node) for node in graph if is_op(node, op_type)}
