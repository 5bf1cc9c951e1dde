"""What exporters of torch computed of parameters beforehand is computed in the graph again, where values tell how.

The optimiser of torch's default exporter computes what depends on parameters alone: the `1 - mix` of a time mix, the
`1 / p` of a generalised mean, the normalised rows of a classifier by cosines. Where the parameter is read elsewhere as
well it stays in the file, and its gradient lacks the part that went through what was computed. The result's metadata
name the tensors that it was computed of. Where the parameter is not read itself but two things of it are, the
`sigmoid(g)` and `1 - sigmoid(g)` of a gate, each would be trained by itself: the one is computed of the other, or
else a note says so.

The exporter before it folds as well (norms of rows, differences, squares), and says of nothing what it is of. There the
values have to tell alone.

Of a file with a fixed batch it also computes the first step of a recurrent cell that begins with zeros: what is left of
the product of the state is a bias, once for each sample.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from ckplan import keys
from ckplan.display import shortened
from ckplan.model.inference.infer import static_shape
from ckplan.model.literals import is_numbered
from ckplan.model.structure import is_one_number, is_unstructured
from ckplan.model.torch_files.concatenated import put_concat
from ckplan.model.torch_files.exporter_metadata import (
    buffers_of,
    folded_from,
    is_comparison_name,
    is_made_name,
    is_moved_name,
    is_parameter,
    parameters_of,
)
from ckplan.model.torch_files.functions import (
    ELEMENTWISE,
    Array,
    Function,
    array_of,
    compute,
    divided,
    is_named_in,
    matching,
    normalised,
    reductions,
    reshaped,
    scaled,
    shifted,
    transposed,
)
from ckplan.model.torch_files.products import put_product
from ckplan.model.torch_files.repeats import put_expand
from ckplan.operators.matching import is_op

_LISTED = 4
"""How many parameters of a tensor a note names."""
_NEAR = 1e-3
"""How far the first number of a tensor may lie from what a function makes of another's, to compare all of them."""
_FEWEST = 4
"""How many numbers there are at least where nothing but the numbers tells what a tensor was computed of."""
_MATRIX = 2
_BEFORE_DIVISION = frozenset({"Clip", "Expand", "Identity", "Max"})
"""What stands between lengths and what they divide."""
_FACTOR = re.compile(r"(div|mul|neg)(_\d+)?")
"""How torch calls what multiplies by a number."""
_SUM = re.compile(r"add(_\d+)?")
_TERM = re.compile(rf"{_SUM.pattern}|sub(_\d+)?")
"""How it calls what adds one."""
_NUMBER = re.compile(r"val_\d+|scalar_tensor(_\w+)?")
"""What holds a number of the program."""


def unfold(model: ir.Model) -> tuple[str, ...]:
    """Compute again, in place, what was computed of parameters that are in the file as well.

    Returns:
        Notes: what is computed again, and what cannot be, so that a gradient lacks a part or is one of several.
    """
    graph, opset = model.graph, model.opset_imports.get("", 1)
    here = _parameters_here(graph)
    gone = parameters_of(graph) - here.keys()
    again, lacking = [], []
    for value in list(graph.initializers.values()):
        parameters = [here[name] for name in folded_from(value) if name in here]
        if not parameters or not _is_numbers(value) or value.metadata_props.get(keys.STANDS_FOR):
            continue
        function = _function(value, parameters[0], opset) if len(parameters) == 1 else None
        row = _repeated(value, parameters)
        said = f"'{value.name}' of '{(row or parameters[0]).name}'"
        if row is not None and not value.is_graph_output():
            put_expand(graph, value, row)
            again.append(said)
        elif function is not None and not value.is_graph_output():
            compute(graph, value, parameters[0], function)
            again.append(said)
        elif not value.is_graph_output() and (
            put_concat(graph, value, parameters)
            or put_product(graph, value, parameters, len(set(folded_from(value)) & gone) == 1)
        ):
            again.append(f"'{value.name}' of {_listed(value, parameters)}")
        elif (
            is_unstructured(value) or is_one_number(value) or not (_is_filled(value) or _is_of_sizes(value, parameters))
        ):
            lacking.append(f"'{value.name}' of {_listed(value, parameters)}")
            if _is_total(value, parameters):
                value.metadata_props[keys.FROZEN] = "a number of parameters that are trained themselves"
    of_each_other, apart = _of_each_other(graph, opset)
    again.extend((*of_each_other, *_of_named(graph, opset)))
    notes = []
    if again:
        notes.append(f"{shortened(again, 3)}: computed by torch's exporter, and in the step again")
    if lacking:
        notes.append(
            f"{len(lacking)} tensor(s) were computed by torch's exporter of parameters that are in the file as well: "
            f"{shortened(lacking, 3)}; their gradients lack that part, and ckplan.export keeps it"
        )
    if apart:
        notes.append(
            f"{len(apart)} parameter(s) are in the file as several tensors that torch's exporter computed of them, "
            f"trained as if they were independent: {shortened(apart, 3)}; ckplan.export keeps the parameters"
        )
    return tuple(notes)


def _parameters_here(graph: ir.Graph) -> dict[str, ir.Value]:
    """What holds a parameter of torch's, by its name there: a tensor of that name, or what was computed of it alone."""
    found = {name: value for name, value in graph.initializers.items() if is_parameter(value)}
    for value in graph.initializers.values():
        if target := value.metadata_props.get(keys.STANDS_FOR):
            found.setdefault(target, value)
    return found


def _listed(value: ir.Value, parameters: Sequence[ir.Value]) -> str:
    """Name the parameters that a tensor was computed of and that are read elsewhere, turned ones by torch's names."""
    graph = parameters[0].graph
    assert graph is not None
    turned = {one.metadata_props.get(keys.STANDS_FOR) for one in graph.initializers.values() if one is not value}
    here = {one.name for one in parameters}
    names = [repr(name) for name in folded_from(value) if name in here or name in turned]
    return " and ".join(names) if len(names) <= _LISTED else shortened(names, _LISTED)


def _of_each_other(graph: ir.Graph, opset: int) -> tuple[list[str], list[str]]:
    """Compute again what is a function of something simpler that stands for the same parameter.

    Returns:
        What was computed of what, and what is left of parameters in several forms that are not just parts of them.
    """
    groups: dict[str, list[ir.Value]] = defaultdict(list)
    for value in graph.initializers.values():
        target = value.metadata_props.get(keys.STANDS_FOR)
        if target and _is_numbers(value) and not value.is_graph_output():
            groups[target].append(value)
    again, apart = [], []
    for target, group in groups.items():
        kept: list[ir.Value] = []
        for value in sorted(group, key=lambda one: len(folded_from(one))):
            for simpler in kept:
                function = _function(value, simpler, opset)
                if function is not None and (is_unstructured(value) or is_one_number(value)):
                    again.append(f"'{value.name}' of '{simpler.name}'")
                    compute(graph, value, simpler, function)
                    break
            else:
                kept.append(value)
        ways = {str(value.name) for value in kept}.union(*map(folded_from, kept)) - {target}
        if len(kept) > 1 and not all(is_moved_name(name) or _NUMBER.fullmatch(name) for name in ways):
            apart.append(f"{shortened([repr(value.name) for value in kept], 3)} of '{target}'")
    return again, apart


def _of_named(graph: ir.Graph, opset: int) -> list[str]:
    """Compute again what has a name of the older exporter's own and is a function of a weight; say what of what."""
    weights = [one for one in graph.initializers.values() if _is_numbers(one) and not folded_from(one)]
    made = [one for one in weights if (one.name or "").startswith("onnx::") and not one.is_graph_output()]
    groups: dict[tuple[int, ...], list[ir.Value]] = defaultdict(list)
    for weight in weights if made else ():
        groups[static_shape(weight) or ()].append(weight)
    firsts = {shape: _of_first(group) for shape, group in groups.items()}
    again = []
    for value in made:
        for weight in _near(value, groups, firsts):
            if weight is value or weight.dtype != value.dtype or weight.name not in graph.initializers:
                continue
            function = _function_by_values(value, weight, opset)
            if function is not None:
                again.append(f"'{value.name}' of '{weight.name}'")
                compute(graph, value, weight, function)
                break
    return again


def _near(
    value: ir.Value, groups: Mapping[tuple[int, ...], Sequence[ir.Value]], firsts: Mapping[tuple[int, ...], Array]
) -> Iterator[ir.Value]:
    """The weights that a tensor may be a function of, as their shapes and first numbers tell.

    Args:
        value: the tensor.
        groups: the weights by shape.
        firsts: what functions make of the first numbers of each group.
    """
    shape, first = static_shape(value) or (), _first(value)
    alike = np.flatnonzero((np.abs(firsts[shape] - first) <= _NEAR * np.abs(first)).any(axis=1))
    yield from (groups[shape][int(place)] for place in alike)
    if len(shape) > 1 and 1 in shape:  # a norm, perhaps
        yield from (weight for other, group in groups.items() if _may_be_norm(other, shape) for weight in group)
    reshaped_from = (other for other in groups if other != shape and math.prod(other) == math.prod(shape))
    yield from (weight for other in reshaped_from for weight in groups[other] if _first(weight) == first)


def _first(value: ir.Value) -> Array:
    array = value.const_value.numpy() if value.const_value is not None else np.zeros(0)
    return np.array(array.reshape(-1)[0] if array.size else np.nan, np.float64)


def _of_first(weights: Sequence[ir.Value]) -> Array:
    """What all functions make of the first numbers of tensors: hardly any two tensors need be compared further."""
    numbers = np.array([_first(weight) for weight in weights])
    with np.errstate(all="ignore"):
        return np.stack([function.values(numbers) for function in ELEMENTWISE], axis=1)


def _may_be_norm(shape: tuple[int, ...], result: tuple[int, ...]) -> bool:
    """Whether a result has one element along some axes, and otherwise the shape of a tensor."""
    pairs = zip(shape, result, strict=False)
    return len(shape) == len(result) and shape != result and all(left in (size, 1) for size, left in pairs)


def _is_filled(value: ir.Value) -> bool:
    """Whether a tensor may hold numbers of the program, of which a parameter gave but the shape or the places."""
    return any(is_made_name(name) or is_comparison_name(name) for name in (str(value.name), *folded_from(value)))


def _is_of_sizes(value: ir.Value, parameters: list[ir.Value]) -> bool:
    """Whether zeros were made of the shapes of parameters, as those of an empty bag are: the numbers are no zeros.

    What is detached may have been subtracted from what it is.
    """
    detached = any(name.startswith("detach") for name in folded_from(value))
    return not detached and not array_of(value).any() and all(map(is_unstructured, parameters))


def _is_total(value: ir.Value, parameters: Sequence[ir.Value]) -> bool:
    """Whether one number was computed of many, as a penalty on weights is.

    Trained by itself it would go wherever the loss is lowest, without any of the parameters, and count in the norm that
    gradients are clipped to.
    """
    return _is_one(value) and not all(map(_is_one, parameters))


def _is_numbers(value: ir.Value) -> bool:
    return value.const_value is not None and value.const_value.dtype.is_floating_point()


def _function(value: ir.Value, source: ir.Value, opset: int) -> Function | None:
    """How a tensor was computed of another one, as is known that it was; None if nothing or several things explain it.

    Of equal numbers too many functions may be right: one of the operations must be named as torch names it.
    """
    if value.const_value is None or source.const_value is None:
        return None
    array, result = source.const_value.numpy(), value.const_value.numpy()
    if array.dtype != result.dtype or array.dtype.kind != "f" or not array.size:
        return None
    if array.size == result.size and (moved := _moved(array, result)) is not None:
        return moved
    found = matching(array, result, _functions(array, result, opset))
    if not found:
        return _by_number(value, source, array, result)
    named = [one for one in found if is_named_in(one, [str(value.name)])]
    if len(named) == 1 and len(found) > 1:
        found = named
    told = bool((array != array.reshape(-1)[:1]).any()) or found == named
    told = told or all(is_named_in(one, folded_from(value)) for one in found)
    return found[0] if len(found) == 1 and told else None


def _functions(array: Array, result: Array, opset: int) -> list[Function]:
    found: list[Function] = reductions(array.shape, result.shape, opset)
    if array.shape == result.shape:
        found += [*ELEMENTWISE, *map(normalised, range(array.ndim))]
        found += divided(array.ndim)
    return found


def _by_number(value: ir.Value, source: ir.Value, array: Array, result: Array) -> Function | None:
    """How a tensor was scaled or shifted by a number of the program, if it was; None where that is not known.

    A number that was computed of the tensor itself, as its norm is, would do as well: all that stands between the two
    must have the name of a product, or of a sum, or of what makes a number. Of numbers that are all equal nothing but
    the name tells, and it has to be one; `sub` would be two, as torch calls ``p - c`` and ``c - p`` alike.
    """
    assert value.graph is not None  # it is an initializer
    names = {str(value.name), *folded_from(value)} - {str(source.name), source.metadata_props.get(keys.STANDS_FOR)}
    if source.name in folded_from(value):
        names.difference_update(folded_from(source))
    differ = bool((array != array.reshape(-1)[:1]).any())
    if differ:
        names -= buffers_of(value.graph)
    steps = [name for name in names if not (is_moved_name(name) or _NUMBER.fullmatch(name))]
    if not steps or (len(steps) > 1 and not differ):
        return None
    found = []
    for turned in (False, True) if array.ndim == _MATRIX and differ else (False,):
        read = array.T if turned else array
        by = None
        if read.shape == result.shape and all(map(_FACTOR.fullmatch, steps)):
            by = scaled(read, result)
        elif read.shape == result.shape and all(map((_TERM if differ else _SUM).fullmatch, steps)):
            by = shifted(read, result)
        if by is not None and matching(read, result, [by]):
            found.append(transposed(by) if turned else by)
    return found[0] if len(found) == 1 else None


def _moved(array: Array, result: Array) -> Function | None:
    """The function that moves the very numbers of an array to other places; None if they are others, or all equal."""
    if (array == array.reshape(-1)[:1]).all():
        return None
    if array.shape == result.shape and np.array_equal(array, result):
        return scaled(array, result)
    if array.ndim == 2 and np.array_equal(array.T, result):
        return transposed()
    plain = tuple(range(array.ndim))
    for order in dict.fromkeys((plain, plain[::-1])) if array.shape != result.shape else ():
        if np.array_equal(array.transpose(order).reshape(result.shape), result):
            return reshaped(result.shape, order)
    return None


def _function_by_values(value: ir.Value, weight: ir.Value, opset: int) -> Function | None:
    """How a tensor was computed of a weight, where its values alone can tell: of many numbers that follow no formula.

    Of one number there is but the other weight of a mean of two. Of what divides the weight, a few tell that they are
    the lengths of its rows, as in a classifier of three classes by cosines.
    """
    shape, result = static_shape(weight) or (), static_shape(value) or ()
    if weight.const_value is None or value.const_value is None:
        return None
    divides = _may_be_norm(shape, result) and is_unstructured(weight) and _divides(value, weight)
    if divides:
        functions: Sequence[Function] = reductions(shape, result, opset, absolute=True)
    elif shape == result:
        functions = ELEMENTWISE
        if _is_one(value):
            functions = ELEMENTWISE[:1] if _weigh_two(value, weight) else ()
    elif math.prod(shape) == math.prod(result):
        moved = _is_much(weight) and _is_much(value) and not is_numbered(str(weight.name))
        return _moved(weight.const_value.numpy(), value.const_value.numpy()) if moved else None
    else:
        functions = () if is_numbered(str(weight.name)) else reductions(shape, result, opset)
    if not functions:
        return None
    array, made = weight.const_value.numpy(), value.const_value.numpy()
    if np.array_equal(array, made):  # a weight that began as a copy of the other
        return None
    found = matching(array, made, functions)
    many = _is_much(weight) and _is_much(value)
    return found[0] if len(found) == 1 and (many or divides or _is_one(value)) else None


def _divides(value: ir.Value, weight: ir.Value) -> bool:
    """Whether a weight is divided by a tensor, perhaps one that is stretched or kept from zero."""
    pending, seen = [value], {value}
    while pending:
        for use in pending.pop().uses():
            if is_op(use.node, "Div") and use.idx == 1 and use.node.inputs[0] is weight:
                return True
            made = use.node.outputs[0] if is_op(use.node, _BEFORE_DIVISION) and use.idx == 0 else None
            if made is not None and made not in seen:
                seen.add(made)
                pending.append(made)
    return False


def _is_much(value: ir.Value) -> bool:
    """Whether a tensor has enough numbers, of no formula, for them to tell what was computed of them."""
    return value.const_value is not None and value.const_value.size >= _FEWEST and is_unstructured(value)


def _is_one(value: ir.Value) -> bool:
    return value.const_value is not None and value.const_value.size == 1


def _weigh_two(value: ir.Value, weight: ir.Value) -> bool:
    """Whether both are read by products alone, which one Add each sums up: ``w a + (1 - w) b``."""
    products = [*value.consumers(), *weight.consumers()]
    if any(node.op_type != "Mul" for node in products) or not value.uses() or not weight.uses():
        return False
    sums = [{reader for reader in node.outputs[0].consumers() if reader.op_type == "Add"} for node in products]
    return all(sums) and len(set.union(*sums)) * 2 == len(products)


def _repeated(value: ir.Value, parameters: Sequence[ir.Value]) -> ir.Value | None:
    """Which of the parameters that a tensor was computed of it holds again and again; None if it is not one alone.

    The others have no part in it: none of them is zero, so that of a product what they were multiplied by is.
    """
    if value.const_value is None or not all(map(is_unstructured, parameters)):
        return None
    array = value.const_value.numpy()
    found = []
    for parameter in parameters:
        assert parameter.const_value is not None  # it has numbers
        row = parameter.const_value.numpy()
        repeated = (
            row.ndim <= array.ndim and row.shape != array.shape and row.shape == array.shape[array.ndim - row.ndim :]
        )
        if repeated and row.dtype == array.dtype and (array == row).all():
            found.append(parameter)
    return found[0] if len(found) == 1 else None
