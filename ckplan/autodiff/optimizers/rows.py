"""The update of a table of embeddings row by row, where its gradient is rows of a smaller table.

The gradient of a table is zero but for the rows of the batch: it is read, row by row, out of a table that has those and
one of zeros. As a whole it would be as large as the parameter, and so would every temporary of its update. A Scan over
the rows makes each of them in turn, straight into the memory of the new value, which may be that of the old one. Its
numbers are the same, element by element, and so is its time: a row takes some microseconds.
It is for budgets of everything alone: a profile of it has an event for each node of each row, which makes it slow to
measure (see `ckplan.meter.events`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.optimizers.base import Optimizer
from ckplan.autodiff.reading import attr_int, shape_of
from ckplan.autodiff.recurrent.time_loop import scan

SMALLEST = 2**24
"""Bytes from which a parameter's temporaries matter."""

NARROWEST = 256
"""Elements of a row from which the work on it takes longer than to begin with it."""

LONGEST = 2**16
"""Rows beyond which a profile of one step might have more events than onnxruntime keeps, a million."""

_ENDING = "/update/rows"
"""What stands behind the name of the parameter in that of the Scan, and a number that makes it unique."""

Updated = tuple[ir.Value, tuple[ir.Value, ...]]


def update_rows(
    op: Builder,
    optimizer: Optimizer,
    parameter: ir.Value,
    gradient: ir.Value,
    states: Sequence[ir.Value],
    scalars: Mapping[str, ir.Value],
) -> Updated | None:
    """Emit the new value of a parameter and of its states; see `ckplan.autodiff.optimizers.base.Optimizer.update`.

    Returns:
        None where the gradient is not rows of a smaller table, is read by others, or is small; nothing is emitted then.
    """
    node = gradient.producer()
    shape = shape_of(parameter)
    if node is None or node.op_type != "Gather" or attr_int(node, "axis", 0) != 0 or gradient.uses() or len(shape) != 2:
        return None
    table, places = node.inputs
    assert table is not None
    assert places is not None
    assert parameter.dtype is not None
    small = shape[0] * shape[1] * parameter.dtype.itemsize < SMALLEST or shape[1] < NARROWEST
    if small or shape[0] > LONGEST or shape_of(places) != shape[:1] or shape_of(table)[0] >= shape[0]:
        return None
    names = [f"state{number}" for number in range(len(states))]

    def row(
        inner: Builder, before: Sequence[ir.Value], read: Mapping[str, ir.Value]
    ) -> tuple[list[ir.Value], dict[str, ir.Value]]:
        """One row."""
        slope = inner.Gather(table, read["place"], axis=0)
        numbers = {name: read[f"number {name}"] for name in scalars}
        new, after = optimizer.update(inner, read["parameter"], slope, [read[name] for name in names], numbers)
        return [], {"parameter": new, **dict(zip(names, after, strict=True))}

    sequences = {"parameter": parameter, **dict(zip(names, states, strict=True)), "place": places}
    # One for each row: what a body reads of the graph around it, onnxruntime's optimisers may lose.
    sequences.update({f"number {name}": op.expand(value, shape[:1]) for name, value in scalars.items()})
    results = ("parameter", *names)
    _, made = scan(op, f"{parameter.name}{_ENDING}", "backward", row, [], sequences, results, backwards=False)
    return made["parameter"], tuple(made[name] for name in names)


def updated_by_rows(graph: ir.Graph) -> list[str]:
    """The parameters of a step that are updated row by row, by name."""
    scans = (str(node.name).rpartition(_ENDING) for node in graph if node.op_type == "Scan")
    return [name for name, ending, _ in scans if ending]
