"""Why a loss cannot be differentiated, all reasons at once, and what can be done about it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.paths import differentiable_inputs, entry_of
from ckplan.autodiff.reading import is_floating
from ckplan.autodiff.registry import NON_DIFFERENTIABLE
from ckplan.errors import ModelError, UnsupportedOperatorsError
from ckplan.keys import DATA_SIZED, NOT_EXPANDED
from ckplan.model.contrib import MICROSOFT, REFUSED
from ckplan.model.costs import BLOCKED
from ckplan.model.fixing import sole_input
from ckplan.model.node_reads import reads
from ckplan.model.normal_form.declared import is_own
from ckplan.operators.matching import is_op

_PLACING = frozenset({"ScatterElements", "ScatterND"})
"""Operators whose second input says where something is written over: zeros in the gradient."""


def refuse_data_sized(graph: ir.Graph, wanted: Collection[ir.Value], targets: Iterable[ir.Value]) -> None:
    """Refuse gradients and targets that follow from a size that was learnt of one run, and is another in the next.

    Args:
        graph: the graph that is differentiated.
        wanted: the values whose gradients are needed.
        targets: the values that the sweep starts from.

    Raises:
        ModelError: there is one.
    """
    needed = set(targets)
    for node in reversed(graph):
        if needed.isdisjoint(node.outputs):
            continue
        needed.update(reads(node))
        differentiated = [output for output in node.outputs if output in wanted]
        counts = node.inputs if is_op(node, ("Shape", "Size")) else ()
        places = node.inputs[1:2] if is_op(node, _PLACING) and differentiated else ()
        for value in (*counts, *places, *differentiated):
            if value is None or _is_counted_anew(value):
                continue
            if source := value.metadata_props.get(DATA_SIZED):
                chosen = (
                    "choose by a mask that is multiplied by, or a Where; let each expert of a mixture see all tokens"
                )
                if decides := _deciding_integers(graph, source):
                    chosen += f"; if '{decides}' is the same in each step, fix it: --set {decides}=NUMBERS"
                remedies = {
                    "NonMaxSuppression": "cut the model before it, for example with onnx.utils.extract_model: it "
                    "chooses what is shown",
                    "Loop": "let it run a fixed number of times, with steps that change nothing behind its end",
                }
                raise ModelError(
                    f"the size of '{value.name}' depends on what {source} finds in the data, and a training step has "
                    "fixed sizes",
                    remedies.get(source.partition(" ")[0], chosen),
                )


def _is_counted_anew(value: ir.Value) -> bool:
    """Whether a value is rows of a Loop, or these turned round: its gradient takes as many as there are in each run."""
    return is_op(value.producer(), ("Loop", "Slice")) and value.metadata_props.get(DATA_SIZED, "").startswith("Loop ")


def _deciding_integers(graph: ir.Graph, source: str) -> str:
    """The one input that decides how much a node finds, such as the edges of a graph, if it holds integers; or empty.

    Args:
        graph: the graph.
        source: the node's operator and its name, as `keys.DATA_SIZED` has them.
    """
    found = sole_input(value for node in graph if source == f"{node.op_type} '{node.name}'" for value in node.inputs)
    return "" if found is None or is_floating(found) else str(found.name)


def _named(node: ir.Node) -> str:
    """A node's operator, with its domain unless that is ai.onnx, and its name."""
    operator = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
    return f"{operator} '{node.name}'"


def without_derivative(node: ir.Node) -> str | None:
    """Say why a node is not differentiated whatever rules there are, None if nothing is known against it."""
    if node.domain:
        return node.metadata_props.get(NOT_EXPANDED) or REFUSED.get(node.op_type) if node.domain == MICROSOFT else None
    return NON_DIFFERENTIABLE.get(node.op_type)


def unsupported_operators(
    op: Builder, parameters: Sequence[ir.Value], targets: Iterable[ir.Value], nodes: dict[ir.Node, str]
) -> UnsupportedOperatorsError:
    """Make the error that lists the nodes and says what to freeze, or where to stop gradients, as a way out.

    Args:
        op: builder of the graph that was differentiated.
        parameters: the values that gradients were asked for.
        targets: the values that the sweep started from.
        nodes: each with the reason why no gradient passes it, the last of the graph first.
    """
    blocked = {node: "in a layout of one processor" for node in nodes if node.domain in BLOCKED}
    if blocked:  # what these make is of no known shape, so that others may have no rule only behind them
        hint = (
            "hand in the model as it was before onnxruntime optimised it, or let onnxruntime write it with "
            "ORT_ENABLE_EXTENDED in place of ORT_ENABLE_ALL"
        )
        return UnsupportedOperatorsError([(_named(node), why) for node, why in reversed(blocked.items())], hint)
    before = _upstream(op, nodes)
    frozen = [value for value in parameters if value in before]
    free = len(parameters) - len(frozen)
    if free:
        names = _no_grad(frozen)
        hint = f"freeze the {len(frozen)} parameter(s) before them ({names}); {free} other(s) can still be trained"
    elif not _upstream(op, targets, without=nodes).isdisjoint(parameters):
        outputs = [value for node in reversed(nodes) for value in node.outputs if value.uses()]
        hint = (
            f"stop gradients at what they make ({_no_grad(outputs)}); parameters reach the loss on other paths as well"
        )
    else:
        hint = "no choice of --no-grad helps: every parameter reaches the loss only through them"
    if any(is_own(node) for node in nodes):
        hint = f"register a gradient rule (docs/extending.md); otherwise, {hint}"
    listed = [(_named(node), reason) for node, reason in nodes.items()]
    return UnsupportedOperatorsError(list(reversed(listed)), hint)


def _upstream(op: Builder, of: Iterable[ir.Node | ir.Value], without: Collection[ir.Node] = ()) -> set[ir.Value]:
    """Return the values from which gradient paths lead to some values, or through nodes, and do not pass others."""
    found: set[ir.Value] = set()
    for start in of:
        found |= {start} if isinstance(start, ir.Value) else differentiable_inputs(start, None)
    for node in reversed(op.graph):
        if node not in without and not found.isdisjoint(node.outputs):
            found |= differentiable_inputs(node, entry_of(node, op.opset_imports))
    return found


def _no_grad(values: Sequence[ir.Value]) -> str:
    """The options of the command line that leave out some values; no more than three of them."""
    return " ".join(f"--no-grad '{value.name}'" for value in values[:3]) + (" ..." if len(values) > 3 else "")
