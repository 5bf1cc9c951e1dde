"""What the file itself says about a model that is to be run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ckplan.errors import ModelError
from ckplan.keys import (
    GRADIENTS,
    PHASE,
    PLAN,
    PREDICTED_ACTIVATIONS,
    PREDICTED_TOTAL,
    RECOMPUTE_OF,
    RETAINED,
    STATES,
    UPDATES,
)
from ckplan.meter.types import Prediction
from ckplan.model.files.metadata import finite, listed_names, told
from ckplan.operators.outside import INDEX, place_bytes

if TYPE_CHECKING:
    import onnx_ir as ir

_BACKWARD_MARK = "/grad/"
RECOMPUTE_MARK = "/recompute"
"""What stands in the name of a recomputed node, and of what it makes, before a number."""


@dataclass(frozen=True)
class FileFacts:
    """Figures and names that a measurement needs from the file.

    Attributes:
        initializer_bytes: size of all initializers and Constant nodes, those of nested graphs included.
        overridable_bytes: the part of them that is also a graph input, which onnxruntime takes for no constant.
        producers: node that makes each output of the file, by output name.
        order: names of the main graph's nodes, in file order.
        forward: names of the nodes that are marked as forward; in the graph of a second derivative, they may bear
            names of gradient nodes.
        backward: names of the nodes that are marked as backward, or unmarked and named so.
        recomputed: names of the nodes that are marked as recomputed, or named so.
        prediction: the peaks that the file promises.
        groups: names of outputs that belong together, as far as the file tells: all gradients, or each kind of moments
            that an optimizer makes of them.
        place_bytes: what nodes take for each place that they write down outside the allocator, in bytes, by name, where
            that is not the size of an index.
    """

    initializer_bytes: int
    overridable_bytes: int
    producers: Mapping[str, str]
    order: tuple[str, ...]
    forward: frozenset[str]
    backward: frozenset[str]
    recomputed: frozenset[str]
    prediction: Prediction
    groups: tuple[frozenset[str], ...] = ()
    place_bytes: Mapping[str, int] = field(default_factory=dict)

    def is_backward(self, node: str) -> bool:
        """Whether an executed node belongs to the backward pass; nodes that optimisers made are told by their names."""
        return node in self.backward or (node not in self.forward and _BACKWARD_MARK in node)

    def is_recomputed(self, node: str) -> bool:
        """Whether an executed node is a recomputation."""
        return node in self.recomputed or RECOMPUTE_MARK in node


def read_model(path: Path) -> ir.Model:
    """Read a model; external data stay on disk.

    Raises:
        ModelError: the file is missing or is not an ONNX model, or its external data are not where they must be.
    """
    from ckplan.model.files.external import settle
    from ckplan.model.files.read import parse
    from ckplan.model.validity import check_names, check_tensors

    model = parse(path)
    if not model.graph.outputs:
        raise ModelError(f"{path} has no outputs", "export the model again, with its outputs")
    check_names(model, path)
    check_tensors(model, path)
    settle(model, path)
    return model


def file_facts(model: ir.Model) -> FileFacts:
    """Read the facts off a model."""
    producers = {}
    names = _event_names(model.graph)
    for value in model.graph.outputs:
        node = value.producer()
        if value.name and node is not None:
            producers[value.name] = names.get(node, "")
    forward, backward, recomputed = set(), set(), set()
    places: dict[str, int] = {}
    for node in _all_nodes(model.graph):
        if not node.name:
            continue
        phase = node.metadata_props.get(PHASE)
        if phase == "forward":
            forward.add(node.name)
        elif phase == "backward" or _BACKWARD_MARK in node.name:
            backward.add(node.name)
        if RECOMPUTE_MARK in node.name or RECOMPUTE_OF in node.metadata_props:
            recomputed.add(node.name)
        if (size := place_bytes(node)) != INDEX:
            places[node.name] = size
    overridable = [model.graph.initializers.get(value.name or "") for value in model.graph.inputs]
    return FileFacts(
        initializer_bytes=_initializer_bytes(model.graph),
        overridable_bytes=sum(
            value.const_value.nbytes for value in overridable if value is not None and value.const_value is not None
        ),
        producers=producers,
        order=tuple(node.name or "" for node in model.graph),
        forward=frozenset(forward),
        backward=frozenset(backward),
        recomputed=frozenset(recomputed),
        prediction=Prediction(
            _bytes(model.metadata_props.get(PREDICTED_ACTIVATIONS)),
            _bytes(model.metadata_props.get(PREDICTED_TOTAL)),
            _bytes(told(model.metadata_props, PLAN).get("order_peak_activations")),
        ),
        groups=_groups(model),
        place_bytes=places,
    )


def fed_inputs(model: ir.Model) -> list[ir.Value]:
    """Graph inputs that a caller has to feed: those without an initializer."""
    return [value for value in model.graph.inputs if value.name not in model.graph.initializers]


def initial_states(model: ir.Model) -> frozenset[str]:
    """Graph inputs that hold an optimizer's states, which are zero before the first step.

    Raises:
        ModelError: the metadata entry is damaged.
    """
    return frozenset(listed_names(model.metadata_props, STATES))


def _event_names(graph: ir.Graph) -> dict[ir.Node, str]:
    """How onnxruntime's profile calls the nodes: one without a name by its operator and its place in the file.

    Constant nodes, which it turns into initializers, have no place (``core/graph/graph.cc``).
    """
    named = [node for node in graph if node.op_type != "Constant"]
    return {node: node.name or f"{node.op_type}_{place}" for place, node in enumerate(named)}


def _groups(model: ir.Model) -> tuple[frozenset[str], ...]:
    """Outputs that belong together: the gradients, and what an optimizer keeps of them, by the ends of their names."""
    updates, *found = (_names(model, key) for key in (UPDATES, GRADIENTS, RETAINED))
    gradients = {name for names in found for name in names.values()} - set(updates.values())
    moments: dict[str, set[str]] = {}
    for name, output in updates.items():
        parameter, mark, kind = name.rpartition("_")
        if mark and parameter in updates:
            moments.setdefault(kind, set()).add(output)
    return tuple(frozenset(group) for group in (gradients, *moments.values()) if group)


def _names(model: ir.Model, key: str) -> dict[str, str]:
    """Names by names, as far as a model's metadata tell."""
    return {name: str(other) for name, other in told(model.metadata_props, key).items()}


def _bytes(found: object) -> int | None:
    number = finite(found)
    return None if number is None else round(number)


def _all_nodes(graph: ir.Graph) -> Iterator[ir.Node]:
    import onnx_ir as ir

    yield from ir.traversal.RecursiveGraphIterator(graph)


def _initializer_bytes(graph: ir.Graph) -> int:
    """Bytes of the initializers of a graph and of all graphs in its nodes, Constant nodes among them."""
    total = sum(value.const_value.nbytes for value in graph.initializers.values() if value.const_value is not None)
    for node in graph:
        for attribute in node.attributes.values():
            if attribute.type.name == "GRAPH":
                total += _initializer_bytes(attribute.as_graph())
            elif attribute.type.name == "GRAPHS":
                total += sum(_initializer_bytes(nested) for nested in attribute.as_graphs())
            elif node.op_type == "Constant" and attribute.type.name == "TENSOR":
                total += attribute.as_tensor().nbytes
    return total
