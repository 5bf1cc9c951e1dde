"""Nodes that torch's optimiser merged, because it had merged the parameters that they read, are apart again.

Where two modules begin with equal parameters, as the layers of ``torch.nn.TransformerDecoder`` do, and with biases of
zeros, the optimiser of torch's default exporter keeps one of them. Then nodes that read nothing else are equal as well,
such as the Split of a projection into that of queries and that of keys and values, and one is left: by its other
outputs the second module would read the parameter of the first for ever.

Such a reader is known by its line of the program, which does not name what it reads, by its module, and by a parameter
of that module which is nowhere: what it reads is computed of a parameter that has the same place in another module. The
optimiser keeps the first of equal parameters. Of those that the modules share, the program reads the last.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

import onnx_ir as ir

from ckplan import keys
from ckplan.model.constants import copy_initializer, unused_name
from ckplan.model.node_copies import copy_nodes
from ckplan.model.structure import has_one_value
from ckplan.model.torch_files.exporter_metadata import (
    KIND,
    PARAMETER,
    folded_from,
    has_taken_in_norm,
    is_parameter,
    line_of,
    made_by,
    module_around,
    modules_around,
    operands_in,
    operands_of,
    root_name,
)

_FARTHEST = 64
"""How many nodes lie at most between a parameter and a reader of what was computed of it and of other things."""
MOST_ELEMENTS = 1024
"""Of so many elements at most the optimiser merges a tensor with an equal one."""
MATRIX = 2
"""Of this rank a tensor is a matrix at least."""
_INSIDE = re.compile(r"val_\d+")
"""What is called so has no name in the program: nodes of one line read it, and of another where they were merged."""


def separate_nodes(graph: ir.Graph, parameters: Sequence[str], lost: Collection[str]) -> set[str]:
    """Copy, in place, nodes that were merged along with their parameters.

    Args:
        graph: of torch's default exporter.
        parameters: the names in the module of its parameters, in the order of the program.
        lost: those of which it is not known where they are in the file.

    Returns:
        Those of which it is known now.
    """
    lost = not_computed_with(graph, lost)
    if not lost:
        return set()
    made = {str(value.name) for node in graph for value in node.outputs} | set(graph.initializers)
    constant = _computed_of_nothing_else(graph)
    # For each set of parameters, what was copied: the originals and their copies.
    copies: dict[frozenset[tuple[ir.Value, str]], dict[ir.Value, ir.Value]] = defaultdict(dict)
    apart: dict[str, ir.Value] = {}
    order = {target: number for number, target in enumerate(parameters)}
    for reader in list(graph):
        modules = modules_around(module_around(reader))
        around = [one for one in modules if any(target.startswith(f"{one}.") for target in lost)]
        for value in _read_of_others(reader, constant, made) if around else ():
            nodes, sources = behind(value, None if value in constant else _FARTHEST)
            if value not in constant:  # a bias may be lost for its zeros, which the exporter drops
                sources = list(filter(may_be_merged, sources))
            pairs = next(filter(None, (_pairs(one, lost, sources, order) for one in around)), {})
            if not pairs:
                continue
            copy_with(graph, nodes, pairs, known := copies[frozenset(pairs.items())], apart)
            for index, read in enumerate(reader.inputs):
                if read is value:
                    reader.replace_input_with(index, known[value])
    return set(apart)


def not_computed_with(graph: ir.Graph, lost: Collection[str]) -> list[str]:
    """Those of the lost parameters that may have been merged: what the exporter computed with was not.

    That are also those of a norm that it folded into a convolution, and the weight there, whose name the result has.
    """
    operands = operands_in(graph)
    computed_with = {name for value in graph.initializers.values() for name in folded_from(value)}
    computed_with |= {name for name, value in graph.initializers.items() if value.uses()}
    for node in filter(has_taken_in_norm, graph):
        named = operands_of(line_of(node))
        computed_with |= {operands[name].target for name in named if name in operands}
    return [target for target in lost if target not in computed_with]


def _read_of_others(reader: ir.Node, constant: Collection[ir.Value], made: Collection[str]) -> list[ir.Value]:
    """What a node reads that may have been made for another line of the program.

    Args:
        reader: a node.
        constant: what is computed of initializers alone.
        made: the names that the file has.
    """
    line = "" if has_taken_in_norm(reader) else line_of(reader)
    names = operands_of(line)
    read = dict.fromkeys(value for value in reader.inputs if value is not None) if names else ()
    strange = [value for value in read if not _is_named(value, names) and _line_behind(value) != line]
    return [value for value in strange if value in constant or _is_of_another(value, names, made)]


def _is_named(value: ir.Value, names: Collection[str]) -> bool:
    """Whether a line reads a value by its name, or by that of the line that its node was made of."""
    node = value.producer()
    return value.name in names or (node is not None and made_by(node) in names)


def _line_behind(value: ir.Value) -> str:
    """The line of the program that a value was made by; empty if there is none."""
    node = value.producer()
    return "" if node is None else line_of(node)


def _is_of_another(value: ir.Value, names: list[str], made: Collection[str]) -> bool:
    """Whether what a line reads was made for another one, as its name shows.

    Args:
        value: read, and not by the name that it has.
        names: those that the line reads.
        made: those that the file has.
    """
    name = str(value.name)
    if _INSIDE.fullmatch(name):
        return True
    return any(one not in made and root_name(one) == root_name(name) for one in names)


def target_of(value: ir.Value) -> str:
    """The name in the module of the parameter that an initializer is or stands for; empty if it is none."""
    if is_parameter(value):
        return str(value.name)
    return value.metadata_props.get(keys.STANDS_FOR, "")


def _computed_of_nothing_else(graph: ir.Graph) -> set[ir.Value]:
    """Values that are initializers or computed of them alone."""
    found = set(graph.initializers.values())
    for node in graph:
        inputs = [value for value in node.inputs if value is not None]
        if inputs and found.issuperset(inputs):
            found.update(node.outputs)
    return found


def behind(value: ir.Value, most: int | None) -> tuple[list[ir.Node], list[ir.Value]]:
    """The nodes that a value comes from, the nearest first, and the parameters among what these read.

    Args:
        value: where to begin.
        most: how many nodes are looked at; None for all.
    """
    nodes: dict[ir.Node, None] = {}
    sources: dict[ir.Value, None] = {}
    waiting = [value]
    while waiting and (most is None or len(nodes) < most):
        one = waiting.pop(0)
        node = one.producer()
        if node is None:
            if one.is_initializer() and target_of(one):
                sources[one] = None
        elif node not in nodes:
            nodes[node] = None
            waiting.extend(read for read in node.inputs if read is not None)
    return list(nodes), list(sources)


def _pairs(
    module: str, lost: Collection[str], sources: list[ir.Value], order: Mapping[str, int]
) -> dict[ir.Value, str]:
    """Which parameters were merged with which of those that are lost: the places in their modules are the same.

    Args:
        module: that of the reader, or one that it is in.
        lost: parameters, of which those in that module are meant.
        sources: parameters that what it reads was computed of.
        order: the place of a parameter in the program.
    """
    found: dict[ir.Value, str] = {}
    for target in sorted(lost, key=len):  # of two places the one that is told more exactly
        if not target.startswith(f"{module}."):
            continue
        alike = [
            one
            for one in sources
            if (name := target_of(one)).endswith(target.removeprefix(module))
            if not name.startswith(f"{module}.") and order.get(name, len(order)) < order[target]
        ]
        if len(alike) == 1:
            found[alike[0]] = target
    return found


def may_be_merged(value: ir.Value) -> bool:
    """Whether the optimiser may have found another parameter equal to one: a small one that nothing has trained yet.

    A matrix begins as a copy where its module does; a vector that does is one value throughout.
    """
    tensor = value.const_value
    if tensor is None or tensor.size > MOST_ELEMENTS:
        return False
    return len(tensor.shape) >= MATRIX or has_one_value(tensor)


def _copy(graph: ir.Graph, source: ir.Value, target: str) -> ir.Value:
    """Give a graph a parameter with the numbers of another."""
    is_one = is_parameter(source)
    left = graph.initializers.get(target)
    if is_one and left is not None and not left.uses():
        return left  # what its readers had in common with others has been given to those
    copy = copy_initializer(graph, source, target if is_one else str(source.name))
    copy.metadata_props.update({KIND: PARAMETER} if is_one else {**source.metadata_props, keys.STANDS_FOR: target})
    return copy


def copy_with(
    graph: ir.Graph,
    nodes: list[ir.Node],
    pairs: Mapping[ir.Value, str],
    known: dict[ir.Value, ir.Value],
    apart: dict[str, ir.Value],
) -> None:
    """Copy, in place, what depends on parameters that were merged with others: each node behind the original.

    Args:
        graph: gets the copies.
        nodes: of which those are copied that depend on such parameters.
        pairs: parameters, each with the name in the module of what was merged with it.
        known: originals and their copies; what is there is not copied again, and what is copied is added.
        apart: by their names in the module, the parameters that were copied; those that are now are added.
    """
    for source, target in pairs.items():
        if target not in apart:
            apart[target] = _copy(graph, source, target)
        known[source] = apart[target]
    order = {node: number for number, node in enumerate(graph)}
    for node in sorted(nodes, key=order.__getitem__):
        if node.outputs[0] in known or known.keys().isdisjoint(node.inputs):
            continue
        (copy,) = copy_nodes([node], known, lambda name: unused_name(graph, name), {})
        graph.insert_after(node, copy)
