"""Which initializers of a file of torch's default exporter stand for a parameter, and which for none.

Its optimiser computes what depends on parameters alone, so that a transposed weight becomes ``val_110``, a name as
constants have it. An initializer that stands for a parameter of the module gets `keys.STANDS_FOR`; one that stands for
none gets it as an empty text.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import onnx_ir as ir

from ckplan import keys
from ckplan.model.structure import Kind, are_equal, is_one_number, is_unstructured, structure_of
from ckplan.model.torch_files.exporter_metadata import (
    BUFFER,
    PARAMETER,
    Operand,
    folded_from,
    is_comparison_name,
    is_constant_name,
    is_looked_up_name,
    is_made_name,
    is_moved_name,
    is_place_name,
    is_product_name,
    line_of,
    module_around,
    module_of,
    operand_of,
    operands_of,
    root_name,
)
from ckplan.model.torch_files.merged_initializers import state_of


def join_copies(graph: ir.Graph) -> None:
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


def mark_computed(graph: ir.Graph, parameters: set[str], others: set[str]) -> None:
    """Mark the initializers that were computed of one parameter, or of buffers and constants alone.

    Args:
        graph: the model's.
        parameters: the names in the module of its parameters.
        others: those of its buffers, and of the constants that were written in it.
    """
    for value in graph.initializers.values():
        computed_of = set(folded_from(value))
        sources = parameters & computed_of
        known = {name for name in computed_of if "." in name}  # the others were made on the way
        if keys.STANDS_FOR in value.metadata_props or not sources.isdisjoint(graph.initializers):
            continue
        of_one = (
            is_unstructured(value)
            or is_one_number(value)
            or _is_moved(value, sources)
            or _is_of_nothing_else(value, sources)
        )
        if len(sources) == 1 and of_one:
            value.metadata_props[keys.STANDS_FOR] = sources.pop()
        elif (
            computed_of
            and not sources
            and known <= others
            and (is_unstructured(value) or any(map(is_comparison_name, computed_of)))
        ):
            # Not where all values are equal: then it may come of a parameter that was merged with a buffer.
            value.metadata_props[keys.STANDS_FOR] = ""


def mark_constants(graph: ir.Graph, parameters: set[str], frozen: set[str], *, complete: bool) -> None:
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


def _is_zero(value: ir.Value) -> bool:
    return value.const_value is not None and not value.const_value.numpy().any()


def _is_product_of_zeros(value: ir.Value, sources: set[str]) -> bool:
    """Whether zeros are what a program makes of a weight and of zeros, as in the first step of a cell without bias."""
    return len(sources) == 1 and is_product_name(str(value.name)) and any(map(is_made_name, folded_from(value)))


def _is_moved(value: ir.Value, sources: set[str]) -> bool:
    """Whether an initializer holds the very numbers of what it was computed of, or some of them, were they all zero.

    Zeros that the program made are places where nothing but a look-up reads them, such as the types of all tokens.
    """
    name, on_the_way = str(value.name), set(folded_from(value)) - sources
    if is_looked_up_name(name) and all(is_place_name(way) or is_moved_name(way) for way in on_the_way):
        return True
    return (is_moved_name(name) or is_looked_up_name(name)) and not any(map(is_made_name, (name, *on_the_way)))


def _is_of_nothing_else(value: ir.Value, sources: set[str]) -> bool:
    """Whether an initializer is a function of parameters alone that happen to follow a formula.

    Decays begin as a table, and a scale of which one is added begins with equal numbers. What a program makes of no
    tensor, or of constants, may be a table as well, but for the product of one with a weight, which is trained by it.
    """
    tensor, on_the_way = value.const_value, set(folded_from(value)) - sources
    if tensor is None or not tensor.dtype.is_floating_point():
        return False
    formula = structure_of(tensor)
    if formula is None:
        return False
    if formula.kind is Kind.TABLE:
        is_product = is_product_name(str(value.name)) or root_name(str(value.name)) == "einsum"
        return is_product or not any(map(is_constant_name, on_the_way))
    is_equal = formula.kind is Kind.EQUAL and not _is_zero(value)
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
        name = state_of(node, index) or str(value.name)
        made = any(map(is_made_name, ways | {name}))
        if not made or root_name(name) not in map(root_name, operands_of(line_of(node))):
            return False
    return bool(uses)


def frozen_modules(operands: Iterable[Operand]) -> set[str]:
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
