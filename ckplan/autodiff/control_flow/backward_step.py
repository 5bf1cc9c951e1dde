"""The backward step of a recurrence: a body that takes the gradients of a step's results to those of what it read.

The gradients of the states are carried from the last step to the first, and so are the sums of the gradients of
captured values, to which each step adds its own. The sweep runs in the forward body itself; what it made is then moved
out, together with what has to be recomputed (see `supply`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.control_flow.backward import BackwardStep, Carried, Made, Read
from ckplan.autodiff.control_flow.bodies import (
    BodyBuilder,
    close,
    close_body,
    copy_nodes,
    demand_static,
    dims_of,
    new_value,
    zeros,
)
from ckplan.autodiff.control_flow.deferred import Deferred, deferred_products
from ckplan.autodiff.control_flow.recurrence import Recurrence, name_states
from ckplan.autodiff.control_flow.supply import supply
from ckplan.autodiff.control_flow.trim import extra_outputs, trim
from ckplan.autodiff.engine import backpropagate, reachable
from ckplan.autodiff.paths import differentiable_inputs, discard, entry_of
from ckplan.autodiff.registry import NoGradientError
from ckplan.errors import UnsupportedOperatorsError
from ckplan.model.node_reads import captured
from ckplan.model.traits import is_backward
from ckplan.operators.matching import is_op


def backward_step(op: Builder, loop: Recurrence, dy: Sequence[ir.Value | None]) -> BackwardStep | None:
    """Build the backward step of a recurrence; give its forward node the outputs that the step reads.

    Args:
        op: builder of the graph that holds the node.
        loop: the recurrence.
        dy: gradients of the node's outputs.

    Returns:
        The step; None if nothing that is wanted depends on the recurrence.

    Raises:
        NoGradientError: the body cannot be differentiated.
    """
    body, inside = loop.body, BodyBuilder(op, loop.body)
    close_body(inside)
    _check_shapes(loop)
    name_states(op, loop)
    outside = captured(loop.node)
    wanted = [value for value in outside if op.wants(value) and value not in {outer for _, outer, _ in loop.picked}]
    rows = [inner for inner, outer, _ in loop.sequences if op.wants(outer)]
    active = _active_states(op, loop, {*wanted, *rows}, dy)
    demand_static(loop.node)
    forward, extra = list(body), extra_outputs(body)
    step = BackwardStep(ir.Graph([], [], nodes=[], name=f"{loop.node.name}_grad"))
    targets = _targets(op, loop, active, dy, step)
    deferred = deferred_products(loop, wanted)
    totals = _totals(op, wanted, deferred)
    sought = [*(loop.before[i] for i in active), *rows, *totals, *(one.product for one in deferred)]
    gradients = _swept(inside, sought, {**targets, **totals})
    gradients = {value: gradient for value, gradient in gradients.items() if gradient is not totals.get(value)}
    if not gradients and (loop.exact or not active):
        discard(body, reversed(_behind(body, forward)))
        trim(extra)
        return None

    slots = {value: len(loop.node.inputs) + place for place, value in enumerate(outside)}
    start = next(gradient for gradient in dy if gradient is not None)
    carried = [_carried_state(op, loop, state, dy[state], targets, gradients, start) for state in active]
    for value, total in totals.items():
        if value in gradients:
            initial = op.take_partial(value) or zeros(op, value, start)
            carried.append(Carried(initial, total, gradients[value], slots[value]))
    made = [(index, inner, track) for index, (inner, _, track) in enumerate(loop.sequences) if inner in gradients]
    late = [one for one in deferred if one.product in gradients]

    add_in_products(body, _behind(body, forward), gradients.values())
    backward = _behind(body, forward)
    ends = [*(one.after for one in carried), *(gradients[inner] for _, inner, _ in made)]
    ends += [gradients[one.product] for one in late]
    picks = {inner.producer() for inner, *_ in loop.picked}
    values = supply(op, loop, step, [node for node in forward if node not in picks], backward, ends)
    step.graph.extend(copy_nodes(op, backward, values, "backward"))
    closed = iter(close(BodyBuilder(op, step.graph), [values.get(value, value) for value in ends]))
    step.carried[:0] = [replace(one, after=next(closed)) for one in carried]
    for index, _, track in made:
        slot = slots[loop.sequences[index][1]] if loop.picked else loop.states + index
        step.made.append(Made(next(closed), track, slot))
    whole = {inner: (outer, track) for inner, outer, track in loop.sequences}
    for one in late:
        operands, track = whole.get(one.operand) or loop.stack(op, one.operand)
        step.made.append(Made(next(closed), track, slots[one.weight], one, operands))
    discard(body, reversed(backward))
    trim(extra)
    return step


def _behind(body: ir.Graph, forward: Sequence[ir.Node]) -> list[ir.Node]:
    """The nodes of a body that were not there when it held the forward step alone."""
    old = set(forward)
    return [node for node in body if node not in old]


def _totals(op: Builder, wanted: Sequence[ir.Value], deferred: Sequence[Deferred]) -> dict[ir.Value, ir.Value]:
    """The running sums of the gradients of captured values, from which the sweep starts, and to which it adds.

    Args:
        op: builder of the graph that holds the node.
        wanted: the captured values that need gradients.
        deferred: the nodes whose weights get theirs outside.
    """
    weights = {one.weight for one in deferred}
    summed = [value for value in wanted if value not in weights]
    return {value: new_value(op, f"{value.name}_grad_sum", value.dtype, dims_of(value)) for value in summed}


def _carried_state(
    op: Builder,
    loop: Recurrence,
    state: int,
    dy: ir.Value | None,
    targets: Mapping[ir.Value, ir.Value],
    gradients: Mapping[ir.Value, ir.Value],
    start: ir.Value,
) -> Carried:
    """How the gradient of a state goes from step to step.

    Args:
        op: builder of the graph that holds the node.
        loop: the recurrence.
        state: number of the state.
        dy: gradient of what it is in the end.
        targets: gradients from which the sweep started.
        gradients: those that it found.
        start: a gradient, once which is there, zeros are made.
    """
    before, after = loop.before[state], loop.after[state]
    end = _gradient_or_zeros(BodyBuilder(op, loop.body), before, gradients, targets[after])
    return Carried(dy or zeros(op, after, start), targets[after], end, loop.first + state)


def _targets(
    op: Builder, loop: Recurrence, active: Sequence[int], dy: Sequence[ir.Value | None], step: BackwardStep
) -> dict[ir.Value, ir.Value]:
    """The gradients from which the sweep starts: of the states after a step, and of its row of each result.

    The rows of the results' gradients are what the step reads.

    Args:
        op: builder of the graph that holds the node.
        loop: the recurrence.
        active: the states whose gradients are carried.
        dy: gradients of the node's outputs.
        step: is told what it reads.
    """
    after = [loop.after[state] for state in active]
    targets = {value: new_value(op, f"{value.name}_grad", value.dtype, dims_of(value)) for value in after}
    for (inner, _, track), gradient in zip(loop.results, dy[loop.states :], strict=False):
        if gradient is not None:
            row = new_value(op, f"{inner.name}_grad", inner.dtype, dims_of(inner))
            targets[inner] = row
            step.read.append(Read(row, gradient, track))
    return targets


def _swept(
    inside: BodyBuilder, sought: Sequence[ir.Value], targets: Mapping[ir.Value, ir.Value]
) -> dict[ir.Value, ir.Value]:
    """Append a backward pass to the body; the gradients that were found of what is sought.

    Raises:
        NoGradientError: the body has nodes on the way that cannot be differentiated.
    """
    try:
        return backpropagate(inside, sought, targets)
    except UnsupportedOperatorsError as error:
        listed = ", ".join(f"{name} ({reason})" for name, reason in error.nodes)
        raise NoGradientError(f"no gradient for {len(error.nodes)} node(s) of its body: {listed}") from error


def _gradient_or_zeros(
    inside: BodyBuilder, value: ir.Value, gradients: Mapping[ir.Value, ir.Value], after: ir.Value
) -> ir.Value:
    """The gradient of a value of the body, or zeros, which are made once another value is there."""
    if value in gradients:
        return gradients[value]
    with inside.scope(f"{value.name}/grad"):
        return zeros(inside, value, after)


def add_in_products(graph: ir.Graph, nodes: Sequence[ir.Node], kept: Iterable[ir.Value]) -> None:
    """Let matrix products add what is added to their results: it saves a tensor and a pass over it.

    Args:
        graph: the graph of the nodes.
        nodes: nodes of a backward pass; the Adds among them may go.
        kept: results, which stay.
    """
    results = set(kept)
    for node in nodes:
        if not is_op(node, "Add") or node.inputs[0] is None or node.inputs[1] is None:
            continue
        total, product = node.inputs[0], node.inputs[1]
        producer = product.producer()
        if (
            producer is None
            or producer.op_type != "Gemm"
            or not is_backward(producer)
            or len(producer.inputs) > 2
            or len(product.uses()) > 1
            or product in results
            or dims_of(total) != dims_of(product)
        ):
            continue
        # The sum becomes the product: it stands behind all that it reads.
        left, right = producer.inputs[0], producer.inputs[1]
        node.op_type = "Gemm"
        node.attributes.update(producer.attributes)
        node.resize_inputs(3)
        for index, value in enumerate((left, right, total)):
            node.replace_input_with(index, value)
        graph.remove(producer, safe=True)


def _check_shapes(loop: Recurrence) -> None:
    """A state of growing shape cannot be stored or differentiated by a body of static shapes."""
    for before, after, initial in zip(loop.before, loop.after, loop.initial, strict=True):
        if dims_of(after) != dims_of(before) or dims_of(initial) != dims_of(before):
            raise NoGradientError(f"its carried value '{before.name}' changes its shape from step to step")


def _active_states(op: Builder, loop: Recurrence, wanted: set[ir.Value], dy: Sequence[ir.Value | None]) -> list[int]:
    """Return the states whose gradients have to be carried: they depend on what is wanted, and results on them.

    Operators that have a gradient by their definition only are written out in the body.
    """
    inside, before = BodyBuilder(op, loop.body), loop.before
    roots = set(wanted) | {b for b, initial in zip(before, loop.initial, strict=True) if op.wants(initial)}
    while True:
        reached = reachable(inside, list(roots))  # what makes a state may have been written out by that
        more = {b for b, a in zip(before, loop.after, strict=True) if a in reached} - roots
        if not more:
            break
        roots |= more
    close_body(inside)  # what an operator was written out in may hand on what it read
    after = loop.after
    needed = {a for a, gradient in zip(after, dy, strict=False) if gradient is not None}
    needed |= {r[0] for r, gradient in zip(loop.results, dy[loop.states :], strict=False) if gradient is not None}
    while True:
        for node in reversed(loop.body):
            if not needed.isdisjoint(node.outputs):
                needed |= differentiable_inputs(node, entry_of(node, inside.opset_imports))
        more = {a for b, a in zip(before, after, strict=True) if b in needed} - needed
        if not more:
            break
        needed |= more
    return [index for index, (b, a) in enumerate(zip(before, after, strict=True)) if b in roots and a in needed]
