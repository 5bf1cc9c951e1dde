"""Parameters that torch's old exporter merged because nothing has trained them yet, or folded into others.

It writes initializers of equal values once: of an untrained network, the biases of all layers (zero) and the scales of
all norms (one) of the same size. Each of the others is an Identity of the one, under its own name. Removed as all
identities are, it would leave one parameter, and the layers would stay equal for ever.
"""

from __future__ import annotations

import re

import onnx_ir as ir

from ckplan.model.structure import structure_of

_FOLDED = re.compile(r"onnx::Conv\w*_\d+")
"""How the exporter calls the weights of a convolution that it computed from those of the module."""


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

    Only tensors whose values are all the same are taken apart: no two others are equal by chance, so that those were
    tied on purpose.

    Returns:
        Notes.
    """
    graph = model.graph
    separated = 0
    for node in list(graph) if model.producer_name == "pytorch" else ():
        if node.op_type != "Identity" or node.domain or node.inputs[0] is None:
            continue
        value, copy = node.inputs[0], node.outputs[0]
        named = "." in (copy.name or "") and (copy.name or "") not in graph.initializers
        if not value.is_initializer() or not named or copy.is_graph_output() or not _is_uniform(value):
            continue
        _make_initializer(graph, node, value)
        separated += 1
    if not separated:
        return ()
    return (f"{separated} tensor(s) that torch's exporter merged with others of equal values are apart again",)


def _is_uniform(value: ir.Value) -> bool:
    tensor = value.const_value
    if tensor is None or not tensor.dtype.is_floating_point() or len(tensor.shape) == 0:
        return False
    return (structure_of(tensor) or "").startswith("all ")


def _make_initializer(graph: ir.Graph, node: ir.Node, value: ir.Value) -> None:
    tensor, output = value.const_value, node.outputs[0]
    assert tensor is not None  # it has uniform values
    name = output.name
    copy = ir.Value(
        name=name, shape=value.shape, type=value.type,
        const_value=ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=name),
    )  # fmt: skip
    output.replace_all_uses_with(copy)
    graph.remove(node, safe=True)
    graph.register_initializer(copy)
