"""Weights and constants become initializers of the main graph, wherever the exporter put them."""

from __future__ import annotations

import math
import re
from collections import Counter

import numpy as np
import onnx_ir as ir

from ckplan import keys
from ckplan.model.node_reads import fixed_integers
from ckplan.model.rewiring import output_copy
from ckplan.operators.matching import is_op

IN_NODE = "Constant node"
"""The origin of what an exporter wrote as a Constant node."""
FOLDED = "folded"
"""The origin of what was computed of constants when the file was read."""
_MOST_FILLED = 1 << 35
"""Bytes of a filling that is taken for a weight, 32 GiB: it is written out when the model is saved."""
_SETTINGS = {"Clip": (1, 2), "Dropout": (1,), "Pad": (2,), "Resize": (1, 2), "Upsample": (1,)}
_TABLES = {
    ("", "OneHot"): (2,),
    ("", "RotaryEmbedding"): (1, 2),
    ("", "STFT"): (2,),
    ("com.microsoft", "GroupQueryAttention"): (7, 8),
    ("com.microsoft", "RotaryEmbedding"): (2, 3),
}
"""Operands by domain and operator that a gradient reaches and that are hardly ever weights: the two values of a
OneHot, cosines and sines, a window. They are not trained unless they are named."""
# Initializers that exporters lift from literals in the source (torch's dynamo exporter, torch.fx).
_LITERAL_NAME = re.compile(r"val_\d+|scalar_tensor_default(_\d+)?|_lifted_scalar.*|_lifted_tensor_constant\d+")


def is_constant(value: ir.Value) -> bool:
    """Whether a floating initializer is a literal of the program rather than something to train.

    Marked so are: scalars from Constant nodes (0.5 in a GELU, an epsilon), everything in Constant nodes of PyTorch's
    exports, initializers that exporters make of scalar literals, operands such as the bounds of a Clip or the scales
    of a Resize, and results of constant folding. The mark is metadata of the value, so it survives cloning and saving.
    """
    return keys.CONSTANT in value.metadata_props


def mark_constant(value: ir.Value, origin: str) -> None:
    """Mark a value as a constant; `origin` says where it came from."""
    value.metadata_props[keys.CONSTANT] = origin


def hoist(model: ir.Model) -> None:
    """Make initializers of the main graph, in place, out of Constant nodes, ConstantOfShape, and nested initializers.

    Afterwards no initializer is a graph input (IR 3 files list all of them). A ConstantOfShape of a constant shape
    keeps its few bytes: the tensor is a broadcast view that is written out only when the model is saved.
    Nested constants are captured from the main graph instead, under a name that nothing shadows; a body that hands one
    on gets a copy in its place. Only those stay that a Loop body may overwrite as its input.
    """
    graph = model.graph
    initializers = set(graph.initializers.values())
    inputs = [value for value in graph.inputs if value not in initializers]
    graph.inputs.clear()
    graph.inputs.extend(inputs)

    names = _names(graph)
    for nested in graph.subgraphs():
        for name in list(nested.initializers):
            value = nested.initializers[name]
            if value.is_graph_input():
                continue
            if value.is_graph_output():
                _hand_on(nested, value)
            del nested.initializers[name]
            value.name = _claim(name, names)
            graph.register_initializer(value)
    for operator, tensor_of in (("Constant", _constant_tensor), ("ConstantOfShape", _filled_tensor)):
        for node in list(ir.traversal.RecursiveGraphIterator(graph)):
            if is_op(node, operator):
                hoisted = _hoist_node(graph, node, tensor_of(node), names)
                if hoisted is not None and operator == "Constant" and _is_literal(model, hoisted):
                    mark_constant(hoisted, node.metadata_props.get(keys.CONSTANT, IN_NODE))
                elif hoisted is not None and operator == "ConstantOfShape":
                    hoisted.metadata_props[keys.FILLED] = ""
    _mark_settings(graph)
    for value in graph.initializers.values():
        tensor = value.const_value
        if tensor is None:
            continue
        if value.shape is None or value.shape != tensor.shape:
            value.shape = ir.Shape(tensor.shape.numpy())
        if value.dtype is None:
            value.dtype = tensor.dtype
        if tensor.size == 1 and tensor.dtype.is_floating_point() and _LITERAL_NAME.fullmatch(value.name or ""):
            mark_constant(value, "literal")


def _hoist_node(
    graph: ir.Graph, node: ir.Node, tensor: ir.TensorProtocol | None, names: Counter[str]
) -> ir.Value | None:
    output, holder = node.outputs[0], node.graph
    if tensor is None or holder is None:
        return None
    name = output.name or "constant"
    if output.is_graph_output() and holder is not graph:
        # An output of a body needs a producer there: initializer -> Identity -> output.
        names[f"{name}_value"] += 1
        value = add_initializer(graph, _claim(f"{name}_value", names), tensor)
        identity = output_copy(output, value)
        identity.name = node.name
        holder.insert_before(node, identity)
    else:
        value = add_initializer(graph, _claim(name, names), tensor)
        ir.convenience.replace_all_uses_with(output, value, replace_graph_outputs=True)
    holder.remove(node, safe=True)
    return value


def _hand_on(nested: ir.Graph, value: ir.Value) -> None:
    """Put a copy in the place of an initializer among the outputs of a body."""
    for index, output in enumerate(nested.outputs):
        if output is value:
            identity = ir.node("Identity", inputs=[value])
            identity.outputs[0].type, identity.outputs[0].shape = value.type, value.shape
            nested.append(identity)
            nested.outputs[index] = identity.outputs[0]


def _mark_settings(graph: ir.Graph) -> None:
    """Mark operands that set how an operator works: constants where no gradient reaches them, else left untrained."""
    for value in graph.initializers.values():
        uses = [(use.node.domain, use.node.op_type, use.idx) for use in value.uses()]
        if not uses or is_constant(value):
            continue
        if all(not domain and index in _SETTINGS.get(kind, ()) for domain, kind, index in uses):
            mark_constant(value, "setting")
        elif all(index in _TABLES.get((domain, kind), ()) for domain, kind, index in uses):
            value.metadata_props[keys.FROZEN] = f"a setting of {uses[0][1]}"


def _is_literal(model: ir.Model, value: ir.Value) -> bool:
    """PyTorch keeps parameters in initializers; other exporters (Paddle) use Constant nodes, but not for scalars."""
    if value.dtype is None or not value.dtype.is_floating_point() or value.shape is None:
        return False
    return len(value.shape) == 0 or model.producer_name == "pytorch"


def add_initializer(graph: ir.Graph, name: str, tensor: ir.TensorProtocol) -> ir.Value:
    """Give a graph an initializer of a name that none has yet."""
    value = ir.Value(
        name=name, shape=ir.Shape(tensor.shape.numpy()), type=ir.TensorType(tensor.dtype), const_value=tensor
    )
    graph.register_initializer(value)
    return value


def copy_initializer(graph: ir.Graph, value: ir.Value, name: str) -> ir.Value:
    """Give a graph one more initializer with the numbers of another, and none of its metadata.

    The numbers are shared and the tensor is not: it would bear the name of one of them.

    Args:
        graph: the graph.
        value: an initializer that is no graph input.
        name: of the copy, numbered if another initializer has it.
    """
    name, tensor = unused_name(graph, name), value.const_value
    assert tensor is not None
    return add_initializer(graph, name, ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=name))


def add_constant(graph: ir.Graph, name: str, array: np.ndarray, origin: str) -> ir.Value:
    """Give a graph a constant.

    Args:
        graph: the graph.
        name: of the constant, numbered if another value has it.
        array: its elements.
        origin: where it comes from, in words; see `mark_constant`.
    """
    name = unused_name(graph, name)
    value = add_initializer(graph, name, ir.tensor(array, name=name))
    mark_constant(value, origin)
    return value


def _constant_tensor(node: ir.Node) -> ir.TensorProtocol | None:
    if len(node.attributes) != 1:
        return None
    (attribute,) = node.attributes.values()
    match attribute.name:
        case "value":
            return attribute.as_tensor()
        case "value_int" | "value_ints":
            return ir.Tensor(np.asarray(attribute.value, dtype=np.int64))
        case "value_float" | "value_floats":
            return ir.Tensor(np.asarray(attribute.value, dtype=np.float32))
    return None


def _filled_tensor(node: ir.Node) -> ir.TensorProtocol | None:
    shape = fixed_integers(node, 0)
    return None if shape is None else filled(node, shape)


def filled(node: ir.Node, shape: list[int]) -> ir.TensorProtocol | None:
    """The result of a ConstantOfShape node, as a view that takes no memory."""
    attribute = node.attributes.get("value")
    value = np.zeros(1, dtype=np.float32) if attribute is None else np.asarray(attribute.as_tensor().numpy())
    if value.size != 1 or value.dtype.kind not in "fiub" or min(shape, default=1) < 0:
        return None
    if math.prod(shape) * value.itemsize > _MOST_FILLED:
        return None
    return ir.Tensor(np.broadcast_to(value.reshape(()), shape))


def _names(graph: ir.Graph) -> Counter[str]:
    """How many values of the graph and of everything nested in it bear each name."""
    names: Counter[str] = Counter()
    for scope in (graph, *graph.subgraphs()):
        names.update({value.name or "": value for value in (*scope.inputs, *scope.initializers.values())}.keys())
        names.update(output.name for node in scope for output in node.outputs if output.name)
    return names


def _claim(name: str, names: Counter[str]) -> str:
    """The name itself when one value alone bears it, else a new one: a captured value must not be shadowed."""
    if names[name] <= 1:
        return name
    names[name] -= 1
    number = 1
    while f"{name}_{number}" in names:
        number += 1
    names[f"{name}_{number}"] += 1
    return f"{name}_{number}"


def unused_name(graph: ir.Graph, name: str) -> str:
    """The name itself, or with a number when an initializer of the graph has it."""
    candidate, number = name, 0
    while candidate in graph.initializers:
        number += 1
        candidate = f"{name}_{number}"
    return candidate
