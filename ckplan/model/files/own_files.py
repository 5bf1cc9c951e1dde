"""Files that ckplan wrote, read as what they compute: gradients of gradients begin with a training graph.

A training graph's parameters are inputs with a default, and some of its initializers are numbers of the gradient rules.
A planned file repeats nodes and holds control edges besides, all of which the next plan would trip over.
"""

from __future__ import annotations

import onnx_ir as ir

from ckplan import keys
from ckplan.model.constants import mark_constant, unused_name
from ckplan.model.files.metadata import listed_names
from ckplan.model.twins import is_twin

ORIGIN = "training graph"
"""How the numbers of gradient rules, and weights that were frozen, are marked as constants."""

_NODE_KEYS = (keys.PHASE, keys.ROLE, keys.RECOMPUTE_OF)
_PLAN_KEYS = (
    keys.STRATEGY,
    keys.PLAN,
    keys.RECOMPUTED,
    keys.CONTROL_EDGES,
    keys.PREDICTED_ACTIVATIONS,
    keys.PREDICTED_TOTAL,
)


def forget_training(model: ir.Model) -> tuple[str, ...]:
    """Turn a training graph that ckplan wrote, with or without a plan, into a forward model of its outputs, in place.

    Initializers are no inputs any more, and those that are no parameters of the training graph count as constants.
    What the file says of its loss and gradients stays in its metadata. Other models are left alone.

    Returns:
        Notes.

    Raises:
        ModelError: the metadata is damaged.
    """
    if keys.PARAMETERS not in model.metadata_props:
        return ()
    parameters = set(listed_names(model.metadata_props, keys.PARAMETERS))
    for name, value in list(model.graph.initializers.items()):
        floating = value.dtype is not None and value.dtype.is_floating_point()
        # With gradients of inputs alone, what is no number of the gradient rules was not frozen but not asked for.
        if floating and name not in parameters and (parameters or name.startswith("ckplan/")):
            mark_constant(value, ORIGIN)
        if name.startswith("ckplan/shape"):  # the next plan makes its own
            value.name = unused_name(model.graph, f"{name}_of_before")
    inputs = [value for value in model.graph.inputs if not value.is_initializer()]
    model.graph.inputs.clear()
    model.graph.inputs.extend(inputs)
    _forget_plan(model.graph)
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        for key in _NODE_KEYS:
            node.metadata_props.pop(key, None)
    for key in _PLAN_KEYS:
        model.metadata_props.pop(key, None)
    loss = model.metadata_props.get(keys.LOSS, "")
    return (f"the model is a training graph of '{loss}'; its gradients can be named with --loss and --grad-ys",)


def _forget_plan(graph: ir.Graph) -> None:
    """Let all nodes read the originals: not the aliases of control edges, not the results of repeats.

    What is marked as one of these and is none, as anybody can edit metadata, stays what it is.
    """
    originals: dict[str, ir.Node] = {}
    for node in list(graph):
        role = node.metadata_props.get(keys.ROLE)
        if role == "control":
            source = _aliased(node)
            if source is not None:
                node.outputs[0].replace_all_uses_with(source, replace_graph_outputs=True)
        elif role == "recompute":
            original = originals.get(node.metadata_props.get(keys.RECOMPUTE_OF, ""))
            if original is not None and is_twin(node, original):
                for output, first in zip(node.outputs, original.outputs, strict=True):
                    output.replace_all_uses_with(first, replace_graph_outputs=True)
        elif node.name:
            originals[node.name] = node


def _aliased(node: ir.Node) -> ir.Value | None:
    """The value that a node hands on: an Unsqueeze along no axis, or a Concat with nothing before a number."""
    if len(node.inputs) != 2:
        return None
    first, second = node.inputs
    if node.op_type == "Unsqueeze" and _is_empty(second):
        return first
    return second if node.op_type == "Concat" and _is_empty(first) else None


def _is_empty(value: ir.Value | None) -> bool:
    """Whether a value is a vector without elements: of a Shape no dimension, or what is spread over none."""
    maker = None if value is None else value.producer()
    if maker is None:
        return False
    if maker.op_type == "Shape":
        return maker.attributes.get_int("start", 0) == 0 and maker.attributes.get_int("end", -1) == 0
    target = maker.inputs[1] if maker.op_type == "Expand" and len(maker.inputs) == 2 else None
    return target is not None and target.const_value is not None and target.const_value.numpy().tolist() == [0]
