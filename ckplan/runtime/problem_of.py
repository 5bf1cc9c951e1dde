"""From a graph to numbers: the planning problem of a training graph, or of any other ONNX graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import onnx_ir as ir

from ckplan.arguments import check_kind
from ckplan.errors import ModelError
from ckplan.keys import CHECKPOINTS
from ckplan.model.costs import node_cost, seconds
from ckplan.model.files.metadata import listed_names
from ckplan.model.node_reads import reads
from ckplan.model.traits import is_backward, is_heavy, why_only_once
from ckplan.planner.problem import Kind, Op, Piece, Problem, Tensor
from ckplan.runtime.cpu import CPU
from ckplan.runtime.kernels.inner import Inner, inner_workspace
from ckplan.runtime.runtime import Runtime
from ckplan.runtime.sizes import bytes_of

FIGURES = "ckplan.figures"
"""Key in ``Node.meta`` for a node's `Figures` in each runtime: a sequence is turned into numbers again and again."""

_TRAITS = "ckplan.traits"
"""Key in ``Node.meta`` for whether a node may run again, and whether it is heavy."""

Figures: TypeAlias = tuple[float, int, int, tuple[Piece, ...], Inner]
"""What a kernel takes: seconds, workspace in and outside the allocator, tensor by tensor, and what its bodies take."""


@dataclass
class Numbering:
    """What was said of a sequence, for who asks again with some nodes more.

    Attributes:
        ids: the tensor of each value.
        tensors: by id.
        ops: what was said of each node; it stands as long as the node reads the same.
    """

    ids: dict[ir.Value, int] = field(default_factory=dict)
    tensors: list[Tensor] = field(default_factory=list)
    ops: dict[ir.Node, Op] = field(default_factory=dict)


def problem_of_nodes(
    nodes: Iterable[ir.Node],
    inputs: Iterable[ir.Value],
    outputs: Iterable[ir.Value],
    collection: tuple[str, ...] = (),
    runtime: Runtime = CPU,
    known: Numbering | None = None,
    again: bool = False,
) -> Problem:
    """The problem of a node sequence: ops in that order, one tensor for each value.

    Args:
        nodes: in a topological order.
        inputs: what the caller feeds; a value that has an initializer counts as a parameter, and so does what other
            nodes make.
        outputs: what the caller gets.
        collection: names of tensors to keep by default.
        runtime: whose kernels are to run the nodes.
        known: what was said of some of these nodes before; grows.
        again: whether they run more than once in a run, as the nodes of a loop's body do.

    Raises:
        ModelError: a value is read before it is made, or the values are larger than any memory.
    """
    nodes = list(nodes)
    members = set(nodes)
    known = known or Numbering()
    ids, tensors = known.ids, known.tensors
    fed, returned = set(inputs), set(outputs)

    def number(values: Sequence[ir.Value]) -> tuple[int, ...]:
        for value in values:
            if value in ids:
                continue
            ids[value] = len(tensors)
            if value.producer() in members:
                kind = Kind.OUTPUT if value in returned else Kind.ACTIVATION
            else:
                kind = Kind.INPUT if value in fed and not value.is_initializer() else Kind.PARAMETER
            tensors.append(Tensor(value.name or "", bytes_of(value), kind))
        return tuple(ids[value] for value in values)

    ops = []
    for node in nodes:
        read = number(reads(node))
        if node in known.ops and known.ops[node].inputs == read:
            ops.append(known.ops[node])
            continue
        made = number([value for value in node.outputs if value.name])
        source, target = runtime.view(node), runtime.overwritten(node)
        cost, workspace, outside, pieces, inner = _figures_of(node, runtime, again)
        recomputable, heavy = _traits_of(node)
        known.ops[node] = Op(
            name=node.name or "",
            inputs=read,
            outputs=made,
            cost=cost,
            workspace=workspace + outside + inner.workspace,
            outside=outside,
            pieces=inner.pieces or pieces,
            pieces_again=inner.pieces_again,
            late=tuple(ids[node.outputs[place]] for place in inner.late if node.outputs[place].name),
            early=inner.early,
            backward=is_backward(node),
            recomputable=recomputable,
            heavy=heavy,
            views={made[0]: ids[source]} if source is not None and made else {},
            inplace={made[0]: (ids[target],)} if target is not None and made else {},
        )
        ops.append(known.ops[node])
    try:
        return Problem(tuple(ops), tuple(tensors), collection)
    except ValueError as error:
        raise ModelError(f"the graph cannot be planned: {error}") from error


def _figures_of(node: ir.Node, runtime: Runtime, again: bool) -> Figures:
    """What a node's kernel takes, which is found out once; where a node stands is where it stays."""
    figures: dict[Runtime, Figures] = node.meta.setdefault(FIGURES, {})
    if runtime not in figures:

        def numbers(
            nodes: Sequence[ir.Node], inputs: Sequence[ir.Value], outputs: Sequence[ir.Value], repeated: bool
        ) -> Problem:
            return problem_of_nodes(nodes, inputs, outputs, runtime=runtime, again=repeated)

        inner = inner_workspace(node, numbers, again)
        taken = runtime.workspace(node, runtime.threads), runtime.outside(node), runtime.pieces(node)
        figures[runtime] = seconds(node_cost(node)), *taken, inner
    return figures[runtime]


def _traits_of(node: ir.Node) -> tuple[bool, bool]:
    """Whether a node may run again, and whether its kernel is heavy, which is found out once."""
    if _TRAITS not in node.meta:
        node.meta[_TRAITS] = not why_only_once(node), is_heavy(node)
    traits: tuple[bool, bool] = node.meta[_TRAITS]
    return traits


def problem_of(model: ir.Model, runtime: Runtime = CPU) -> Problem:
    """The planning problem of a model's main graph; op ids are node positions.

    A training graph made by ckplan carries the phase of each node. Where there is none (an inference graph, a
    training graph made elsewhere), all ops count as forward.

    Raises:
        ModelError: the nodes are in no order in which they can run, or the metadata are damaged.
        UsageError: it is no `onnx_ir.Model`, or the runtime is no `Runtime`.
    """
    check_kind("the model", model, ir.Model, "give an `onnx_ir.Model`, such as `Step.model`")
    check_kind("the runtime", runtime, Runtime, "leave it out, or give `ckplan.runtime.cpu.CPU`")
    collection = listed_names(model.metadata_props, CHECKPOINTS)
    return problem_of_nodes(model.graph, model.graph.inputs, model.graph.outputs, collection, runtime)
