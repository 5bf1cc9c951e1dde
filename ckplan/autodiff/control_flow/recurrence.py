"""Scan and Loop under one view: states that are carried, sequences that are read and made step by step."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.control_flow.bodies import BodyBuilder, close, dims_of, origin
from ckplan.autodiff.reading import attr_int, attr_ints, shape_of


@dataclass(frozen=True)
class Track:
    """How an input or output of a recurrence runs along time.

    Attributes:
        axis: its time axis, not negative.
        reverse: its last row belongs to the first step.
    """

    axis: int
    reverse: bool = False


@dataclass(frozen=True)
class Recurrence:
    """A Scan (https://onnx.ai/onnx/operators/onnx__Scan.html) or a Loop (…/onnx__Loop.html).

    Attributes:
        node: the node; what is read off it here follows its attributes, so stacks may be added.
        body: its body.
        first: index of the first state among the node's and the body's inputs.
        skipped: number of body outputs before the states.
        steps: number of steps; for a Loop the largest there can be.
        exact: whether there are always that many.
        picked: rows that the body of a Loop picks one by one from sequences of as many rows as there are steps: the
            row, the sequence, and how it runs.
    """

    node: ir.Node
    body: ir.Graph
    first: int
    skipped: int
    steps: int
    exact: bool
    picked: tuple[tuple[ir.Value, ir.Value, Track], ...] = ()

    @cached_property
    def states(self) -> int:
        """Number of states."""
        if self.node.op_type == "Loop":
            return len(self.node.inputs) - self.first
        return len(self.node.inputs) - attr_int(self.node, "num_scan_inputs", 1)

    @property
    def before(self) -> list[ir.Value]:
        """The states at the beginning of a step: inputs of the body."""
        return list(self.body.inputs[self.first : self.first + self.states])

    @property
    def after(self) -> list[ir.Value]:
        """The states at the end of a step: outputs of the body."""
        return list(self.body.outputs[self.skipped : self.skipped + self.states])

    @property
    def initial(self) -> list[ir.Value]:
        """The states before the first step: inputs of the node."""
        return [value for value in self.node.inputs[self.first : self.first + self.states] if value is not None]

    @property
    def final(self) -> list[ir.Value]:
        """The states after the last step: outputs of the node."""
        return list(self.node.outputs[: self.states])

    @property
    def sequences(self) -> list[tuple[ir.Value, ir.Value, Track]]:
        """What is read row by row: the row in the body, the sequence outside, and how it runs."""
        if self.node.op_type == "Loop":
            return list(self.picked)
        outer = [value for value in self.node.inputs[self.states :] if value is not None]
        tracks = _tracks(self.node, "input", [len(shape_of(value)) for value in outer])
        return list(zip(self.body.inputs[self.states :], outer, tracks, strict=True))

    @property
    def results(self) -> list[tuple[ir.Value, ir.Value, Track]]:
        """What is made row by row: the output of the body, the output of the node, and how it runs."""
        inner = self.body.outputs[self.skipped + self.states :]
        outer = self.node.outputs[self.states :]
        if self.node.op_type == "Loop":
            return [(i, o, Track(0)) for i, o in zip(inner, outer, strict=True)]
        tracks = _tracks(self.node, "output", [len(dims_of(value)) + 1 for value in inner])
        return list(zip(inner, outer, tracks, strict=True))

    def stack(self, op: Builder, value: ir.Value) -> tuple[ir.Value, Track]:
        """Return a value of the body of all steps: an output of the node that is there already, or a new one.

        Args:
            op: builder of the graph that holds the node.
            value: a value of the body.
        """
        for inner, outer, track in self.results:
            if origin(inner) is origin(value) and outer.name:
                return outer, track
        shape = dims_of(value)
        rows: int | str = self.steps if self.exact else f"{self.steps}@{self.node.name}"
        tracks = [track for *_, track in self.results]
        (row,) = close_after(BodyBuilder(op, self.body), value)
        self.body.outputs.append(row)
        self.node.resize_outputs(len(self.node.outputs) + 1)
        outer = self.node.outputs[-1]
        outer.name = op.unique_name(f"{value.name}/steps")
        outer.type, outer.shape = value.type, ir.Shape((rows, *shape))
        if self.node.op_type == "Scan":
            write_tracks(self.node, "output", [*tracks, Track(0)])
        return outer, Track(0)


def name_states(op: Builder, loop: Recurrence) -> None:
    """Give names, types and shapes to final states that the model does not read, so that they can be read now."""
    for value, inner in zip(loop.final, loop.after, strict=True):
        if not value.name:
            value.name = op.unique_name(f"{inner.name}/final")
        if value.shape is None or value.type is None:
            value.type, value.shape = inner.type, ir.Shape(dims_of(inner))


def close_after(op: BodyBuilder, value: ir.Value) -> list[ir.Value]:
    """Return a value of a body in a form that can be one more of its outputs."""
    taken = list(op.graph.outputs)
    return close(op, [*taken, value], "forward")[len(taken) :]


def scan_of(node: ir.Node) -> Recurrence:
    """Return the view of a Scan."""
    body = node.attributes["body"].as_graph()
    sequences = attr_int(node, "num_scan_inputs", 1)
    first = node.inputs[len(node.inputs) - sequences]
    assert first is not None
    (track, *_) = _tracks(node, "input", [len(shape_of(v)) for v in node.inputs[-sequences:] if v is not None])
    return Recurrence(node, body, 0, 0, shape_of(first)[track.axis], exact=True)


def _tracks(node: ir.Node, side: str, ranks: list[int]) -> list[Track]:
    """Read axes and directions of the scan inputs or outputs.

    Args:
        node: a Scan.
        side: ``input`` or ``output``.
        ranks: ranks of the whole sequences.
    """
    axes = attr_ints(node, f"scan_{side}_axes") or (0,) * len(ranks)
    directions = attr_ints(node, f"scan_{side}_directions") or (0,) * len(ranks)
    return [Track(axis % rank, bool(back)) for axis, rank, back in zip(axes, ranks, directions, strict=True)]


def write_tracks(node: ir.Node, side: str, tracks: list[Track]) -> None:
    """Write axes and directions of the scan inputs or outputs of a Scan; see :func:`_tracks`."""
    for attribute in track_attributes(side, tracks):
        node.attributes[attribute.name] = attribute


def track_attributes(side: str, tracks: list[Track]) -> list[ir.Attr]:
    """Return the attributes of a Scan that say how its sequences run."""
    return [
        ir.AttrInt64s(f"scan_{side}_axes", [track.axis for track in tracks]),
        ir.AttrInt64s(f"scan_{side}_directions", [int(track.reverse) for track in tracks]),
    ]


def row_shape(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """Return the shape of one row of a sequence."""
    return shape[:axis] + shape[axis + 1 :]
