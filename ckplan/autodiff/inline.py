"""Replaces an operator by the body of the function that defines it: ONNX's own, or one that stands in the file."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import onnx
import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.reading import shape_of
from ckplan.errors import ModelError
from ckplan.keys import PHASE
from ckplan.model.bodies import bodies_of
from ckplan.model.inference.fold import infer_with_bodies
from ckplan.model.inference.node_evaluation import evaluated, made_of_shape
from ckplan.operators.matching import is_op

#: Results of at most this many elements are computed on the spot when all their inputs are known.
_FOLDED = 4096
_CHANGED = {
    "GridSample": 20,
    "GroupNormalization": 21,
    "Hardmax": 13,
    "LogSoftmax": 13,
    "PRelu": 7,
    "RoiAlign": 16,
    "Softmax": 13,
}
"""Operators that mean something else since a version, though they read the same inputs."""


def inline_functions(model: ir.Model, wanted: Collection[ir.Value] = ()) -> None:
    """Put the bodies of a model's local functions in the place of the nodes that call them, in place.

    Values keep their names. Functions that nodes inside of bodies call stay, for onnxruntime to inline.

    Args:
        model: a forward model or a training graph.
        wanted: initializers that are trained: they are no constants.

    Raises:
        ModelError: a body is written for another operator set, in which its operators mean something else.
    """
    if not model.functions:
        return
    op = Builder(model.graph, model.graph.opset_imports, wanted)
    functions = {key: ir.to_proto(function) for key, function in model.functions.items()}
    for node in list(model.graph):
        body = functions.get(node.op_identifier())
        if body is None:
            continue
        if not all(_fits(op, function) for function in functions.values()):
            raise ModelError(
                f"the function {node.domain}::{node.op_type} is written for operator set {_version(body)}, and cannot "
                f"be part of a model of operator set {op.opset_imports['']}",
                f"export the model with operator set {op.opset_imports['']}",
            )
        _inline(op, node, body, functions)
    called = {node.op_identifier() for node in model.graph.all_nodes()}
    if called.isdisjoint(model.functions):
        model.functions.clear()


def inline_operators(model: ir.Model, op_types: Collection[str]) -> None:
    """Put the bodies of ONNX's own functions in the place of the nodes of some operators, in place.

    Values keep their names. Operators without a function body that fits the model's operator set stay.

    Args:
        model: a forward model or a training graph.
        op_types: the operators.
    """
    op = Builder(model.graph, model.graph.opset_imports, ())
    for node in list(model.graph):
        body = _function_body(op, node) if is_op(node, op_types) else None
        if body is not None:
            _inline(op, node, body)


def _inline(
    op: Builder,
    node: ir.Node,
    body: onnx.FunctionProto,
    functions: Mapping[ir.OperatorIdentifier, onnx.FunctionProto] = MappingProxyType({}),
) -> None:
    """Replace a node by a function body; what it makes keeps its names, and the new nodes belong to its pass."""
    names = [output.name for output in node.outputs]
    shown = [output.is_graph_output() for output in node.outputs]
    results = list(node.outputs)
    new = _put_in_place(op, node, body, results, functions)
    for name, result, is_output in zip(names, results, shown, strict=True):
        if result.producer() in new and result.name not in names:
            result.name = name
        elif is_output:
            new.append(_copy(op, result, name))
    for inner in new:
        inner.metadata_props[PHASE] = node.metadata_props.get(PHASE, "forward")


def inline_function(op: Builder, node: ir.Node) -> list[ir.Node]:
    """Put the body of the function by which ONNX defines a node in its place.

    What the body computes from shapes alone becomes constants, as shape inference needs it.

    Args:
        op: builder of the graph that holds the node.
        node: a node of an operator that may have a function body.

    Returns:
        The new nodes in order; none if the operator has no function body that fits the model's opset.
    """
    body = _function_body(op, node)
    return [] if body is None else _put_in_place(op, node, body, list(node.outputs))


def _copy(op: Builder, value: ir.Value, name: str | None) -> ir.Node:
    """Make a graph output of its own of a value that has another name already."""
    with op.scope(str(name)):
        copy = op.Identity(value)
    copy.name = name
    outputs = op.graph.outputs
    outputs[max(index for index, output in enumerate(outputs) if output is value)] = copy
    node = copy.producer()
    assert node is not None
    return node


def _put_in_place(
    op: Builder,
    node: ir.Node,
    body: onnx.FunctionProto,
    results: list[ir.Value],
    functions: Mapping[ir.OperatorIdentifier, onnx.FunctionProto] = MappingProxyType({}),
) -> list[ir.Node]:
    """Replace a node by the nodes of a function body, and return these.

    Args:
        op: builder of the graph that holds the node.
        node: the node.
        body: what it is replaced by.
        results: the node's outputs; gets what stands for them.
        functions: the local functions that the body may call in turn.
    """
    values: dict[str, ir.Value | None] = dict.fromkeys(body.input)
    values.update(zip(body.input, node.inputs, strict=False))
    new: list[ir.Node] = []
    pending = list(reversed(body.node))
    while pending:
        proto = pending.pop()
        inner = _instantiate(proto, node, body, f"{node.name}/{proto.op_type}_{len(new)}")
        operands = [values.get(name) if name else None for name in proto.input]
        branch = _branch(op, inner, operands)
        if branch is not None:
            ends = zip(branch.output, proto.output, strict=True)
            copies = [onnx.helper.make_node("Identity", [result.name], [name]) for result, name in ends]
            pending.extend(reversed([*branch.node, *copies]))
            continue
        called = functions.get((inner.domain, inner.op_type, inner.overload))
        if called is not None:
            call = _node(op, inner, operands, values)
            op.graph.insert_before(node, call)
            made = list(call.outputs)
            new.extend(_put_in_place(op, call, called, made, functions))
            values.update(zip(proto.output, made, strict=True))
            continue
        known = _known(op, inner, operands)
        if known is not None:
            values.update((name, op.constant(array)) for name, array in zip(proto.output, known, strict=True))
            continue
        fresh = _node(op, inner, operands, values)
        op.graph.insert_before(node, fresh)
        _infer(op, fresh)
        values.update(zip(proto.output, fresh.outputs, strict=True))
        new.append(fresh)
    for index, (name, output) in enumerate(zip(body.output, node.outputs, strict=False)):
        if not output.name:  # left out, so the body need not make it
            continue
        result = values[name]
        assert result is not None
        results[index] = result
        output.replace_all_uses_with(result, replace_graph_outputs=True)
    op.graph.remove(node, safe=True)
    return new


def _function_body(op: Builder, node: ir.Node) -> onnx.FunctionProto | None:
    """Return the function body of a node if its operators mean the same in the model's opset."""
    version = op.opset_imports.get(node.domain, 0)
    if not onnx.defs.has(node.op_type, version, node.domain):
        return None
    schema: Any = onnx.defs.get_schema(node.op_type, version, node.domain)  # onnx's type stubs lack its function bodies
    text = None
    if schema.has_context_dependent_function:
        types = [
            (
                onnx.TypeProto()
                if value is None or value.dtype is None
                else onnx.helper.make_tensor_type_proto(int(value.dtype), shape_of(value))
            ).SerializeToString()
            for value in node.inputs
        ]
        versions = [v for v in schema.context_dependent_function_opset_versions if v <= version]
        if versions:
            text = schema.get_context_dependent_function_with_opset_version(
                max(versions), ir.to_proto(node).SerializeToString(), types
            )
    if not text and schema.has_function:
        versions = [v for v in schema.function_opset_versions if v <= version]
        if versions:
            text = schema.get_function_with_opset_version(max(versions))
    if not text:
        return None
    body: onnx.FunctionProto = onnx.FunctionProto.FromString(text)
    return body if _fits(op, body) else None


def _version(body: onnx.FunctionProto) -> int:
    """The version of ONNX's operator set that a function body is written for."""
    return next((entry.version for entry in body.opset_import if entry.domain in ("", "ai.onnx")), 1)


def _fits(op: Builder, body: onnx.FunctionProto) -> bool:
    """Whether the operators of a function body take the same inputs in the model's operator set and mean the same."""
    version, target = _version(body), op.opset_imports[""]
    imports = {entry.domain: entry.version for entry in body.opset_import}
    for inner in body.node:
        if not onnx.defs.has(inner.op_type, inner.domain):
            continue  # of a domain of its own
        if inner.domain in ("", "ai.onnx") and version < _CHANGED.get(inner.op_type, 0) <= target:
            return False
        theirs = onnx.defs.get_schema(inner.op_type, imports.get(inner.domain, version), inner.domain)
        ours = onnx.defs.get_schema(inner.op_type, target, inner.domain)
        if [i.name for i in theirs.inputs] != [i.name for i in ours.inputs]:
            return False
    return True


def _instantiate(proto: onnx.NodeProto, node: ir.Node, body: onnx.FunctionProto, name: str) -> onnx.NodeProto:
    """Copy a node of a function body with its references to the function's attributes resolved."""
    defaults = {attribute.name: attribute for attribute in body.attribute_proto}
    known = onnx.defs.has(node.op_type, node.domain)
    schema = onnx.defs.get_schema(node.op_type, onnx.defs.onnx_opset_version(), node.domain) if known else None
    copy = onnx.NodeProto()
    copy.CopyFrom(proto)
    copy.name = name
    del copy.attribute[:]
    for attribute in proto.attribute:
        found: onnx.AttributeProto | None = attribute
        if attribute.ref_attr_name:
            given = node.attributes.get(attribute.ref_attr_name)
            found = ir.to_proto(given) if given is not None else defaults.get(attribute.ref_attr_name)
            if found is None and schema is not None and attribute.ref_attr_name in schema.attributes:
                default = schema.attributes[attribute.ref_attr_name].default_value
                found = default if default.type else None
        if found is not None:
            target = copy.attribute.add()
            target.CopyFrom(found)
            target.name = attribute.name
    return copy


def _infer(op: Builder, node: ir.Node) -> None:
    if not bodies_of(node):
        op.infer(node)
        return
    problem = infer_with_bodies(op.graph, node)
    if problem:
        raise ModelError(f"{node.op_type} '{node.name}' is not valid: {problem}")


def _attribute(proto: onnx.AttributeProto, values: Mapping[str, ir.Value | None]) -> ir.Attr:
    """Read an attribute; a graph in it may read values of the function's body."""
    if proto.type != onnx.AttributeProto.GRAPH:
        return cast("ir.Attr", ir.from_proto(proto))
    own = len(proto.g.input)
    copy = onnx.AttributeProto()
    copy.CopyFrom(proto)
    # As inputs of the graph they are values that everything inside reads, and can be replaced.
    free = sorted(_free_names(proto.g))
    copy.g.input.extend(onnx.ValueInfoProto(name=name) for name in free)
    attribute = cast("ir.Attr", ir.from_proto(copy))
    graph = attribute.as_graph()
    for name, stand_in in zip(free, list(graph.inputs)[own:], strict=True):
        outer = values[name]
        assert outer is not None
        stand_in.replace_all_uses_with(outer, replace_graph_outputs=True)
    del graph.inputs[own:]
    return attribute


def _free_names(graph: onnx.GraphProto) -> set[str]:
    """Return the names that a graph reads and does not define."""
    read = {name for node in graph.node for name in node.input if name} | {output.name for output in graph.output}
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                read |= _free_names(attribute.g)
    made = {name for node in graph.node for name in node.output} | {tensor.name for tensor in graph.initializer}
    return read - made - {value.name for value in graph.input}


def _node(
    op: Builder,
    proto: onnx.NodeProto,
    operands: Sequence[ir.Value | None],
    values: Mapping[str, ir.Value | None],
) -> ir.Node:
    attributes = [_attribute(attribute, values) for attribute in proto.attribute]
    outputs = [ir.Value(name=op.unique_name(f"{proto.name}_{name}") if name else "") for name in proto.output]
    return ir.Node(
        proto.domain,
        proto.op_type,
        operands,
        attributes,
        outputs=outputs,
        name=op.unique_name(proto.name),
        metadata_props={PHASE: "forward"},
    )


def _branch(op: Builder, proto: onnx.NodeProto, operands: Sequence[ir.Value | None]) -> onnx.GraphProto | None:
    """Return the branch of an If whose condition is known in advance; names in it are those of the function's body."""
    condition = op.constant_of(operands[0]) if proto.op_type == "If" else None
    if condition is None:
        return None
    taken = "then_branch" if condition.reshape(()) else "else_branch"
    branch: onnx.GraphProto = next(attribute.g for attribute in proto.attribute if attribute.name == taken)
    return None if branch.initializer else branch


def _known(op: Builder, proto: onnx.NodeProto, operands: Sequence[ir.Value | None]) -> list[np.ndarray] | None:
    """Return what a node computes if that is small and known in advance, else None."""
    if proto.domain or any(attribute.type == onnx.AttributeProto.GRAPH for attribute in proto.attribute):
        return None
    attributes = [_attribute(attribute, {}) for attribute in proto.attribute]
    node = ir.Node(proto.domain, proto.op_type, [], attributes, num_outputs=len(proto.output))
    if proto.op_type in ("Shape", "Size") and operands[0] is not None:
        return made_of_shape(node, shape_of(operands[0]))
    arrays = [op.constant_of(operand) for operand in operands]
    for operand, array in zip(operands, arrays, strict=True):
        if operand is not None and (array is None or array.size > _FOLDED):
            return None
    made = evaluated(node, arrays, op.opset_imports[""])
    return None if made is None or any(array.size > _FOLDED for array in made) else made
