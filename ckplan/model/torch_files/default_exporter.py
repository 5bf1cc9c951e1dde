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
taken apart again (see also `ckplan.model.torch_files.merged_nodes` and `merged_siblings` beside it), and computed ones
are matched with the parameters that they stand for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain

import onnx_ir as ir

from ckplan import keys
from ckplan.model.constants import copy_initializer
from ckplan.model.structure import TABLE, are_equal, structure_of
from ckplan.model.torch_files.dropped_biases import restore_biases
from ckplan.model.torch_files.exporter_metadata import (
    BUFFER,
    KIND,
    LINE,
    OPERAND,
    PARAMETER,
    Operand,
    buffers_of,
    folded_from,
    is_comparison_name,
    is_constant_name,
    is_looked_up_name,
    is_made_name,
    is_moved_name,
    is_product_name,
    module_around,
    module_of,
    operand_of,
    operands_in,
    operands_of,
    parameters_of,
    root_name,
)
from ckplan.model.torch_files.exporter_notes import doubtful_notes, mistaken_notes, signature_notes
from ckplan.model.torch_files.merged_constants import separate_constants
from ckplan.model.torch_files.merged_nodes import separate_nodes
from ckplan.model.torch_files.merged_siblings import separate_siblings

_RECURRENT = frozenset({"GRU", "LSTM", "RNN"})
_BIASES = 3
"""The input of a recurrent layer that holds both of its biases."""
_STATES = 5
"""The first of its inputs that are states before the first step."""


@dataclass(frozen=True)
class _Place:
    """An initializer at an input of a node."""

    node: ir.Node
    index: int
    value: ir.Value

    @property
    def is_state(self) -> bool:
        """Whether a recurrent layer begins with the value."""
        return self.node.op_type in _RECURRENT and self.index in (_STATES, _STATES + 1)

    @property
    def shifts(self) -> bool:
        return self.node.op_type == "Add" or (self.index == 2 and self.node.op_type not in _RECURRENT)


@dataclass(frozen=True)
class _Readers:
    """Places at which one initializer is read, and the parameters that the lines of the nodes there name."""

    names: set[str]
    places: list[_Place]


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
    separated = separate_constants(graph)
    present = {operand_of(value): value for value in graph.initializers.values()}
    restored = restore_biases(graph, operands, present)
    separated += _separate_computed(graph, operands) + _separate_merged(graph, operands, present)
    _join_copies(graph)
    parameters = parameters_of(graph)
    _mark_computed(graph, parameters, buffers_of(graph))
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
    _mark_constants(graph, parameters, _frozen_modules(operands.values()), complete=not lost)
    return (
        *signature_notes(graph, separated + len(found), restored, siblings, lost),
        *mistaken_notes(graph),
        *doubtful,
    )


def _separate_merged(graph: ir.Graph, operands: Mapping[str, Operand], present: dict[str, ir.Value]) -> int:
    """Let nodes read the operands that their lines name, where they read others in their places.

    Args:
        graph: the model's.
        operands: the tensors of the program.
        present: those of them that the file has; gets those that it has from now on.

    Returns:
        How many copies there are.
    """
    copies = 0
    for name, place in _matches(graph, operands):
        value, operand = place.value, operands[name]
        if operand_of(value):
            if name not in present:
                present[name] = copy_initializer(graph, value, operand.target)
                present[name].metadata_props.update({KIND: operand.kind, OPERAND: name})
                copies += 1
            place.node.replace_input_with(place.index, present[name])
        elif operand.is_parameter and name not in present:
            if value.metadata_props.get(keys.STANDS_FOR, operand.target) != operand.target:
                value = copy_initializer(graph, value, str(value.name))
                place.node.replace_input_with(place.index, value)
                copies += 1
            value.metadata_props[keys.STANDS_FOR] = operand.target
    return copies


def _mark_computed(graph: ir.Graph, parameters: set[str], buffers: set[str]) -> None:
    """Mark the initializers that were computed of one parameter, or of buffers alone."""
    for value in graph.initializers.values():
        computed_of = set(folded_from(value))
        sources = parameters & computed_of
        known = {name for name in computed_of if "." in name}  # the others were made on the way
        if keys.STANDS_FOR in value.metadata_props or not sources.isdisjoint(graph.initializers):
            continue
        of_one = (
            is_unstructured(value) or is_one_number(value) or _is_moved(value) or _is_of_nothing_else(value, sources)
        )
        if len(sources) == 1 and of_one:
            value.metadata_props[keys.STANDS_FOR] = sources.pop()
        elif (
            computed_of
            and not sources
            and known <= buffers
            and (is_unstructured(value) or any(map(is_comparison_name, computed_of)))
        ):
            # Not where all values are equal: then it may come of a parameter that was merged with a buffer.
            value.metadata_props[keys.STANDS_FOR] = ""


def _mark_constants(graph: ir.Graph, parameters: set[str], frozen: set[str], *, complete: bool) -> None:
    """Mark the initializers that stand for no parameter, as all of those are in the file.

    Args:
        graph: the model's.
        parameters: the names in the module of its parameters.
        frozen: the modules without parameters.
        complete: whether it is known where each of the parameters is.
    """
    unstructured = filter(is_unstructured, graph.initializers.values())
    here = {value.metadata_props.get(keys.STANDS_FOR) or value.name for value in unstructured}
    for value in graph.initializers.values():
        modules, sources = set(map(module_around, value.consumers())), parameters.intersection(folded_from(value))
        if operand_of(value) or value.name in parameters:  # of the latter a normalisation was folded into
            continue
        if sources:  # zeros computed of what is not zero are what it was multiplied by
            no_parameter = _is_zero(value) and (sources <= here or _is_product_of_zeros(value, sources))
        else:
            no_parameter = complete or (bool(modules) and modules <= frozen) or _is_made(value)
        if no_parameter:
            value.metadata_props.setdefault(keys.STANDS_FOR, "")


def is_unstructured(value: ir.Value) -> bool:
    """Whether an initializer holds numbers that may come from a parameter's: zeros in its shape do not."""
    tensor = value.const_value
    return tensor is not None and tensor.dtype.is_floating_point() and tensor.size > 1 and structure_of(tensor) is None


def _is_zero(value: ir.Value) -> bool:
    return value.const_value is not None and not value.const_value.numpy().any()


def _is_product_of_zeros(value: ir.Value, sources: set[str]) -> bool:
    """Whether zeros are what a program makes of a weight and of zeros, as in the first step of a cell without bias."""
    return len(sources) == 1 and is_product_name(str(value.name)) and any(map(is_made_name, folded_from(value)))


def is_one_number(value: ir.Value) -> bool:
    """Whether an initializer holds one number that is neither zero nor one, as what `zeros_like` makes is."""
    tensor = value.const_value
    if tensor is None or not tensor.dtype.is_floating_point() or tensor.size != 1:
        return False
    return float(tensor.numpy().reshape(())) not in (0.0, 1.0)


def _is_moved(value: ir.Value) -> bool:
    """Whether an initializer holds the very numbers of what it was computed of, or some of them, were they all zero."""
    name = str(value.name)
    made = any(map(is_made_name, (name, *folded_from(value))))
    return (is_moved_name(name) or is_looked_up_name(name)) and not made


def _is_of_nothing_else(value: ir.Value, sources: set[str]) -> bool:
    """Whether an initializer is a function of parameters alone that happen to follow a formula.

    Decays begin as a table, and a scale of which one is added begins with equal numbers. What a program makes of no
    tensor, or of constants, may be a table as well.
    """
    tensor, on_the_way = value.const_value, set(folded_from(value)) - sources
    if tensor is None or not tensor.dtype.is_floating_point():
        return False
    formula = structure_of(tensor)
    if formula == TABLE:
        return not any(map(is_constant_name, on_the_way))
    is_equal = formula is not None and formula.startswith("all ") and not _is_zero(value)
    return is_equal and not any(
        is_made_name(name) or is_comparison_name(name) for name in {str(value.name)} | on_the_way
    )


def _is_made(value: ir.Value) -> bool:
    """Whether all lines that read an initializer name it as what the program makes, such as ``zeros_3``, or of that.

    Of the states with which a recurrent layer begins its nodes may read a part, under another name; and what each layer
    makes anew was merged: then a line names ``unsqueeze_10`` where the file has ``unsqueeze``.
    """
    uses = value.uses()
    ways = {str(value.name), *folded_from(value)}
    for node, index in uses:
        name = _state_of(_Place(node, index, value)) or str(value.name)
        made = any(map(is_made_name, ways | {name}))
        if not made or root_name(name) not in map(root_name, operands_of(node.metadata_props.get(LINE, ""))):
            return False
    return bool(uses)


def is_state(value: ir.Value) -> bool:
    """Whether an initializer is what recurrent layers begin with, ``[directions, batch, hidden]``, and nothing else."""
    return bool(value.uses()) and all(_Place(node, index, value).is_state for node, index in value.uses())


def _state_of(place: _Place) -> str:
    """What the program calls the states of which a recurrent layer reads its first; empty elsewhere."""
    named = operands_of(place.node.metadata_props.get(LINE, ""))
    number = 1 + place.index - _STATES  # behind the sequence
    return named[number] if place.is_state and number < len(named) else ""


def _frozen_modules(operands: Iterable[Operand]) -> set[str]:
    """Modules of buffers without parameters, such as a frozen BatchNorm: what they compute beforehand is no weight.

    Those with parameters further down are none: a table of positions is read there, and added by the module above.
    """
    owners: dict[str, set[str]] = {BUFFER: set(), PARAMETER: set()}
    for operand in operands:
        module = module_of(operand.target)
        owners.setdefault(operand.kind, set()).add(module)
        while module and operand.is_parameter:
            module = module_of(module)
            owners[PARAMETER].add(module)
    return owners[BUFFER] - owners[PARAMETER] - {""}


def _join_copies(graph: ir.Graph) -> None:
    """Let one initializer stand for a parameter: a layer that is used several times is computed with as often."""
    first: dict[str, list[ir.Value]] = defaultdict(list)
    for name, value in list(graph.initializers.items()):
        target, tensor = value.metadata_props.get(keys.STANDS_FOR), value.const_value
        if not target or tensor is None or value.is_graph_output():
            continue
        for other in first[target]:
            if other.const_value is not None and are_equal(other.const_value, tensor):
                value.replace_all_uses_with(other)
                del graph.initializers[name]
                break
        else:
            first[target].append(value)


def _separate_computed(graph: ir.Graph, operands: Mapping[str, Operand]) -> int:
    """Copy what was computed of several equal parameters and merged: lines that read it name none in common.

    Zeros and the like may be of no parameter; of which they are, `_matches` tells.

    Returns:
        How many copies there are.
    """
    copies = 0
    parameters = {operand.target for operand in operands.values() if operand.is_parameter}
    for value, groups in _readers_of_computed(graph, operands).items():
        targets = {operands[name].target for group in groups for name in group.names}
        # What is computed of a parameter that no such line names, as a table of positions that layers share, is one.
        is_of_them = not targets.isdisjoint(folded_from(value)) if folded_from(value) else value.name in parameters
        recurrent = all(place.node.op_type in _RECURRENT for group in groups for place in group.places)
        for group in groups[1:] if is_of_them and (recurrent or is_unstructured(value)) else ():
            copy = copy_initializer(graph, value, str(value.name))
            copies += 1
            for place in group.places:
                place.node.replace_input_with(place.index, copy)
    return copies


def _readers_of_computed(graph: ir.Graph, operands: Mapping[str, Operand]) -> dict[ir.Value, list[_Readers]]:
    """Who reads what was computed of parameters, apart where the lines name no parameter in common."""
    readers: dict[ir.Value, list[_Readers]] = defaultdict(list)
    for node in graph:
        read = operands_of(node.metadata_props.get(LINE, ""))
        named = {name for name in read if name in operands and operands[name].is_parameter}
        for place in _places([node]) if named else ():
            if operand_of(place.value):
                continue
            groups = readers[place.value]
            joined = [group for group in groups if not named.isdisjoint(group.names)]
            apart = [group for group in groups if named.isdisjoint(group.names)]
            names = named.union(*(group.names for group in joined))
            groups[:] = [*apart, _Readers(names, [*chain.from_iterable(group.places for group in joined), place])]
    return readers


def _matches(graph: ir.Graph, operands: Mapping[str, Operand]) -> list[tuple[str, _Place]]:
    """Which operands of the program are read in the place of others: each with where."""
    lines: dict[str, list[ir.Node]] = defaultdict(list)
    for node in graph:
        if line := node.metadata_props.get(LINE):
            lines[line].append(node)
    found: list[tuple[str, _Place]] = []
    for line, nodes in lines.items():
        named = [name for name in operands_of(line) if name in operands]
        strange: list[_Place] = []
        layers = sum(node.op_type in _RECURRENT for node in nodes)
        for place in _places(nodes):
            name = operand_of(place.value)
            state = _state_of(place)
            if state in named:
                named.remove(state)
                if layers == 1:  # else each reads a part
                    found.append((state, place))
                continue
            if name in named:
                named.remove(name)
            elif not _is_of_several(place) and not _is_named(place, line, operands):
                strange.append(place)
        for shifts in (False, True):
            names = [name for name in named if ("bias" in operands[name].target.rpartition(".")[2]) == shifts]
            places = [place for place in strange if place.shifts == shifts]
            if len(names) == len(places):
                found.extend(zip(names, places, strict=True))
            elif len(named) == len(strange):
                found.extend(zip(named, strange, strict=True))
                break
    return found


def _is_named(place: _Place, line: str, operands: Collection[str]) -> bool:
    """Whether a line names what a node reads as something that the program computed, or something merged with that."""
    computed = (root_name(name) for name in operands_of(line) if name not in operands)
    return root_name(str(place.value.name)) in computed


def _is_of_several(place: _Place) -> bool:
    """Whether what a node reads stands for no parameter: for several, or for none."""
    if place.node.op_type in _RECURRENT:
        return place.index == _BIASES or place.is_state
    return place.value.metadata_props.get(keys.STANDS_FOR) == ""


def _places(nodes: list[ir.Node]) -> list[_Place]:
    return [
        _Place(node, index, value)
        for node in nodes
        for index, value in enumerate(node.inputs)
        if value is not None
        and value.is_initializer()
        and value.dtype is not None
        and value.dtype.is_floating_point()
        and (operand_of(value) or len(value.shape or ()) > 0)
    ]
