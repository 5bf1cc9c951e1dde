"""Anchors: values of the forward graph that the reverse sweep must find again, or must not pass.

While the sweep runs, an anchored value is read through an Identity. So it stays a value of its own: it is no inner
value of a composite, and the body of a function that replaces its maker does not replace it. Afterwards the Identity
goes.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.composites import DETACH, outline
from ckplan.autodiff.paths import entry_of


class Anchors:
    """The anchored values of a graph. An anchor bears the name of its value as long as it is there.

    Args:
        op: builder of the forward graph.
    """

    def __init__(self, op: Builder) -> None:
        self._op = op
        self._anchors: dict[ir.Value, ir.Value] = {}
        self._stops: list[ir.Value] = []

    def __getitem__(self, value: ir.Value) -> ir.Value:
        """The anchor of a value, or the value itself if it has none."""
        return self._anchors.get(value, value)

    def add(self, value: ir.Value) -> ir.Value:
        """Let all readers of a value, and the graph's outputs, read its anchor instead; return the anchor."""
        if value in self._anchors:
            return self._anchors[value]
        graph, producer = self._op.graph, value.producer()
        anchor = ir.Value(name=value.name, type=value.type, shape=value.shape)
        value.name = self._op.unique_name(f"{value.name}/anchored")
        value.replace_all_uses_with(anchor, replace_graph_outputs=True)
        node = ir.node("Identity", [value], outputs=[anchor], name=value.name)
        if producer is None:
            graph.insert_before(graph[0], node)
        else:
            graph.insert_after(producer, node)
        self._anchors[value] = anchor
        return anchor

    def detach(self, values: Iterable[ir.Value]) -> None:
        """Stop gradients at values: they count as constants."""
        for value in values:
            anchor = self.add(value)
            node = anchor.producer()
            assert node is not None
            outline(self._op, DETACH, [node], [value], [anchor])

    def stop(self, node: ir.Node, index: int) -> None:
        """Stop gradients at one input of a node."""
        value = node.inputs[index]
        if value is None:
            return
        stop = ir.Value(name=self._op.unique_name(f"{value.name}/detached"), type=value.type, shape=value.shape)
        identity = ir.node("Identity", [value], outputs=[stop], name=stop.name)
        self._op.graph.insert_before(node, identity)
        node.replace_input_with(index, stop)
        outline(self._op, DETACH, [identity], [value], [stop])
        self._stops.append(stop)

    def hold(self, values: Iterable[ir.Value]) -> None:
        """Anchor those of some values whose makers may be replaced by the body of a function."""
        for value in values:
            node = value.producer()
            if node is not None and entry_of(node, self._op.opset_imports) is None:
                self.add(value)

    def remove(self) -> None:
        """Take all anchors out of the graph again."""
        for stop in self._stops:
            self._bypass(stop)
        self._stops.clear()
        for value, anchor in self._anchors.items():
            source = self._bypass(anchor) or value  # what has its name may be an input of the file
            source.name, anchor.name = anchor.name, None
        self._anchors.clear()

    def _bypass(self, result: ir.Value) -> ir.Value | None:
        """Let readers of an Identity's result read its input, and return that; None where nothing needed it."""
        node = result.producer()
        assert node is not None
        if node.graph is None:
            return None
        source = node.inputs[0]
        assert source is not None
        result.replace_all_uses_with(source, replace_graph_outputs=True)
        self._op.graph.remove(node, safe=True)
        return source
