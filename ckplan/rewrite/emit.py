"""Plan -> ONNX: any schedule becomes a file that stock onnxruntime executes as planned."""

from __future__ import annotations

import json
from collections.abc import Sequence

import onnx_ir as ir

from ckplan.plan.plan import Plan
from ckplan.plan.simulate import simulate
from ckplan.plan.timeline import Timeline
from ckplan.rewrite.control_edges import ControlEdges
from ckplan.rewrite.ordering import keep_repeats_apart, settle_order
from ckplan.rewrite.problem_of import problem_of
from ckplan.rewrite.repeats import with_repeats

PREFIX = "pkg.ckplan."
"""All metadata keys of ckplan begin with this."""


def emit(model: ir.Model, plan: Plan) -> ir.Model:
    """Write a plan into a copy of a training graph.

    Args:
        model: the training graph that the plan was made for; not changed.
        plan: the schedule; op ids are node positions in ``model.graph``.

    Returns:
        A model with the same inputs and outputs, its nodes in planned order, repeats as clones named
        ``<node>/recompute<k>``, and control edges where onnxruntime would otherwise merge repeats or choose an order
        that costs memory. Metadata says what was planned.

    Raises:
        ModelError: a value that needs a control edge has no static shape.
    """
    copy = model.clone()
    nodes = with_repeats(list(copy.graph), plan.schedule)
    edges = ControlEdges()
    keep_repeats_apart(nodes, edges)
    settle_order(nodes, copy.graph.inputs, copy.graph.outputs, edges)
    return _assemble(copy, nodes, edges, plan)


def _assemble(model: ir.Model, nodes: Sequence[ir.Node], edges: ControlEdges, plan: Plan) -> ir.Model:
    graph = model.graph
    graph.remove(list(graph))
    for value in edges.initializers.values():
        graph.register_initializer(value)
    graph.extend(nodes)
    timeline = predicted_timeline(model)
    model.metadata_props.update(
        {
            PREFIX + "strategy": plan.strategy,
            PREFIX + "plan": json.dumps(plan.to_json(), separators=(",", ":")),
            PREFIX + "recomputed": str(plan.recomputed),
            PREFIX + "control_edges": str(edges.count),
            PREFIX + "predicted_peak_activations": str(timeline.peak_activations),
            PREFIX + "predicted_peak_total": str(timeline.peak_total),
        }
    )
    return model


def predicted_timeline(model: ir.Model) -> Timeline:
    """The simulated memory timeline of a file in the order in which its nodes stand."""
    problem = problem_of(model)
    return simulate(problem, range(len(problem.ops)))
