"""In which order the nodes of a graph that came as it is are planned: as they stand, or as they would run."""

from __future__ import annotations

import onnx_ir as ir

from ckplan.planner.simulate import simulate
from ckplan.runtime.executing.execution_order import default_order, predecessors
from ckplan.runtime.problem_of import problem_of
from ckplan.runtime.sizes import shape_classes


def in_natural_order(model: ir.Model) -> ir.Model:
    """A model whose nodes stand as they would be planned: as in its file, or as onnxruntime runs that by default.

    Args:
        model: a graph as it came; is copied if its nodes are to stand otherwise.

    Returns:
        The model in the one of both orders whose simulated peak of activations is lower.
    """
    natural = tuple(range(len(model.graph)))
    problem = problem_of(model)
    shapes = shape_classes(model.graph, problem)
    orders = (natural, tuple(default_order(predecessors(list(model.graph)))))
    best = min(orders, key=lambda order: simulate(problem, order, shapes).peak_activations)
    if best == natural:
        return model
    model = model.clone()
    nodes = list(model.graph)
    model.graph.remove(nodes)
    model.graph.extend(nodes[position] for position in best)
    return model
