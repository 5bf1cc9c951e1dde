"""Constants of a program that torch's default exporter merged with parameters of equal numbers.

What a program makes of nothing (``torch.ones(8)``) is a constant, as are numbers in its lines (``2 * x``). And ONNX's
normalisations want a scale: where the module has none (``elementwise_affine=False``, ``affine=False``), and in the node
by which a group norm is written in older operator sets, the exporter puts ones and zeros. Of a module that nothing has
trained its optimiser keeps one tensor for these and for a scale or a bias, which would get the gradients of both.

The line of the reader tells: it names ``ones``, which the file has not, gives a normalisation no scale, or names no
tensor for a number that is read. Where a tool removed the lines, ones under a number for a name tell, as the exporter
leaves scales of a module their names.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Set

import onnx_ir as ir

from ckplan.keys import FROZEN, STANDS_FOR
from ckplan.model.constants import copy_initializer
from ckplan.model.structure import has_one_value
from ckplan.model.torch_files.exporter_metadata import (
    KIND,
    is_constant_name,
    is_parameter,
    line_of,
    names_there,
    operand_of,
    operands_in,
    operands_of,
)
from ckplan.operators.matching import is_op

_NORMALISATIONS = (
    "BatchNormalization",
    "GroupNormalization",
    "InstanceNormalization",
    "LayerNormalization",
    "RMSNormalization",
)
_SCALE_AND_SHIFT = (1, 2)
"""Where they read these."""
_GIVEN = re.compile(r"args = \(%\w+, (.*)\), kwargs = \{\}")
"""What a line gives a normalisation beside what is normalised."""
_GROUP_NORM = "group_norm.default]("
"""The call in a line; the name alone may be that of what the call reads."""
_NUMBER = re.compile(r"val_\d+")
"""How the exporter calls what it made itself."""
_LIST = re.compile(r"\[[^]]*\]")
_TENSOR = re.compile(r"(?<![^ ])(?:%\w+|None)(?![^,])")


def separate_constants(graph: ir.Graph) -> int:
    """Give readers of such constants tensors of their own, marked as what stands for no parameter, in place.

    Args:
        graph: of torch's default exporter.

    Returns:
        How many copies there are.
    """
    there = names_there(graph)
    lines = Counter(line_of(node) for node in graph)
    places: dict[ir.Value, list[tuple[ir.Node, int]]] = defaultdict(list)
    for node in graph:
        line = line_of(node)
        found = {*_without_affine(node, line), *_numbers(node, line, there)}
        if lines[line] == 1:
            found.update(_made(node, line, there))
        for index in sorted(found):
            value = node.inputs[index]
            assert value is not None
            places[value].append((node, index))
    copies = 0
    for value, read in places.items():
        own = value
        if KIND in value.metadata_props or len(value.uses()) > len(read):
            own = copy_initializer(graph, value, f"{value.name}_constant")
            copies += 1
            for node, index in read:
                node.replace_input_with(index, own)
        own.metadata_props[STANDS_FOR] = ""
    return copies


def _numbers(node: ir.Node, line: str, there: Set[str]) -> Iterator[int]:
    """Where a node reads a parameter of one number that its line does not name, and the file has all that it names."""
    names = operands_of(line)
    if not line or not there >= set(names):
        return
    for index, value in enumerate(node.inputs):
        tensor = None if value is None or not is_parameter(value) else value.const_value
        if value is not None and tensor is not None and tensor.size == 1 and operand_of(value) not in names:
            yield index


def freeze_ones(model: ir.Model) -> tuple[str, ...]:
    """Mark scales and shifts of normalisations that have none with `keys.FROZEN`, in place, where no lines tell.

    Returns:
        Notes: none, since what is not trained is named anyway.
    """
    if model.producer_name != "pytorch" or operands_in(model.graph):
        return ()
    places: Counter[ir.Value] = Counter()
    for node in model.graph:
        read = [value for value in node.inputs[1:3] if value is not None] if is_op(node, _NORMALISATIONS) else []
        if all(map(_is_number, read)):
            places.update(read)
    for value, count in places.items():
        if count == len(value.uses()):
            value.metadata_props[FROZEN] = "of a normalisation without a scale, as it seems"
    return ()


def _is_number(value: ir.Value) -> bool:
    """Whether an initializer holds ones or zeros, and the default exporter made up its name."""
    tensor = value.const_value if value.is_initializer() else None
    return tensor is not None and _NUMBER.fullmatch(str(value.name)) is not None and has_one_value(tensor)


def _without_affine(node: ir.Node, line: str) -> Iterator[int]:
    """Where a normalisation reads a scale or a shift that its line does not give it."""
    given = _GIVEN.search(line) if is_op(node, _NORMALISATIONS) else None
    if given is None:
        return
    tensors = _TENSOR.findall(_LIST.sub("[]", given[1]))
    # Scale and shift of a group norm come behind the node by which older operator sets write it.
    behind = node.op_type == "InstanceNormalization" and _GROUP_NORM in line
    for number, index in enumerate(_SCALE_AND_SHIFT):
        value = node.inputs[index] if index < len(node.inputs) else None
        absent = behind or number >= len(tensors) or tensors[number] == "None"
        if absent and value is not None and value.is_initializer():
            yield index


def _made(node: ir.Node, line: str, there: Set[str]) -> Iterator[int]:
    """Where a node, the only one of its line, reads an operand in the place of a constant that the file has not."""
    names = operands_of(line)
    for index, (name, value) in enumerate(zip(names, node.inputs, strict=False)):
        is_gone = len(names) == len(node.inputs) and is_constant_name(name) and name not in there
        if is_gone and value is not None and operand_of(value):
            yield index
