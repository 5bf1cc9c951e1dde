"""What a planned file says of itself in its metadata, for ckplan and for whoever looks at it in a graph viewer.

Viewers such as Netron show the metadata of the model, of its nodes and of its values. onnxruntime ignores them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import onnx_ir as ir

from ckplan.keys import (
    CONTROL_EDGES,
    KEEPS,
    KEPT,
    PHASE,
    PLAN,
    PREDICTED_ACTIVATIONS,
    PREDICTED_TOTAL,
    RECOMPUTE_OF,
    RECOMPUTED,
    STRATEGY,
    VERSION,
)
from ckplan.planner.plan import Plan
from ckplan.planner.problem import Kind, Problem
from ckplan.planner.timeline import Timeline
from ckplan.version import __version__
from ckplan.writer.control_edges import is_control


def describe(model: ir.Model, problem: Problem, plan: Plan, control_edges: int, timeline: Timeline) -> None:
    """Write what was planned into a model's metadata.

    Args:
        model: the planned graph; its metadata are changed, nothing else.
        problem: its problem, in planned order; ops are called as their nodes.
        plan: what it keeps to.
        control_edges: their number.
        timeline: what onnxruntime makes of it.
    """
    promise(model, timeline)
    describe_plan(model, plan)
    model.metadata_props[RECOMPUTED] = str(plan.recomputed)
    model.metadata_props[CONTROL_EDGES] = str(control_edges)
    named = {node.name: node for node in model.graph}
    nodes = [named[op.name] for op in problem.ops]
    _give_control_edges_a_phase(nodes)
    values = {value.name: value for node in nodes for value in node.outputs if value.name}
    keeps: dict[int, list[str]] = {}
    for tensor in kept_tensors(problem, nodes):
        name, size = problem.tensors[tensor].name, problem.tensors[tensor].bytes
        values[name].metadata_props[KEPT] = str(size)
        keeps.setdefault(problem.producer[tensor], []).append(f"{name}: {size} bytes")
    for position, texts in keeps.items():
        nodes[position].metadata_props[KEEPS] = ", ".join(texts)


def describe_plan(model: ir.Model, plan: Plan) -> None:
    """Write a plan and its strategy into a model's metadata."""
    model.metadata_props[STRATEGY] = plan.strategy
    model.metadata_props[PLAN] = json.dumps(plan.to_json(), separators=(",", ":"))


def promise(model: ir.Model, timeline: Timeline) -> None:
    """Write into a model's metadata what it is to take when it runs.

    Args:
        model: any graph; its metadata are changed, nothing else.
        timeline: what onnxruntime makes of it, simulated.
    """
    model.metadata_props[VERSION] = __version__
    model.metadata_props[PREDICTED_ACTIVATIONS] = str(timeline.peak_activations)
    model.metadata_props[PREDICTED_TOTAL] = str(timeline.peak_total)


def kept_tensors(problem: Problem, nodes: Sequence[ir.Node]) -> list[int]:
    """The activations of the forward pass that later passes read: gradient nodes, and nodes that run again.

    Args:
        problem: of the nodes; op ids are their positions.
        nodes: the nodes of a planned graph.
    """
    again = [RECOMPUTE_OF in node.metadata_props for node in nodes]
    kept: dict[int, None] = {}
    for position, op in enumerate(problem.ops):
        if is_control(nodes[position]) or not (op.backward or again[position]):
            continue
        for tensor in op.inputs:
            root = problem.view_root[tensor]
            maker = problem.producer[root]
            made = maker >= 0 and problem.tensors[root].kind is Kind.ACTIVATION
            if made and not (problem.ops[maker].backward or again[maker] or is_control(nodes[maker])):
                kept[root] = None
    return list(kept)


def _give_control_edges_a_phase(nodes: Sequence[ir.Node]) -> None:
    """The phase of a control edge is that of the node that waits, which stands behind it."""
    phase = ""
    for node in reversed(nodes):
        if not is_control(node):
            # A node that runs again does so in the backward pass.
            phase = "backward" if RECOMPUTE_OF in node.metadata_props else node.metadata_props.get(PHASE, "")
        elif phase:
            node.metadata_props[PHASE] = phase
