"""What became of the nodes that a file repeats: onnxruntime ran them, fused them into others, or merged them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import onnx_ir as ir

from ckplan.meter.facts import RECOMPUTE_MARK
from ckplan.meter.types import Recomputation


def recomputation(nodes: Sequence[ir.Node], names: Collection[str], executed: Sequence[ir.Node]) -> Recomputation:
    """What onnxruntime made of the recomputed nodes of a file.

    A node that did not run under its own name was fused if a node that ran makes its result, or makes what the file
    makes of its result, and does not read the result of the node that it repeats. Else an optimiser merged it.

    Args:
        nodes: the recomputed nodes of the file.
        names: names of the nodes that ran.
        executed: the nodes that onnxruntime executed, as it wrote them after its optimisations.
    """
    makers = {value.name: node for node in executed for value in node.outputs if value.name}
    fused: Counter[str] = Counter()
    merged = 0
    for node in nodes:
        if node.name in names:
            continue
        part_of = _part_of(node, makers)
        if part_of is None:
            merged += 1
        else:
            fused[part_of.op_type] += 1
    return Recomputation(
        in_file=len(nodes), executed=len(nodes) - merged, merged=merged, fused=tuple(sorted(fused.items()))
    )


def _part_of(node: ir.Node, makers: Mapping[str, ir.Node]) -> ir.Node | None:
    """The executed node that a node became part of; None if it was merged with the one that it repeats."""
    pending, seen = [node], {node}
    originals = _originals(node)
    while pending:
        current = pending.pop()
        for value in current.outputs:
            maker = makers.get(value.name or "")
            if maker is not None:
                merged = any(read is not None and read.name in originals for read in maker.inputs)
                return None if merged else maker
            following = [reader for reader in value.consumers() if reader not in seen]
            for reader in following:
                originals |= _originals(reader)
            pending.extend(following)
            seen.update(following)
    return None


def _originals(node: ir.Node) -> set[str]:
    """Names of the results that a recomputed node recomputes; none for other nodes."""
    _, mark, number = (node.name or "").rpartition(RECOMPUTE_MARK)
    return {(value.name or "").removesuffix(mark + number) for value in node.outputs if value.name} if mark else set()
