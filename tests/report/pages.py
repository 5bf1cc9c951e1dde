"""Findings made by hand, to be shown on a page."""

from __future__ import annotations

from typing import Any

from ckplan.answers.analysis import Contents
from ckplan.answers.findings import Block, Chosen, Decision, Findings
from ckplan.planner import Kind, Moment, Plan, Timeline
from ckplan.runtime.occupancy import Buffer, Occupancy, Role, Span

KIB = 1024
EVIL = "</script><script>alert(1)</script><!--'\"&\u2028\u202e`${1}`{{ 7 * 7 }}"
"""A name that would break out of every place that does not look after itself."""


def occupancy(layers: int, every: int = 1, odd: str = "", size: int = 4 * KIB) -> Occupancy:
    """A chain, forward and backward.

    Args:
        layers: ops in each direction.
        every: one in so many tensors is kept, the others are recomputed.
        odd: what the name of the first node has in it.
        size: bytes of a tensor.
    """
    names = [
        f"/model/encoder/layer.{index}/attention/output/dense{odd if not index else ''}" for index in range(layers)
    ]
    ops: list[tuple[str, str, bool, bool]] = [(name, "MatMul", False, False) for name in names]
    again: dict[int, int] = {}
    used: dict[int, int] = {}
    for index in reversed(range(layers)):
        if index % every and index not in again:
            first = index - index % every + 1
            for other in range(first, min(first + every - 1, layers)):
                again[other] = len(ops)
                ops.append((f"{names[other]}/recompute1", "MatMul", False, True))
        used[index] = len(ops)
        ops.append((f"{names[index]}/grad", "MatMul", True, False))
    buffers = []
    for index, name in enumerate(names):
        kept = index not in again
        last = used[index] if kept else index + 1
        role = Role.KEPT if kept else Role.FORWARD
        buffers.append(Buffer(size, index, last, (Span(index, f"{name}_out", (8, 128), "float32", "MatMul", role),)))
        if not kept:
            span = Span(again[index], f"{name}_out/recompute1", (8, 128), "float32", "MatMul", Role.RECOMPUTED)
            buffers.append(Buffer(size, again[index], used[index], (span,)))
    for step, (name, _, backward, _) in enumerate(ops):
        if backward:
            gone = Span(step + 1, f"{name}_out", (8, 128), "float32", "MatMul", Role.HELD)
            span = Span(step, f"{name}_out", (8, 128), "float32", "MatMul", Role.BACKWARD)
            buffers.append(Buffer(size, step, min(step + 2, len(ops) - 1), (span, gone)[: min(2, len(ops) - step)]))
    change = [0] * (len(ops) + 1)
    for buffer in buffers:
        change[buffer.born] += buffer.bytes
        change[buffer.dies + 1] -= buffer.bytes
    workspace = tuple(KIB if step % 7 == 3 else 0 for step in range(len(ops)))
    live, steps = 0, []
    for (name, _, backward, recomputed), difference, extra in zip(ops, change, workspace, strict=False):
        live += difference
        steps.append(Moment(name, live + extra + 10 * KIB, live + extra, backward, recomputed))
    buffers.sort(key=lambda buffer: buffer.born)
    return Occupancy(Timeline(tuple(steps)), tuple(kind for _, kind, _, _ in ops), workspace, tuple(buffers))


def findings(layers: int = 12, odd: str = "", **changes: Any) -> Findings:
    """A plan that makes all but one in four tensors again."""
    before, after = occupancy(layers, 1, odd), occupancy(layers, 4, odd)
    decisions = tuple(
        Decision(
            f"/layer{index}{odd}", (8, 128), 4 * KIB, f"/layer{index}", "MatMul", index % 4 and 1, index % 4 * 1e-3
        )
        for index in range(layers)
    )
    plan = Plan("memory", (0,) * 10, ("MatMul",), after.timeline, 8 * KIB, 1.2, 1.0, 40 * KIB)
    held = {Kind.PARAMETER: 10 * KIB, Kind.INPUT: 4, Kind.OUTPUT: 8, Kind.ACTIVATION: 0}
    found: dict[str, Any] = {
        "title": f"chain{odd}.onnx",
        "command": f"ckplan report 'chain{odd}.onnx' -o page.html",
        "environment": (("ckplan", "0.1.0"), ("device", "cpu")),
        "notes": (f"dimension 'batch{odd}' is 8 by default",),
        "contents": Contents(layers, layers, held, (2, 99), f"mean squared error of 'y{odd}'"),
        "before": before,
        "after": after,
        "chosen": Chosen(plan, 40 * KIB, (Block(f"MatMul{odd}+Add", layers, decisions),)),
    }
    return Findings(**(found | changes))
