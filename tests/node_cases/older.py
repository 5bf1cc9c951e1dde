"""The onnx package's cases of single operators in the forms that older operator sets have of them.

What became an input since (the axes of a Squeeze, the borders of a Pad) is an attribute again. The version is one in
which the operator's form was new. A case counts where onnxruntime computes the old model and gives what the case
expects, so that it means what it meant; onnx's own converter then has to bring it to the opset of the rules.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator

import numpy as np
import onnx
from onnx import helper

from tests.node_cases.cases import FLOATS, Case, all_cases, holds_float_path
from tests.node_cases.functions import agree, by_onnxruntime

_OLDEST, _NEWEST = 7, 20
"""Older ones onnxruntime does not run, newer ones are not converted."""


@functools.cache
def older_cases() -> tuple[Case, ...]:
    """Return the cases that can be told in an older operator set, once for each older form of their operator."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return tuple(old for case in all_cases() for old in older_forms(case))


def older_forms(case: Case) -> Iterator[Case]:
    """Tell a case in the older forms of its operator, the oldest first."""
    nodes = case.model.graph.node
    tensors = all(value.type.HasField("tensor_type") for value in (*case.model.graph.input, *case.model.graph.output))
    if case.kind != "node" or len(nodes) != 1 or nodes[0].domain or not tensors or not holds_float_path(case):
        return
    own = next(entry.version for entry in case.model.opset_import if entry.domain in ("", "ai.onnx"))
    seen = set()
    for version in range(_OLDEST, min(own, _NEWEST + 1)):
        if not onnx.defs.has(nodes[0].op_type, version):
            continue
        schema = onnx.defs.get_schema(nodes[0].op_type, version)
        if schema.since_version in seen:
            continue
        seen.add(schema.since_version)
        old = _told(case, version, schema)
        if old is not None:
            yield old


def _told(case: Case, version: int, schema: onnx.defs.OpSchema) -> Case | None:
    """Tell a case in an older operator set; None if that has no words for it."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    model.ir_version = 4 if version < 10 else min(model.ir_version, 10)
    for entry in model.opset_import:
        if entry.domain in ("", "ai.onnx"):
            entry.version = version
    node, fed = model.graph.node[0], [value.name for value in model.graph.input]
    inputs = dict(zip(fed, case.inputs, strict=True))
    formal = [each.name for each in onnx.defs.get_schema(node.op_type).inputs]
    kept = len(schema.inputs)
    variadic = bool(schema.inputs) and schema.inputs[-1].option == onnx.defs.OpSchema.FormalParameterOption.Variadic
    if len(node.input) > kept and not variadic:
        for name, what in list(zip(node.input, formal, strict=False))[kept:]:
            if not name:
                continue
            if what not in schema.attributes or name not in inputs:
                return None
            array = np.asarray(inputs.pop(name))
            value = array.reshape(-1).tolist()
            if not value:
                return None
            one = schema.attributes[what].type in (onnx.defs.OpSchema.AttrType.INT, onnx.defs.OpSchema.AttrType.FLOAT)
            node.attribute.append(helper.make_attribute(what, value[0] if one else value))
        del node.input[kept:]
    remaining = [value for value in model.graph.input if value.name in inputs]
    del model.graph.input[:]
    model.graph.input.extend(remaining)
    given = [inputs[value.name] for value in remaining]
    try:
        onnx.checker.check_model(model)
        found = by_onnxruntime(model)({value.name: array for value, array in zip(remaining, given, strict=True)})
    except Exception:  # of many kinds: the old form has no such type, attribute or kernel
        return None
    if not agree(found, case.outputs, 1e-3, 1e-4) or not any(_is_float(array) for array in given):
        return None
    return Case(f"{case.name}_as_of_opset_{version}", "older", model, given, case.outputs)


def _is_float(array: object) -> bool:
    return helper.np_dtype_to_tensor_dtype(np.asarray(array).dtype) in FLOATS if _is_number(array) else False


def _is_number(array: object) -> bool:
    return np.asarray(array).dtype.kind not in "OUS"
