"""Modules and parameters side by side that read the same and begin equal, as two norms before two branches do.

A block that runs attention and its other layers side by side has a norm for each (GPT-NeoX, Falcon), and relative
attention adds two biases to the same queries. Before anything has trained them they hold the same numbers, so torch's
optimiser merges them (see `ckplan.model.torch_files.merged_nodes`) and what was computed of them, be it beforehand, and
no node of the second is left that would say whose it was.

What is left is the line of the reader: it names ``layer_norm_1`` where it reads ``layer_norm``, and ``layer_norm_1`` is
not in the file. A program that computes one thing twice leaves the same, so this goes by what the module has lost: as
many siblings, each whole, as there are such names. The first name is taken for the first of them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence

import onnx_ir as ir

from ckplan.model.structure import has_one_value
from ckplan.model.torch_files.exporter_metadata import (
    folded_from,
    has_taken_in_norm,
    known_names,
    line_of,
    made_by,
    module_around,
    module_of,
    modules_around,
    operands_of,
    root_name,
)
from ckplan.model.torch_files.merged_nodes import (
    MATRIX,
    MOST_ELEMENTS,
    behind,
    copy_with,
    not_computed_with,
    target_of,
)

_Places = list[tuple[ir.Node, int]]
_Twin = dict[ir.Value, str]
"""Parameters, each with the name in the module of the one that was merged with it."""


def separate_siblings(graph: ir.Graph, listed: Sequence[str], lost: Collection[str]) -> dict[str, str]:
    """Give readers of what was merged, in place, what was computed of the siblings that are lost.

    Args:
        graph: of torch's default exporter.
        listed: the names in the module of its parameters and buffers, in the order of the program.
        lost: parameters of which it is not known where they are in the file.

    Returns:
        Those of which it is known now, each with the one that it was merged with.
    """
    lost = not_computed_with(graph, lost)
    missing = _missing_names(graph) if lost else {}
    paths = {value: behind(value, None) for value in missing}
    found: list[tuple[ir.Value, _Places, _Twin]] = []
    for value, names in missing.items():
        sources = [source for source in paths[value][1] if target_of(source) not in lost]
        twins = next(_twins(value, sources, listed, lost, len(names)), [])
        found += [(value, places, twin) for places, twin in zip(names.values(), twins, strict=bool(twins))]
    readers: dict[str, set[ir.Node]] = defaultdict(set)
    claims: dict[str, set[str]] = defaultdict(set)
    for _, places, twin in found:
        for source, target in twin.items():
            readers[target].update(node for node, _ in places)
            claims[target].add(target_of(source))
    merged_with: dict[str, str] = {}
    copies: dict[frozenset[tuple[ir.Value, str]], dict[ir.Value, ir.Value]] = defaultdict(dict)
    apart: dict[str, ir.Value] = {}
    for value, places, twin in found:
        nodes = paths[value][0]
        # What was computed of both, such as their sum, is no twin; of two that claim one parameter neither is right.
        if any(len(claims[target]) > 1 or not readers[target].isdisjoint(nodes) for target in twin.values()):
            continue
        copy_with(graph, nodes, twin, known := copies[frozenset(twin.items())], apart)
        for reader, index in places:
            reader.replace_input_with(index, known[value])
        merged_with.update({target: target_of(source) for source, target in twin.items()})
    return merged_with


def _missing_names(graph: ir.Graph) -> dict[ir.Value, dict[str, _Places]]:
    """Values that are read under names that the file has not: each name, in the order of the program, with where."""
    known = known_names(graph)
    found: dict[ir.Value, dict[str, _Places]] = defaultdict(lambda: defaultdict(list))
    for reader in graph:
        line = "" if has_taken_in_norm(reader) else line_of(reader)
        names = operands_of(line)
        for value in dict.fromkeys(reader.inputs) if names else ():
            producer = None if value is None else value.producer()
            if value is None or not (producer or folded_from(value)):
                continue
            if producer is not None and line_of(producer) == line:
                continue
            own = {str(value.name), *([] if producer is None else [made_by(producer)])}
            read_as = [name for name in names if name in own or name not in known]
            places = [index for index, read in enumerate(reader.inputs) if read is value]
            if len(set(read_as)) == 1:
                read_as = read_as[:1] * len(places)
            for name, index in zip(read_as, places, strict=True) if len(read_as) == len(places) else ():
                if name not in own and root_name(name) in map(root_name, own):
                    found[value][name].append((reader, index))
    return {value: dict(sorted(names.items(), key=lambda one: _number(one[0]))) for value, names in found.items()}


def _number(name: str) -> int:
    """The number that tells an operation of the program from others of its kind."""
    return int(name.removeprefix(root_name(name)).lstrip("_") or 0)


def _twins(
    value: ir.Value, sources: Sequence[ir.Value], listed: Sequence[str], lost: Sequence[str], count: int
) -> Iterator[list[_Twin]]:
    """What may have been merged with parameters that a value was computed of, one twin for each of its other names.

    Args:
        value: read under several names.
        sources: parameters that it was computed of.
        listed: the names in the module of all parameters and buffers, in the order of the program.
        lost: parameters that may have been merged, in that order.
        count: how many other names there are.
    """
    producer = value.producer()
    if producer is None:  # what was computed of a parameter beforehand was so in its module
        scope = inner = module_of(target_of(value))
    else:
        scope, inner = module_around(producer), module_around(_without_what_follows(producer))
    for module in reversed(list(modules_around(inner))):
        inside = [source for source in sources if target_of(source).startswith(f"{module}.")]
        if not inside or not all(map(_is_small, inside)):
            continue
        whole = _below(module, lost) | _below(module, map(target_of, inside))
        siblings = [
            other
            for other in _beside(module, lost)
            if _below(other, listed) == _below(module, listed) and _below(other, lost) == whole
            if all(map(_begins_as_one_value, inside))
            or (any(map(_is_matrix, inside)) and _are_called_alike(other, module))
        ]
        if len(siblings) == count:
            yield [{one: other + target_of(one).removeprefix(module) for one in inside} for other in siblings]
    beside = {
        source: others
        for source in sources
        if _place(target_of(source))[0] == scope and _begins_as_one_value(source)
        if (others := _called_alike(target_of(source), lost))
    }
    if {len(others) for others in beside.values()} == {count}:
        yield [{source: others[number] for source, others in beside.items()} for number in range(count)]


def _without_what_follows(node: ir.Node) -> ir.Node:
    """The node in a module of its own behind which a node and those before it, in the module around, do one thing."""
    scope = module_around(node)
    one = node
    while module_around(one) == scope:
        producers = [value.producer() for value in one.inputs if value is not None]
        before = [producer for producer in producers if producer is not None]
        if len(before) != 1:
            return node
        (one,) = before
    return one if module_around(one).startswith(f"{scope}.".lstrip(".")) else node


def _below(module: str, targets: Iterable[str]) -> set[str]:
    """What parameters of a module are called in it."""
    return {target.removeprefix(module) for target in targets if target.startswith(f"{module}.")}


def _beside(module: str, targets: Iterable[str]) -> list[str]:
    """The other modules in the one around, of those that have certain parameters."""
    around = f"{module_of(module)}.".lstrip(".")
    names = [around + target.removeprefix(around).split(".")[0] for target in targets if target.startswith(around)]
    return [name for name in dict.fromkeys(names) if name != module]


def _called_alike(target: str, others: Iterable[str]) -> list[str]:
    """Of parameters those in the list of another or numbered as it is; if there are none, those a letter from it."""
    place = _place(target)
    return [one for one in others if _place(one) == place] or [one for one in others if _are_called_alike(one, target)]


def _are_called_alike(one: str, other: str) -> bool:
    """Whether two names in one module differ by their numbers or by a letter."""
    (module, name), (beside, second) = _place(one), _place(other)
    letters = sum(a != b for a, b in zip(name, second, strict=False))
    return module == beside and len(name) == len(second) and letters <= 1


def _place(target: str) -> tuple[str, str]:
    """The module of a parameter and its name there, without its number in a list or at the end of the name."""
    module, _, name = re.sub(r"\.\d+$", "", target).rpartition(".")
    return module, name.rstrip("0123456789")


def _begins_as_one_value(source: ir.Value) -> bool:
    """Whether nothing has trained a small parameter yet. A trained norm may be used twice, beside an idle one."""
    tensor = source.const_value
    return _is_small(source) and tensor is not None and has_one_value(tensor)


def _is_small(source: ir.Value) -> bool:
    return source.const_value is not None and source.const_value.size <= MOST_ELEMENTS


def _is_matrix(source: ir.Value) -> bool:
    return source.const_value is not None and len(source.const_value.shape) >= MATRIX
