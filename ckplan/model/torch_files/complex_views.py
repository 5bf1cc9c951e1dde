"""Views of complex tensors, which torch's exporter knows of real ones only.

ONNX has no complex numbers: the exporter writes a complex tensor as a real one with an axis of two at the end. Where it
lacks an operator for that, the program is changed to look at the same numbers as real ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def look_as_real(graph: torch.fx.Graph) -> None:
    """Have axes of complex tensors inserted, picked and expanded in their real and imaginary parts.

    Args:
        graph: a traced program, which is changed.
    """
    import torch

    aten: Any = torch.ops.aten
    # The axis of parts is the last one, so that an axis that is counted from the end lies one further.
    views: dict[Any, Callable[..., tuple[Any, ...]]] = {
        aten.unsqueeze.default: lambda axis: (_before_parts(axis),),
        aten.select.int: lambda axis, index: (_before_parts(axis), index),
        aten.expand.default: lambda sizes: ([*sizes, 2],),
    }
    for node in list(graph.nodes):
        function: Any = node.target
        value = node.meta.get("val")
        if function not in views or node.kwargs or not isinstance(value, torch.Tensor) or not value.is_complex():
            continue
        with graph.inserting_before(node):
            parts = _called(graph, aten.view_as_real.default, node.args[0])
            seen = _called(graph, function, parts, *views[function](*node.args[1:]))
            whole = _called(graph, aten.view_as_complex.default, seen)
        node.replace_all_uses_with(whole)
        graph.erase_node(node)


def _before_parts(axis: int) -> int:
    return axis if axis >= 0 else axis - 1


def _called(graph: torch.fx.Graph, function: Any, read: torch.fx.Node, *rest: Any) -> torch.fx.Node:
    """A node that calls a function of what another one makes."""
    made = graph.call_function(function, (read, *rest))
    made.meta["val"] = function(read.meta["val"], *rest)
    return made
