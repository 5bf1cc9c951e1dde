"""What a recurrence keeps of each step for its gradient: the user's patterns, and the choice without any."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from fnmatch import fnmatchcase

import onnx_ir as ir

from ckplan.errors import UsageError
from ckplan.keys import STORE
from ckplan.model.files.metadata import listed_names
from ckplan.model.nested_graphs import graphs_in
from ckplan.model.traits import is_heavy, is_random

NOTHING = "none"
"""The pattern that stands for nothing but the carried states."""

STORABLE: dict[str, tuple[str, ...]] = {"LSTM": ("gates",), "GRU": ("gates",), "RNN": ("gates",)}
"""What can be kept of each step by recurrent operators that have no body, such as the gates of an LSTM."""


def stored_patterns(node: ir.Node) -> tuple[str, ...] | None:
    """Return the patterns of what a node keeps of each step, None where nobody said.

    Raises:
        ModelError: the node's metadata are damaged.
    """
    return listed_names(node.metadata_props, STORE) if STORE in node.metadata_props else None


def keep_patterns(node: ir.Node, patterns: Sequence[str]) -> None:
    """Note on a node what it keeps of each step; an empty sequence: nothing but the carried states."""
    node.metadata_props[STORE] = json.dumps(list(patterns))


def stores(node: ir.Node, name: str) -> bool | None:
    """Say whether a recurrent node keeps a value of each step, by the user's patterns; None where there are none.

    Args:
        node: the node.
        name: what the value is called; patterns may match it alone or behind the node's name and a slash.
    """
    patterns = stored_patterns(node)
    if patterns is None:
        return None
    return any(_matches(pattern, node, name) for pattern in patterns)


def is_stored(node: ir.Node, value: ir.Value, heavy: bool = True) -> bool:
    """Say whether a value of a node's body is kept rather than recomputed.

    What is drawn at random is always kept: another draw would be another value. Without patterns results of heavy
    operators are kept too, since only the rest is cheap.

    Args:
        node: the control-flow node.
        value: a value that a node of its body makes.
        heavy: whether results of heavy operators are kept when there are no patterns.
    """
    producer = value.producer()
    assert producer is not None
    if is_random(producer):
        return True
    if value.shape is None or not value.shape.is_static():
        return False  # rows of different lengths cannot be stacked
    chosen = stores(node, str(value.name))
    return chosen if chosen is not None else heavy and is_heavy(producer)


def spread_patterns(graph: ir.Graph, patterns: Sequence[str]) -> bool:
    """Note the user's patterns on every control-flow and recurrent node of a graph; whether there is one.

    Raises:
        UsageError: a pattern matches nothing.
    """
    nodes = [node for node in graph.all_nodes() if graphs_in(node) or node.op_type in STORABLE]
    names = [(node, name) for node in nodes for name in _storable(node)]
    for pattern in patterns:
        if pattern != NOTHING and not any(_matches(pattern, node, name) for node, name in names):
            listed = [name for _, name in names]
            near = difflib.get_close_matches(pattern.strip("*"), listed, n=3, cutoff=0.4) or listed[:3]
            hint = f"there are, for example, {', '.join(f'`{name}`' for name in near)}" if near else ""
            raise UsageError(f"`--store {pattern}` matches no value of a step", hint or "the model has no recurrence")
    for node in nodes:
        keep_patterns(node, [pattern for pattern in patterns if pattern != NOTHING])
    return bool(nodes)


def _storable(node: ir.Node) -> list[str]:
    made = [value.name for body in graphs_in(node) for inner in body for value in inner.outputs if value.name]
    return [*STORABLE.get(node.op_type, ()), *made]


def _matches(pattern: str, node: ir.Node, name: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(f"{node.name}/{name}", pattern)
