"""Checkpoints along time: a recurrence over T steps as an outer Scan over chunks of it.

Of each chunk only the states at its beginning are kept; the backward pass runs the chunk again, with all that its
gradient needs, before it goes back through it. With about sqrt(T) chunks of sqrt(T) steps that is O(sqrt(T)) states for
one more forward pass (Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016, https://arxiv.org/abs/1604.06174).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.control_flow.bodies import BodyBuilder, close, copy_nodes, emit_scan, new_value
from ckplan.autodiff.control_flow.loop import loop_as_scan
from ckplan.autodiff.control_flow.policy import keep_patterns, spread_patterns
from ckplan.autodiff.control_flow.recurrence import Track, name_states, row_shape, scan_of, track_attributes
from ckplan.autodiff.idioms.slices import stretch
from ckplan.autodiff.paths import discard
from ckplan.autodiff.reading import shape_of
from ckplan.autodiff.registry import NoGradientError, collect
from ckplan.errors import UsageError
from ckplan.keys import PHASE
from ckplan.model.normal_form.generators import seed_anew

Chunks = int | Literal["sqrt"]
"""How many chunks; ``sqrt``: as many as a chunk has steps, about."""

Chunker = Callable[[Builder, ir.Node, Chunks], str | None]

_NONE = "the model has no loop and no recurrent layer"

CHUNKERS: dict[str, Chunker] = {}
"""How to chunk a node, by operator."""


def chunker(op_type: str) -> Callable[[Chunker], Chunker]:
    """Register the decorated function as the one that chunks nodes of an operator.

    It gets the op builder, the node and the number of chunks, chunks the node with :func:`chunked`, and returns None,
    or the reason why the node stays as it is (an empty string where nobody needs to know).
    """

    def register(function: Chunker) -> Chunker:
        CHUNKERS[op_type] = function
        return function

    return register


def checkpoint_time(op: Builder, chunks: Chunks) -> list[str]:
    """Put checkpoints along time into all recurrences of the main graph.

    Args:
        op: builder of the forward graph.
        chunks: how many chunks each recurrence is cut into.

    Returns:
        Notes: what was not chunked and why.

    Raises:
        UsageError: the number of chunks is not positive.
    """
    if chunks != "sqrt" and (not isinstance(chunks, int) or chunks < 1):
        raise UsageError(
            f"`--time-checkpoints {chunks}` says no number of chunks", "give a whole number of at least 1, or `sqrt`"
        )
    collect()
    recurrences = [node for node in op.graph if not node.domain and node.op_type in CHUNKERS]
    if not recurrences:
        return [f"--time-checkpoints changes nothing: {_NONE}"]
    notes = []
    for node in recurrences:
        if reason := CHUNKERS[node.op_type](op, node, chunks):
            notes.append(f"no checkpoints along time in {node.op_type} '{node.name}': {reason}")
    return notes


def prepare_recurrences(op: Builder, chunks: Chunks | None, store: Sequence[str]) -> list[str]:
    """Do what the user wants done with recurrences before a graph is differentiated.

    Args:
        op: builder of the forward graph.
        chunks: how many chunks each recurrence is cut into; None: none is.
        store: patterns of what is kept of each step; see `policy`. None given: the default.

    Returns:
        Notes.

    Raises:
        UsageError: a pattern matches nothing, or the number of chunks is not positive.
    """
    is_heeded = not store or spread_patterns(op.graph, store)
    notes = [] if is_heeded else [f"--store changes nothing: {_NONE}"]
    return notes if chunks is None else [*notes, *checkpoint_time(op, chunks)]


def chunk_length(steps: int, chunks: Chunks) -> int:
    """Return how many steps a chunk has; ``steps`` itself where chunking brings nothing.

    Args:
        steps: number of steps.
        chunks: number of chunks. For ``sqrt`` a divisor of ``steps`` within a factor of two of its root is preferred,
            because sequences that are not a whole number of chunks are copied.
    """
    if chunks != "sqrt":
        return steps if chunks <= 1 or chunks >= steps else math.ceil(steps / chunks)
    if steps < 4:
        return steps
    root = math.sqrt(steps)
    near = [length for length in range(2, steps) if steps % length == 0 and root / 2 <= length <= root * 2]
    return min(near, key=lambda length: abs(math.log(length / root)), default=math.ceil(root))


def chunked(
    op: Builder,
    node: ir.Node,
    steps: int,
    length: int,
    *,
    sequences: Mapping[int, Track],
    states: Mapping[int, int],
    results: Mapping[int, Track],
    pieces: Mapping[int, ir.Value] | None = None,
) -> list[ir.Node]:
    """Replace a node that is a recurrence by an outer Scan over chunks with a copy of the node inside.

    Where the steps are not a whole number of chunks, the rest goes through one more copy behind the Scan, and the
    sequences are cut and joined, which copies them.

    Args:
        op: builder of the graph that holds the node; the new nodes take its place.
        node: the recurrence; inputs in none of the mappings are captured as they are. Outputs in none of them must not
            be read.
        steps: number of steps.
        length: steps of a chunk, at least 1 and less than ``steps``.
        sequences: index of an input that has ``steps`` rows -> its time axis.
        states: index of the input of an initial state -> index of the output of the final one, equally shaped.
        results: index of an output that has ``steps`` rows -> its time axis.
        pieces: index of an input -> a value [chunks, ...] whose row c is what chunk c reads instead, the rest included.

    Returns:
        The copies of the node: the one in the Scan, and the one for the rest.

    Raises:
        ValueError: a state is missing, or an output is read that is in none of the mappings.
    """
    pieces = pieces or {}
    if any(node.inputs[i] is None or not node.outputs[o].name for i, o in states.items()):
        raise ValueError(f"every state of {node.op_type} '{node.name}' needs an initial and a final value")
    known = {*states.values(), *results}
    if any(out.uses() for index, out in enumerate(node.outputs) if index not in known):
        raise ValueError(f"an output of {node.op_type} '{node.name}' is neither a state nor a sequence")
    whole, rest = divmod(steps, length)
    with op.scope(f"{node.name}/chunks", "forward", before=node):
        heads = {i: _cut(op, _input(node, i), track, whole * length, rest, head=True) for i, track in sequences.items()}
        tails = {
            i: _cut(op, _input(node, i), track, whole * length, rest, head=False) for i, track in sequences.items()
        }
        inner, made = _outer_scan(op, node, whole, length, heads, sequences, states, results, pieces)
        copies = [inner]
        if rest:
            tail = _copy(op, node, {i: track.axis for i, track in results.items()}, rest)
            seed_anew(tail)
            for index, value in tails.items():
                tail.replace_input_with(index, value)
            for index, target in states.items():
                tail.replace_input_with(index, made[target])
            for index, value in pieces.items():
                tail.replace_input_with(index, op.Gather(value, np.asarray(whole, dtype=np.int64), axis=0))
            op.insert(tail)
            copies.append(tail)
            for index, track in results.items():
                parts = [made[index], tail.outputs[index]]
                made[index] = op.Concat(*(reversed(parts) if track.reverse else parts), axis=track.axis)
            made.update({target: tail.outputs[target] for target in states.values()})
    for index, value in made.items():
        old = node.outputs[index]
        value.name, old.name = old.name, None
        ir.convenience.replace_all_uses_with(old, value, replace_graph_outputs=True)
    discard(op.graph, [node])
    return copies


def _outer_scan(
    op: Builder,
    node: ir.Node,
    count: int,
    length: int,
    heads: Mapping[int, ir.Value],
    sequences: Mapping[int, Track],
    states: Mapping[int, int],
    results: Mapping[int, Track],
    pieces: Mapping[int, ir.Value],
) -> tuple[ir.Node, dict[int, ir.Value]]:
    """Emit the Scan over the whole chunks; return the copy of the node in it and its results by output index."""
    inner = _copy(op, node, {i: track.axis for i, track in results.items()}, length)
    body = ir.Graph([], [], nodes=[inner], name=f"{node.name}/chunk")
    initial, outer, tracks = [_input(node, i) for i in states], [], []
    for index in states:
        value = _input(node, index)
        body.inputs.append(new_value(op, f"{value.name}/chunk", value.dtype, shape_of(value)))
        inner.replace_input_with(index, body.inputs[-1])
    for index, track in sequences.items():
        shape = shape_of(heads[index])
        outer.append(op.reshape(heads[index], (*shape[: track.axis], count, length, *shape[track.axis + 1 :])))
        tracks.append(track)
        body.inputs.append(
            new_value(
                op,
                f"{heads[index].name}/chunk",
                heads[index].dtype,
                (*shape[: track.axis], length, *shape[track.axis + 1 :]),
            )
        )
        inner.replace_input_with(index, body.inputs[-1])
    for index, value in pieces.items():
        rows = shape_of(value)[0]
        outer.append(value if rows == count else stretch(op, value, 0, 0, count))
        tracks.append(Track(0))
        body.inputs.append(new_value(op, f"{value.name}/chunk", value.dtype, row_shape(shape_of(value), 0)))
        inner.replace_input_with(index, body.inputs[-1])
    indices = [*states.values(), *results]
    body.outputs.extend(close(BodyBuilder(op, body), [inner.outputs[i] for i in indices], "forward"))
    attributes = track_attributes("input", tracks)
    if results:
        attributes += track_attributes("output", list(results.values()))
    outputs = [
        new_value(op, f"{value.name}/chunks", value.dtype, shape_of(value)) for value in body.outputs[: len(states)]
    ]
    for value, track in zip(body.outputs[len(states) :], results.values(), strict=True):
        shape = shape_of(value)
        outputs.append(
            new_value(op, f"{value.name}/chunks", value.dtype, (*shape[: track.axis], count, *shape[track.axis :]))
        )
    scan = emit_scan(op, f"{node.name}/chunks", body, initial, outer, outputs, {PHASE: "forward"}, attributes)
    keep_patterns(scan, ())
    made = dict(zip(indices, outputs, strict=True))
    for index, track in results.items():
        shape = shape_of(inner.outputs[index])
        made[index] = op.reshape(made[index], (*shape[: track.axis], count * length, *shape[track.axis + 1 :]))
    return inner, made


def _copy(op: Builder, node: ir.Node, axes: Mapping[int, int], steps: int) -> ir.Node:
    """Copy a recurrence for fewer steps.

    Args:
        op: builder that knows which names are taken.
        node: the recurrence.
        axes: time axis by index of the output.
        steps: number of steps of the copy.
    """
    (copy,) = copy_nodes(op, [node], {})
    for index, axis in axes.items():
        shape = shape_of(node.outputs[index])
        copy.outputs[index].shape = ir.Shape((*shape[:axis], steps, *shape[axis + 1 :]))
    return copy


def _cut(op: Builder, value: ir.Value, track: Track, whole: int, rest: int, *, head: bool) -> ir.Value:
    """Return the rows of the whole chunks, which are processed first, or those of the rest."""
    if not rest:
        return value
    first = head != track.reverse  # the rows of the first steps stand in front
    split = whole if not track.reverse else rest
    start, end = (0, split) if first else (split, whole + rest)
    return stretch(op, value, track.axis, start, end)


def _input(node: ir.Node, index: int) -> ir.Value:
    value = node.inputs[index]
    assert value is not None
    return value


@chunker("Scan")
def chunk_scan(op: Builder, node: ir.Node, chunks: Chunks) -> str | None:
    """Chunk a Scan; all axes and directions."""
    loop = scan_of(node)
    length = chunk_length(loop.steps, chunks)
    if length >= loop.steps:
        return "" if chunks in (1, "sqrt") else f"it has only {loop.steps} steps"
    count = loop.states
    name_states(op, loop)
    chunked(
        op,
        node,
        loop.steps,
        length,
        sequences={count + i: track for i, (*_, track) in enumerate(loop.sequences)},
        states={i: i for i in range(count)},
        results={count + i: track for i, (*_, track) in enumerate(loop.results)},
    )
    return None


@chunker("Loop")
def chunk_loop(op: Builder, node: ir.Node, chunks: Chunks) -> str | None:
    """Chunk a Loop whose number of steps is fixed, as the Scan that it is."""
    try:
        if not loop_as_scan(op, node):
            return "how often it runs is not fixed"
    except NoGradientError as error:
        return error.reason
    return chunk_scan(op, node, chunks)
