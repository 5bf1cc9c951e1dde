"""The reverse sweep: from a forward graph and its loss to gradient nodes in the same graph."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.composites import is_composite
from ckplan.autodiff.idioms.presence import there
from ckplan.autodiff.inline import inline_function
from ckplan.autodiff.paths import differentiable_inputs, entry_of
from ckplan.autodiff.pieces.running_sums import add_to
from ckplan.autodiff.reading import dtype_of, shape_of
from ckplan.autodiff.refusals import refuse_data_sized, unsupported_operators, without_derivative
from ckplan.autodiff.registry import NON_DIFFERENTIABLE, Entry, NoGradientError
from ckplan.extensions import is_of_others, running_of
from ckplan.model.node_reads import captured, reads
from ckplan.operators.matching import is_op

Finish = Callable[[Builder, ir.Value, float], ir.Value]


def reachable(op: Builder, parameters: Sequence[ir.Value]) -> set[ir.Value]:
    """Return the values that depend differentiably on a parameter.

    Nodes on the way that have no gradient rule, or none for an input that depends on a parameter, but are defined by
    ONNX as a function of others are replaced by the body of that function.

    Args:
        op: builder of the forward graph.
        parameters: the values that gradients are asked for.
    """
    # Set before anything is inlined: a parameter is not a constant to be folded.
    op.wanted = reached = set(parameters)
    pending = list(reversed(list(op.graph)))
    while pending:
        node = pending.pop()
        entry = entry_of(node, op.opset_imports)
        if reached.isdisjoint(differentiable_inputs(node, entry)):
            continue
        if _lacks_rule(node, entry, reached) and not is_op(node, NON_DIFFERENTIABLE):
            body = inline_function(op, node)
            if body:
                pending.extend(reversed(body))
                continue
        reached.update(node.outputs)
    return reached


def _lacks_rule(node: ir.Node, entry: Entry | None, reached: Container[ir.Value]) -> bool:
    """Whether a node has no rule, or none for an input that depends on a parameter."""
    return entry is None or any(
        value in reached for index, value in enumerate(node.inputs) if index in entry.by_definition
    )


def wanted_values(op: Builder, parameters: Sequence[ir.Value], targets: Iterable[ir.Value]) -> set[ir.Value]:
    """Return the values whose gradients are needed: those that depend on a parameter and that a target depends on."""
    reached = reachable(op, parameters)
    needed = set(targets)
    for node in reversed(op.graph):
        if not needed.isdisjoint(node.outputs):
            entry = entry_of(node, op.opset_imports)
            needed.update(differentiable_inputs(node, entry) & reached)
    return needed & reached


def backpropagate(
    op: Builder,
    parameters: Sequence[ir.Value],
    targets: Mapping[ir.Value, ir.Value | None],
    *,
    factor: float = 1.0,
    finish: Finish = Builder.scale,
    begin: ir.Value | None = None,
) -> dict[ir.Value, ir.Value]:
    """Append gradient nodes to a graph, from given gradients of some of its values, and return those of parameters.

    The gradients of a value that several nodes read are summed as they come, so that two of them are alive at a time;
    the Adds are listed in ``op.sums``.

    Args:
        op: builder of the graph (the main graph, or the body of a control-flow node); its ``wanted`` is set here.
        parameters: the values that gradients are asked for: initializers, inputs and activations of the graph, or
            outer values.
        targets: the values to start from with their gradients; None stands for ones.
        factor: a constant that the gradients of the targets are multiplied by.
        finish: called with the builder, the gradient of a parameter, and the factor that it still has to be
            multiplied by; returns the gradient to hand out.
        begin: a value that the backward pass may begin with; None: that a target is there.

    Raises:
        ModelError: a value on the way from a parameter to a target has another size with other data, or a target is
            computed from such a size.
        UnsupportedOperatorsError: nodes on the way cannot be differentiated.
    """
    wanted = wanted_values(op, parameters, targets)
    refuse_data_sized(op.graph, wanted, targets)
    op.wanted = wanted
    gradients: dict[ir.Value, ir.Value] = {}
    op.partials = gradients
    op.pending = {}
    finished: dict[ir.Value, ir.Value] = {}
    unsupported: dict[ir.Node, str] = {}
    due = _completed(op.graph, parameters)

    def hand_out(value: ir.Value) -> None:
        with op.scope(f"{value.name}/grad"):
            finished[value] = finish(op, gradients[value], op.pending.get(value, 1.0))

    for target, seed in targets.items():
        if target in wanted:
            gradients[target] = _seed(op, target, begin or target) if seed is None else seed
            op.pending[target] = factor
    for node in reversed(list(op.graph)):
        for value in due.get(node, ()):
            if value in gradients:
                hand_out(value)
        if reason := _pass_back(op, node, wanted):
            unsupported[node] = reason
    if unsupported:
        raise unsupported_operators(op, parameters, targets, unsupported)
    for value in parameters:
        if value in gradients and value not in finished:
            hand_out(value)
    return {value: finished[value] for value in parameters if value in finished}


def _completed(graph: ir.Graph, values: Iterable[ir.Value]) -> dict[ir.Node, list[ir.Value]]:
    """Return at which node of the reverse sweep the gradients of values are complete: all their readers are through.

    The makers of the values come later in the sweep, or are these nodes. Values read by the first node have no entry.
    """
    before: dict[ir.Value, ir.Node | None] = {}
    previous: ir.Node | None = None
    for node in graph:
        for value in reads(node):
            before.setdefault(value, previous)
        previous = node
    due: dict[ir.Node, list[ir.Value]] = {}
    for value in values:
        node_or_none = before.get(value, value.producer())
        if node_or_none is not None:
            due.setdefault(node_or_none, []).append(value)
    return due


def _seed(op: Builder, loss: ir.Value, begin: ir.Value) -> ir.Value:
    """Return the derivative of the loss by itself, one.

    For a composite, and where it is watched, it is a constant, which rules make use of. Else it is made once what the
    backward pass begins with is there: from a constant onnxruntime would compute parts of the backward pass when it
    loads the file, such as the gradient of a mean, and hold the result, a tensor of an activation's size, forever.
    """
    if is_composite(loss.producer()) or loss in op.watched:
        return op.constant(np.ones(shape_of(loss), dtype=dtype_of(loss)))
    with op.scope(f"{loss.name}/grad", forward=loss.producer()):
        return op.expand(op.Cast(there(op, begin), to=loss.dtype), shape_of(loss))


def _pass_back(op: Builder, node: ir.Node, wanted: set[ir.Value]) -> str:
    """Add the gradients of a node's inputs to those that are there; return why that cannot be, or an empty string."""
    entry = entry_of(node, op.opset_imports)
    sought = differentiable_inputs(node, entry) & wanted
    if not sought or wanted.isdisjoint(node.outputs):
        return ""
    if (reason := without_derivative(node)) or entry is None:
        return reason or "has no gradient rule"
    known = [output for output in node.outputs if output in op.partials]
    # Of what has no elements nothing depends on the inputs, whatever their sizes are.
    if all(0 in shape_of(output) for output in known):
        return ""
    with op.scope(f"{node.name}/grad", forward=node):
        for output in (value for value in known if value in op.watched):
            op.watched[output] = op.scale(op.partials[output], op.pending.get(output, 1.0))
        with running_of(entry.function, f"the gradient rule of {node.op_type} '{node.name}'"):
            try:
                found = _apply(op, node, entry)
            except NoGradientError as error:
                return error.reason
            for value, gradient, left in found:
                if value in sought:
                    _accumulate(op, value, gradient, left)
    return ""


def _apply(op: Builder, node: ir.Node, entry: Entry) -> list[tuple[ir.Value, ir.Value, float]]:
    """Run a node's rule; return values, their gradients, and the factors those still need.

    A rule for a control-flow node returns gradients of the captured values behind those of the inputs.
    """
    given = [op.partials[output] for output in node.outputs if output in op.partials]
    factors = {op.pending.get(output, 1.0) for output in node.outputs if output in op.partials}
    waits = {
        "apply": False,
        "pass": True,
        "absorb": _fits(node, factors),
        # Losses compute less from a seed of one than from another.
        "leave": all(op.constant_of(gradient) is not None for gradient in given),
    }
    left = 1.0
    if waits[entry.factor] and len(factors) == 1:
        left = factors.pop()
        dy = [op.partials.pop(output, None) for output in node.outputs]
        for output in node.outputs:
            op.pending.pop(output, None)
    else:
        dy = [op.take_partial(output) for output in node.outputs]
    op.factor = left
    read = [*node.inputs, *captured(node)]  # before the rule runs, which may add to a node's body
    results = list(entry.function(op, node, dy))
    if len(results) < len(node.inputs) and is_of_others(entry.function):
        raise ValueError(f"{len(results)} gradients for {len(node.inputs)} inputs; None stands for one that is none")
    if any(gradient is not None for gradient in results[len(read) :]):
        raise RuntimeError(f"the gradient rule of {node.op_type} returns more gradients than there are inputs")
    pairs = [(v, g) for v, g in zip(read, results, strict=False) if v is not None]
    after = op.factor if entry.factor in ("pass", "leave") else 1.0
    return [(value, gradient, after) for value, gradient in pairs if gradient is not None]


def _fits(node: ir.Node, factors: set[float]) -> bool:
    """Say whether factors can stand in attributes, which are float32, without loss for the node's element type."""
    return node.outputs[0].dtype != ir.DataType.DOUBLE or all(float(np.float32(f)) == f for f in factors)


def _accumulate(op: Builder, value: ir.Value, gradient: ir.Value, factor: float) -> None:
    if shape_of(gradient) != shape_of(value) or gradient.dtype != value.dtype:
        raise RuntimeError(f"the gradient of '{value.name}' is {gradient.type}{gradient.shape}, not {value.shape}")
    before = op.partials.get(value)
    if before is None:
        op.partials[value], op.pending[value] = gradient, factor
    elif before is gradient:  # one value read twice: no sum is needed
        op.pending[value] += factor
    else:
        if op.pending[value] != factor:
            before, gradient = op.scale(before, op.pending[value]), op.scale(gradient, factor)
            op.pending[value] = 1.0
        op.partials[value] = add_to(op, before, gradient)
