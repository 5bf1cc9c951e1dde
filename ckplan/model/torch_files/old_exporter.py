"""Parameters that torch's old exporter merged because nothing has trained them yet, or folded into others.

It writes initializers of equal values once: of an untrained network, the biases of all layers (zero) and the scales of
all norms (one) of the same size, and where layers begin as copies of one (``torch.nn.TransformerEncoder``, a target
network), everything. Each of the others is an Identity of the one, under its own name. Removed as all identities are,
it would leave one parameter, and the layers would stay equal for ever.

A parameter that is read twice in the module has no such Identity, unless the exporter turned its values first: then the
products bear numbers for names, and the modules that read them tell.
"""

from __future__ import annotations

import re
from collections.abc import Set

import onnx_ir as ir

from ckplan.model.constants import add_initializer
from ckplan.model.literals import is_numbered
from ckplan.model.torch_files.default_exporter import is_unstructured, module_of

_FOLDED = re.compile(r"onnx::Conv\w*_\d+")
"""How the exporter calls the weights of a convolution that it computed from those of the module."""
_PATH = re.compile(r"[A-Za-z_]\w*(\.\w+)*")
"""How it calls parameters and buffers: attributes of modules."""
COMPUTED = re.compile(r"onnx::\w+_\d+")
"""How it calls what it computed of others, and weights that it turned."""
LAYERS = frozenset({"Conv", "ConvTranspose", "Gemm", "GRU", "LSTM", "MatMul", "RNN"})
"""Operators whose operands are weights of layers."""
_INDEX = re.compile(r"(?<=\.)\d+(?=[./]|$)")


def folded_notes(model: ir.Model) -> tuple[str, ...]:
    """Say which convolutions a BatchNormalization was folded into: its parameters, and theirs, have no gradients.

    The file holds the products in their place, under numbers for names.
    """
    if model.producer_name != "pytorch":
        return ()
    found = [
        weight
        for node in model.graph
        if node.op_type == "Conv" and not node.domain and len(node.inputs) > 1
        if (weight := node.inputs[1]) is not None and weight.is_initializer() and _FOLDED.fullmatch(str(weight.name))
    ]
    if not found:
        return ()
    listed = ", ".join(f"'{weight.name}'" for weight in found[:3]) + (", ..." if len(found) > 3 else "")
    return (
        f"{len(found)} weight(s) of convolutions ({listed}) are products: torch's exporter folded a BatchNormalization "
        "into each, so that the parameters of both are not in the file as such; ckplan.export keeps them",
    )


def separate_merged(model: ir.Model) -> tuple[str, ...]:
    """Make an initializer of each Identity of a merged parameter, in place.

    A table of embeddings stays one with what has its values: transformers copies it for the old exporter, which it
    hands no parameter twice.

    Returns:
        Notes.
    """
    if model.producer_name != "pytorch":
        return ()
    graph = model.graph
    copies = [node for node in graph if node.op_type == "Identity" and not node.domain and _is_weight(node.inputs[0])]
    named = [
        node
        for node in copies
        if _PATH.fullmatch(str(node.outputs[0].name))
        and not is_numbered(str(node.outputs[0].name))
        and not any(map(_is_looked_up, (*node.inputs, *node.outputs)))
    ]
    alike = {
        (module_of(str(node.inputs[0].name)), module_of(str(node.outputs[0].name)))
        for node in named
        if node.inputs[0] is not None and is_unstructured(node.inputs[0])
    }
    others = {module_of(str(value.name)) for value in graph.initializers.values()}
    turned = [node for node in copies if node not in named and _are_of_copies(node, alike, others)]
    separated = [node for node in (*named, *turned) if not node.outputs[0].is_graph_output()]
    for node in separated:
        _make_initializer(graph, node)
    if not separated:
        return ()
    return (f"{len(separated)} tensor(s) that torch's exporter merged with others of equal values are apart again",)


def _is_weight(value: ir.Value | None) -> bool:
    """Whether a value is a floating-point initializer."""
    tensor = None if value is None or not value.is_initializer() else value.const_value
    return tensor is not None and tensor.dtype.is_floating_point()


def _is_looked_up(value: ir.Value | None) -> bool:
    return value is not None and any(use.node.op_type == "Gather" and use.idx == 0 for use in value.uses())


def _are_of_copies(node: ir.Node, copies: Set[tuple[str, str]], others: Set[str]) -> bool:
    """Whether a turned weight and its Identity are read in modules of which one began as a copy of the other.

    What one module reads twice, or two that share a weight, is one.

    Args:
        node: the Identity.
        copies: pairs of modules of which parameters that were not turned show it; of two that stand in one list it is
            taken for granted.
        others: modules that have a parameter of their own values, so that they are no copies.
    """
    one, other = node.inputs[0], node.outputs[0]
    if one is None or not (COMPUTED.fullmatch(str(one.name)) and COMPUTED.fullmatch(str(other.name))):
        return False
    is_vector = len(one.shape or ()) == 1
    pairs = {(first, second) for first in _readers(one, is_vector) for second in _readers(other, is_vector)}
    listed = {
        (first, second)
        for first, second in pairs
        if first != second and second not in others and _INDEX.sub("", first) == _INDEX.sub("", second)
    }
    return not copies.isdisjoint(pairs) or bool(listed)


def _readers(value: ir.Value, is_vector: bool) -> set[str]:
    """The modules in which a value is read as weights and biases are, and masks and tables of positions are not."""
    return {
        scope_of(use.node)
        for use in value.uses()
        if (use.node.op_type in LAYERS and use.idx) or (use.node.op_type == "Add" and is_vector)
    }


def scope_of(node: ir.Node) -> str:
    """The path of the module in which a node was made: of ``/net/net.1/self_attn/MatMul`` it is net.1.self_attn."""
    path: list[str] = []
    for part in str(node.name).split("/")[1:-1]:
        if path and part.startswith(f"{path[-1]}."):
            path.pop()
        path.append(part)
    return ".".join(path)


def _make_initializer(graph: ir.Graph, node: ir.Node) -> None:
    value, output = node.inputs[0], node.outputs[0]
    assert value is not None
    tensor, name = value.const_value, str(output.name)
    assert tensor is not None  # of an initializer that is no graph input
    copy = add_initializer(graph, name, ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=name))
    output.replace_all_uses_with(copy)
    graph.remove(node, safe=True)
