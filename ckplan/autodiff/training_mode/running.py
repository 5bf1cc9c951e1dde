"""Running statistics of all layers in one update.

A normalisation updates its running mean and variance by three nodes each, on a few hundred numbers that nothing but the
next step reads. Joined end to end, those of all layers take the nodes of one. The update stands at the end: until then
means and variances wait as activations, where new statistics waited as outputs. In total nothing is added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.reading import required_input, shape_of, size_of

FEWEST = 4
"""Statistics from which on there are fewer nodes joined than apart."""


@dataclass(frozen=True)
class _Update:
    """What a running statistic becomes: ``momentum * old + share * batch``."""

    old: ir.Value
    batch: ir.Value
    momentum: ir.Value
    share: ir.Value
    new: ir.Value


def join_running_statistics(op: Builder, running: Mapping[ir.Value, ir.Value]) -> None:
    """Let one update serve all running statistics that nothing but the next step reads; each is what it was.

    The nodes of the updates that were are left without a reader.

    Args:
        op: builder of the finished graph.
        running: what each running statistic [C] becomes, an output of the graph.
    """
    groups: dict[tuple[ir.Value, ir.Value], list[_Update]] = {}
    for old, new in running.items():
        found = _update(old, new)
        if found is not None:
            groups.setdefault((found.momentum, found.share), []).append(found)
    for (momentum, share), group in groups.items():
        if len(group) < FEWEST:
            continue
        updates = sorted(group, key=lambda update: len(shape_of(_in_its_rank(update.batch))))
        # Not of the forward pass, which plans cut into segments: nothing in it reads what all of them make.
        with op.scope("ckplan/running_statistics", "backward"):
            before = op.Concat(*(update.old for update in updates), axis=0)
            batch = _joined(op, [update.batch for update in updates])
            total = op.Add(op.Mul(before, momentum), op.Mul(batch, share))
            sizes = np.asarray([size_of(update.old) for update in updates], dtype=np.int64)
            parts = op.Split(total, sizes, axis=0, _outputs=len(updates))
        for update, part in zip(updates, parts, strict=True):
            update.new.name, part.name = part.name, update.new.name
            update.new.replace_all_uses_with(part, replace_graph_outputs=True)


def _update(old: ir.Value, new: ir.Value) -> _Update | None:
    """The parts of an update as :mod:`ckplan.autodiff.training_mode.batch_norm` writes it; None if it is read."""
    total = new.producer()
    if new.uses() or total is None or total.op_type != "Add":
        return None
    kept, added = (required_input(total, index).producer() for index in (0, 1))
    if kept is None or added is None or not kept.op_type == added.op_type == "Mul":
        return None
    if kept.inputs[0] is not old:  # a layer that is applied twice: this is what the second makes of the first's
        return None
    return _Update(old, required_input(added, 0), required_input(kept, 1), required_input(added, 1), new)


def _in_its_rank(statistic: ir.Value) -> ir.Value:
    """The (1, C, 1, ...) that a vector of channels was made of by a Reshape; itself if it was not."""
    maker = statistic.producer()
    if maker is None or maker.op_type != "Reshape":
        return statistic
    source = required_input(maker, 0)
    return source if shape_of(source)[1:2] == shape_of(statistic) else statistic


def _joined(op: Builder, statistics: Sequence[ir.Value]) -> ir.Value:
    """Join vectors of channels end to end, those of one rank before they are vectors."""
    parts: list[ir.Value] = []
    for rank, members in groupby(map(_in_its_rank, statistics), key=lambda value: len(shape_of(value))):
        values = list(members)
        if rank == 1:
            parts.extend(values)
        else:
            whole = op.Concat(*values, axis=1) if len(values) > 1 else values[0]
            parts.append(op.reshape(whole, [size_of(whole)]))
    return op.Concat(*parts, axis=0) if len(parts) > 1 else parts[0]
