"""The onnx package's cases of single operators, varied by what ONNX's schema of the operator allows.

Each attribute at numbers that nobody writes, left out, or with its default spelled out; each output alone in the loss;
one tensor at two inputs; optional inputs left out; sizes of one. What onnxruntime runs counts, and what it makes of it
is what is expected, whatever the schema says in words: it runs the training graph as well.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import helper

from ckplan.autodiff.registry import entries
from tests.node_cases.cases import Case, all_cases, holds_float_path
from tests.node_cases.functions import by_onnxruntime
from tests.node_cases.older import older_forms

_OPTIONAL = onnx.defs.OpSchema.FormalParameterOption.Optional
_KINDS = onnx.defs.OpSchema.AttrType
_MOST_OUTPUTS = 4
_LARGEST = 500
"""Elements that the inputs of a case may have together."""

_UNNAMED = frozenset({"Split"})
"""Operators with which onnxruntime's process dies where an output before another has no name."""


@dataclass(frozen=True)
class Row:
    """A node, before it is a case.

    Attributes:
        name: of the case it comes from, and what is varied.
        op_type: the operator.
        opset: the operator set.
        inputs: names of what is read, empty for what is left out.
        given: arrays by these names.
        attributes: of the node.
        outputs: names of the node's outputs, empty for those that are not asked for.
    """

    name: str
    op_type: str
    opset: int
    inputs: tuple[str, ...]
    given: dict[str, np.ndarray]
    attributes: dict[str, Any]
    outputs: tuple[str, ...]

    @property
    def schema(self) -> onnx.defs.OpSchema:
        """What ONNX says of the operator in this operator set."""
        return onnx.defs.get_schema(self.op_type, self.opset)

    def varied(self, how: str, **changes: Any) -> Row:
        """A copy with something changed."""
        return replace(self, name=f"{self.name} {how}", **changes)


def rows(older: bool = True) -> Iterator[Row]:
    """Vary the smallest case of each operator that has a gradient rule, and its older forms if these are asked for."""
    found: dict[str, list[Case]] = {}
    for case in filter(_is_single, all_cases()):
        found.setdefault(case.model.graph.node[0].op_type, []).append(case)
    for op_type in sorted({entry.op_type for entry in entries() if not entry.domain} & found.keys()):
        smallest = min(found[op_type], key=lambda case: (_size(case) < 2, _size(case), case.name))
        for case in (smallest, *(older_forms(smallest) if older else ())):
            row = _row_of(case)
            yield from (*_attributes(row), *_outputs(row), *_inputs(row), *_sizes(row))


@functools.cache
def variant_cases(every: int = 1, older: bool = True) -> tuple[Case, ...]:
    """Return what onnxruntime runs of the rows, or of only every so many, with what it computes; see :func:`rows`."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        made = (_case(row) for index, row in enumerate(rows(older)) if index % every == 0)
        return tuple(case for case in made if case is not None)


def _is_single(case: Case) -> bool:
    graph = case.model.graph
    if len(graph.node) != 1 or graph.node[0].domain or graph.initializer or _size(case) > _LARGEST:
        return False
    tensors = all(value.type.HasField("tensor_type") for value in (*graph.input, *graph.output))
    return tensors and holds_float_path(case) and not any(part.HasField("g") for part in graph.node[0].attribute)


def _size(case: Case) -> int:
    return sum(int(np.size(array)) for array in case.inputs if array is not None and not isinstance(array, list))


def _row_of(case: Case) -> Row:
    node = case.model.graph.node[0]
    given = {value.name: np.asarray(array) for value, array in zip(case.model.graph.input, case.inputs, strict=True)}
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    opset = next(entry.version for entry in case.model.opset_import if entry.domain in ("", "ai.onnx"))
    return Row(case.name, node.op_type, opset, tuple(node.input), given, attributes, tuple(node.output))


def _attributes(row: Row) -> Iterator[Row]:
    rank = max((array.ndim for array in row.given.values()), default=1)
    spelled = {}
    for name, attribute in row.schema.attributes.items():
        present = row.attributes.get(name)
        if attribute.default_value.name and present is None:
            spelled[name] = helper.get_attribute_value(attribute.default_value)
        if present is not None and not attribute.required:
            rest = {key: value for key, value in row.attributes.items() if key != name}
            yield row.varied(f"without {name}", attributes=rest)
        for value in _numbers(attribute.type, rank, present):
            yield row.varied(f"{name}={value!r}", attributes={**row.attributes, name: value})
    if spelled:
        yield row.varied("spelled out", attributes={**spelled, **row.attributes})


def _numbers(kind: onnx.defs.OpSchema.AttrType, rank: int, present: Any) -> Sequence[Any]:
    """What to give an attribute of a kind."""
    count = len(present) if isinstance(present, list) else max(1, rank - 2)
    lists = [[0] * count, [1] * count, [2] * count, [-1] * count, list(range(count)), [1] * count + [0] * count]
    return {
        _KINDS.INT: sorted({0, 1, 2, 3, -1, -2, rank - 1, -rank}),
        _KINDS.FLOAT: (0.0, -0.7, 0.3, 1.0, 2.5),
        _KINDS.STRING: ("",),
        _KINDS.INTS: [[], *lists],
        _KINDS.FLOATS: ([0.0] * count, [0.5] * count),
    }.get(kind, ())


def _outputs(row: Row) -> Iterator[Row]:
    count = row.schema.max_output if row.schema.max_output <= _MOST_OUTPUTS else len(row.outputs)
    names = [*(name or f"out{index}" for index, name in enumerate(row.outputs))]
    names += [f"out{index}" for index in range(len(names), count)]
    if len(names) > len(row.outputs):
        yield row.varied("all outputs", outputs=tuple(names))
    for index in range(len(names) if len(names) > 1 and row.op_type not in _UNNAMED else 0):
        yield row.varied(f"output {index} alone", outputs=("",) * index + (names[index],))


def _inputs(row: Row) -> Iterator[Row]:
    formal = row.schema.inputs
    # Statistics of a file are no parameters, also where they are the scales of a layer: then these are told apart.
    settings = {index for entry in entries() if entry.op_type == row.op_type for index in entry.settings}
    for index, name in enumerate(row.inputs):
        if name and index < len(formal) and formal[index].option == _OPTIONAL:
            left = (*row.inputs[:index], "", *row.inputs[index + 1 :])
            yield row.varied(f"without input {index}", inputs=left)
    for (one, first), (other, second) in itertools.combinations(enumerate(row.inputs), 2):
        if not first or not second or first == second or other in settings:
            continue
        left, right = row.given[first], row.given[second]
        if left.dtype == right.dtype and left.dtype.kind == "f":
            twice = (*row.inputs[:other], first, *row.inputs[other + 1 :])
            yield row.varied(f"input {one} at {other}, too", inputs=twice)


def _sizes(row: Row) -> Iterator[Row]:
    for size in sorted({size for array in row.given.values() for size in array.shape if size > 1}):
        cut = {
            name: array[tuple(slice(1 if each == size else None) for each in array.shape)]
            for name, array in row.given.items()
        }
        yield row.varied(f"1 for {size}", given=cut)
    for name, array in row.given.items():
        for axis in (axis for axis in range(array.ndim) if array.shape[axis] > 1):
            part = array[(slice(None),) * axis + (slice(1),)]
            yield row.varied(f"{name} of 1 along {axis}", given={**row.given, name: part})


def _case(row: Row) -> Case | None:
    """Make a case of a row; None if onnxruntime does not run it, or does so in a way of its own."""
    if row.op_type == "TopK" and row.attributes.get("sorted", 1) != 1:
        return None  # in any order
    if row.op_type == "GatherND" and row.attributes.get("batch_dims", 0) < 0:
        return None  # its process may die
    given = {name: row.given[name] for name in dict.fromkeys(row.inputs) if name}
    results = [name for name in row.outputs if name]
    declared = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in given.items()
    ]
    try:
        node = helper.make_node(row.op_type, row.inputs, row.outputs)
        for name, value in row.attributes.items():
            kind = onnx.AttributeProto.AttributeType.Value(str(row.schema.attributes[name].type).rsplit(".", 1)[1])
            node.attribute.append(helper.make_attribute(name, value, attr_type=kind))
        graph = helper.make_graph(
            [node], "variant", declared, [helper.make_empty_tensor_value_info(name) for name in results]
        )
        ir_version = 4 if row.opset < 10 else 10
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", row.opset)], ir_version=ir_version)
        found = [np.asarray(array) for array in by_onnxruntime(model)(given)]
    except Exception:  # of many kinds: it is not valid, or there is no kernel
        return None
    del model.graph.output[:]
    model.graph.output.extend(
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in zip(results, found, strict=True)
    )
    finite = all(np.isfinite(array).all() for array in found if array.dtype.kind == "f")
    case = Case(row.name, "variant", model, list(given.values()), found)
    return case if finite and holds_float_path(case) else None
