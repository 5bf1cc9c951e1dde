"""The update of a large table row by row, without temporaries of its size.

onnxruntime's elementwise kernels write to new memory, so that an update takes two tensors of the parameter's size: its
gradient, or what takes its place, and what the next kernel makes of that. A Scan over the rows makes each of them in
turn, straight into the memory of the new value, which may be that of the old one, and the gradient alone has the
table's size. That of a table of embeddings is zero but for the rows of the batch, and is not made as a whole, either:
it is read, row by row, out of a table that has those and one of zeros. The numbers are the same, element by element,
and so is about the time: a row takes some microseconds.
It is for budgets that are out of reach otherwise: a profile of it has an event for each node of each row, which makes
it slow to measure (see `ckplan.meter.memory.events`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.optimizers.base import Optimizer
from ckplan.autodiff.reading import attr_int, shape_of, size_of
from ckplan.autodiff.recurrent.time_loop import scan

SMALLEST = 2**24
"""Bytes from which a parameter's temporaries matter."""

NARROWEST = 256
"""Elements of a row from which the work on it takes longer than to begin with it."""

LONGEST = 2**16
"""Rows beyond which a profile of one step might have more events than onnxruntime keeps, a million."""

_SHARE = 0.25
"""Of the largest parameter's size, from which on the temporaries of another one matter as much."""

FACTOR = "ckplan: clip"
"""Name of the factor that clips gradients, among the scalars."""

_ENDING = "/update/rows"
"""What stands behind the name of the parameter in that of the Scan, and a number that makes it unique."""

Updated = tuple[ir.Value, tuple[ir.Value, ...]]


def largest_tables(parameters: Iterable[ir.Value]) -> set[ir.Value]:
    """The parameters whose whole gradients are read row by row: matrices about as large as the largest parameter.

    Args:
        parameters: all that are updated.
    """
    parameters = sorted(parameters, key=size_of, reverse=True)
    taken: set[ir.Value] = set()
    left = LONGEST
    for parameter in parameters:
        if size_of(parameter) < _SHARE * size_of(parameters[0]) or not _is_large(parameter):
            continue
        left -= shape_of(parameter)[0]
        if left < 0:
            break
        taken.add(parameter)
    return taken


def update_rows(
    op: Builder,
    optimizer: Optimizer,
    parameter: ir.Value,
    gradient: ir.Value,
    states: Sequence[ir.Value],
    scalars: Mapping[str, ir.Value],
    largest: Set[ir.Value],
) -> Updated | None:
    """Emit the new value of a parameter and of its states; see `ckplan.autodiff.optimizers.base.Optimizer.update`.

    Args:
        op: the builder.
        optimizer: how to get new parameters.
        parameter: the parameter.
        gradient: its gradient, before it is clipped.
        states: one value for each of the optimizer's.
        scalars: those of the optimizer, and `FACTOR` where gradients are clipped.
        largest: the parameters that are worth it with a whole gradient, see `largest_tables`.

    Returns:
        None where the parameter is no large matrix, or its gradient a whole one and it not among the largest; nothing
        is emitted then.
    """
    if not _is_large(parameter):
        return None
    source = _rows_of(gradient)
    if source is None and parameter not in largest:
        return None
    names = [f"state{number}" for number in range(len(states))]

    def row(
        inner: Builder, before: Sequence[ir.Value], read: Mapping[str, ir.Value]
    ) -> tuple[list[ir.Value], dict[str, ir.Value]]:
        """One row."""
        slope = read["slope"] if source is None else inner.Gather(source[0], read["place"], axis=0)
        numbers = {name: read[f"number {name}"] for name in scalars}
        if FACTOR in numbers:
            slope = inner.Mul(slope, numbers[FACTOR])
        new, after = optimizer.update(inner, read["parameter"], slope, [read[name] for name in names], numbers)
        return [], {"parameter": new, **dict(zip(names, after, strict=True))}

    sequences = {"parameter": parameter, **dict(zip(names, states, strict=True))}
    sequences |= {"slope": gradient} if source is None else {"place": source[1]}
    # One for each row: what a body reads of the graph around it, onnxruntime's optimisers may lose.
    rows = shape_of(parameter)[:1]
    sequences.update({f"number {name}": op.expand(value, rows) for name, value in scalars.items()})
    results = ("parameter", *names)
    _, made = scan(op, f"{parameter.name}{_ENDING}", "backward", row, [], sequences, results, backwards=False)
    return made["parameter"], tuple(made[name] for name in names)


def _is_large(parameter: ir.Value) -> bool:
    """Whether a parameter is a matrix of which the temporaries matter, with rows that are worth their nodes."""
    shape = shape_of(parameter)
    if len(shape) != 2 or parameter.dtype is None or shape[0] > LONGEST:
        return False
    return shape[1] >= NARROWEST and size_of(parameter) * parameter.dtype.itemsize >= SMALLEST


def _rows_of(gradient: ir.Value) -> tuple[ir.Value, ir.Value] | None:
    """The smaller table that the rows of a gradient are taken from, and where each is in it; None if there is none.

    Where others read the gradient, it is there as a whole in any case.
    """
    node = gradient.producer()
    if node is None or node.op_type != "Gather" or attr_int(node, "axis", 0) != 0 or gradient.uses():
        return None
    table, places = node.inputs
    if table is None or places is None:
        return None
    rows = shape_of(gradient)[:1]
    return (table, places) if shape_of(places) == rows and shape_of(table)[0] < rows[0] else None


def updated_by_rows(graph: ir.Graph) -> list[str]:
    """The parameters of a step that are updated row by row, by name."""
    scans = (str(node.name).rpartition(_ENDING) for node in graph if node.op_type == "Scan")
    return [name for name, ending, _ in scans if ending]
