"""A model with its loss and no gradients: what a training loop asks how far it is."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ckplan import keys
from ckplan.autodiff.assembly import name_nodes
from ckplan.autodiff.builder import Builder, attr_int
from ckplan.autodiff.composites import inline_composites, refuse_own_domain
from ckplan.autodiff.inline import inline_functions
from ckplan.autodiff.objective import add_objective
from ckplan.autodiff.paths import prune
from ckplan.model.opset import relabel
from ckplan.model.own_files import forget_training


def evaluation_graph(forward: ir.Model, loss: Sequence[str] = ()) -> ir.Model:
    """Append a loss to a copy of a model, in inference form.

    Args:
        forward: a model in normal form, loaded for inference: Dropout is gone then.
        loss: as for :func:`ckplan.autodiff.build_training_graph`.

    Returns:
        A model whose first output is the loss (of several their sum, then each); behind it come the model's own
        outputs. BatchNormalization uses its running statistics, whatever form it has in the file.

    Raises:
        UsageError: a loss does not exist or cannot be used.
        ModelError: the model has no floating-point output.
    """
    model = forward.clone()
    graph = model.graph
    forget_training(model)
    refuse_own_domain(graph)
    name_nodes(graph)
    _leave_training(graph)
    op = Builder(graph, graph.opset_imports, functions=model.functions)
    objective = add_objective(op, list(loss), (), model.metadata_props.get(keys.LOSS))
    shown = dict.fromkeys([*objective.outputs, *graph.outputs])
    prune(graph, list(shown))
    inline_composites(op)
    prune(graph, list(graph.outputs))
    inline_functions(model)
    relabel(model)
    return model


def _leave_training(graph: ir.Graph) -> None:
    """Put BatchNormalization into inference form where nothing but outputs of the graph read what it learns."""
    learnt: set[ir.Value] = set()
    for node in graph:
        if node.op_type != "BatchNormalization" or node.domain or not attr_int(node, "training_mode", 0):
            continue
        rest = node.outputs[1:]
        if any(value.uses() for value in rest):
            continue
        learnt.update(rest)
        node.attributes["training_mode"] = ir.AttrInt64("training_mode", 0)
        kept = [value for value in graph.outputs if value not in learnt]
        graph.outputs.clear()
        graph.outputs.extend(kept)
        node.resize_outputs(1)
