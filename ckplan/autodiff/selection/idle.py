"""Tensors that gradients are asked of and the loss gives none to: what keeps it from that, and what is said of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set

import onnx_ir as ir

from ckplan.autodiff.breaks import breaks, listed
from ckplan.autodiff.builder import Builder
from ckplan.display import shortened


def cause_of(op: Builder, idle: Collection[ir.Value], targets: Collection[ir.Value], is_detached: bool) -> str:
    """Say what keeps gradients from values on their way to what is differentiated; empty where there is no such way.

    Args:
        op: builder of the forward graph.
        idle: the values.
        targets: what is differentiated.
        is_detached: whether gradients are stopped anywhere, by the model or on request.
    """
    stops = breaks(op.graph, op.graph.opset_imports, idle, targets) if idle else []
    if stops:
        return f"no gradient passes {listed(stops)}"
    return "they reach the loss only through what is detached, if at all" if is_detached else ""


def idle_note(
    kind: str, idle: Mapping[str, ir.Value], unused: str, cause: str, beside: Mapping[str, Set[ir.Value]]
) -> str:
    """Say which tensors have no gradient of their own, and why.

    Args:
        kind: what they are, in a word.
        idle: the tensors, by name.
        unused: ``zero`` where they get a gradient of zero, else ``absent``.
        cause: as `cause_of` returns it.
        beside: by name of an output, what depends on it and not on the loss.
    """
    what = "a gradient of zero" if unused == "zero" else "no gradient"
    why = cause or f"the loss does not depend on them{_remedy(beside, idle.values())}"
    return f"{len(idle)} {kind}(s) get {what} because {why}: {shortened([repr(name) for name in idle])}"


def _remedy(beside: Mapping[str, Set[ir.Value]], idle: Collection[ir.Value]) -> str:
    """Name the output that most of the parameters without a gradient reach, if any."""
    reaching = {name: sum(value in found for value in idle) for name, found in beside.items()}
    most = max(reaching.values(), default=0)
    if not most:
        return ""
    output = next(name for name, count in reaching.items() if count == most)
    return f", but output '{output}' does (several --loss are summed)"
