"""Puts the expansion of a node in its place."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from ckplan.keys import NOT_EXPANDED
from ckplan.model.contrib.emitter import Emitter, NotExpandableError
from ckplan.model.contrib.registry import ADOPTED, MICROSOFT, REFUSED, expansion_rules
from ckplan.operators.matching import is_op


def adopt(model: ir.Model) -> None:
    """Give operators that onnxruntime registers in ONNX's domain its own, in place, for ONNX's tools do not know them.

    Its optimiser writes SimplifiedLayerNormalization, and LayerNormalization into models of opsets that lack it; local
    functions run in the opset of their model, whatever they import.
    """
    version = model.graph.opset_imports.get("", model.graph.opset_imports.get("ai.onnx", 1))
    scopes: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for scope in scopes:
        for node in scope.all_nodes():
            if is_op(node, ADOPTED):
                since = ADOPTED[node.op_type]
                if since is None or version < since:
                    node.domain = MICROSOFT
                    scope.opset_imports.setdefault(MICROSOFT, 1)
                    model.graph.opset_imports.setdefault(MICROSOFT, 1)


def give_back(model: ir.Model) -> None:
    """Put operators that `adopt` moved, and that nothing has replaced, where onnxruntime has them again, in place."""
    for node in model.graph.all_nodes():
        if node.domain == MICROSOFT and node.op_type in ADOPTED:
            node.domain = ""


def expand(
    node: ir.Node,
    visit: Callable[[ir.Node], None],
    constant: Callable[[ir.Value | None], np.ndarray | None],
    main: ir.Graph | None = None,
) -> bool:
    """Replace a node of com.microsoft by standard nodes, if there is a way; else note in its metadata why not.

    Args:
        node: any node.
        visit: infers the outputs of a new node, and folds what is constant.
        constant: the content of a value that is known in advance, else None.
        main: the main graph, if the node stands in a body.

    Returns:
        Whether the node was replaced.
    """
    if node.domain != MICROSOFT:
        return False
    function = expansion_rules().get(node.op_type)
    if function is None:
        if node.op_type in REFUSED:
            node.metadata_props[NOT_EXPANDED] = REFUSED[node.op_type]
        return False
    assert node.graph is not None
    graph = node.graph
    emitter = Emitter(node, visit, constant, main)
    try:
        results = list(function(emitter))
        for index in range(len(node.outputs)):
            if emitter.reads_output(index) and (index >= len(results) or results[index] is None):
                raise NotExpandableError(f"its output {index} has no counterpart")
    except NotExpandableError as error:
        node.metadata_props[NOT_EXPANDED] = error.reason
        for fresh in reversed(emitter.emitted):
            graph.remove(fresh, safe=True)
        return False
    for index, (output, found) in enumerate(zip(list(node.outputs), results, strict=False)):
        if found is None or not emitter.reads_output(index):
            continue
        result = found
        if result.producer() not in emitter.emitted or result.is_graph_output():
            result = emitter.Identity(found)
        name = output.name
        ir.convenience.replace_all_uses_with(output, result, replace_graph_outputs=True)
        output.name = None
        if name:
            result.name = name
    graph.remove(node, safe=True)
    return True
