"""What gradients are asked for: parameters, graph inputs and activations."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ckplan.autodiff.breaks import listed
from ckplan.autodiff.builder import Builder, shape_of
from ckplan.autodiff.names import Tensors, matching_any
from ckplan.autodiff.paths import Composites, differentiable_inputs, entry_of
from ckplan.errors import ModelError, UsageError
from ckplan.keys import CONSTANT
from ckplan.model import is_literal
from ckplan.model.contrib import EXPANSION
from ckplan.model.own_files import ORIGIN


@dataclass(frozen=True)
class Request:
    """What the caller's patterns name; see :func:`ckplan.build_training_graph`.

    Attributes:
        all_parameters: no pattern narrows the choice of parameters.
        parameters: initializers to differentiate by, if not all of them.
        others: graph inputs and activations to differentiate by.
        frozen: initializers to leave out.
        detached: graph inputs and activations at which gradients stop.
    """

    all_parameters: bool
    parameters: tuple[ir.Value, ...]
    others: tuple[ir.Value, ...]
    frozen: frozenset[ir.Value]
    detached: tuple[ir.Value, ...]

    def sought(self, tensors: Tensors) -> list[ir.Value]:
        """Return the initializers that are asked for, whether or not they can be trained."""
        sought = tensors.parameters if self.all_parameters else self.parameters
        return [value for value in sought if value not in self.frozen]


@dataclass(frozen=True)
class Selection:
    """The parameters to differentiate by, in the order of the file, and what was decided about others.

    Attributes:
        parameters: initializers that a node can pass a gradient to.
        idle: initializers that were asked for and that no node passes a gradient to.
        notes: what was decided on the way and may surprise.
    """

    parameters: tuple[ir.Value, ...]
    idle: tuple[ir.Value, ...]
    notes: tuple[str, ...]


def request_of(tensors: Tensors, wrt: Sequence[str], no_grad: Sequence[str], retain_grad: Sequence[str]) -> Request:
    """Find out what the patterns name.

    Args:
        tensors: what can be named.
        wrt: patterns of what to differentiate by; none means all parameters.
        no_grad: patterns of parameters to leave out, and of inputs and activations to stop at.
        retain_grad: patterns of inputs and activations to differentiate by besides.

    Raises:
        UsageError: a pattern matches nothing.
    """
    initializers = set(tensors.parameters)
    stopped = matching_any("--no-grad", no_grad, tensors)
    detached = [value for value in stopped if value not in initializers]
    asked = matching_any("--wrt", wrt, tensors)
    # What is detached has no gradient of its own, as a frozen parameter has none.
    inner = Tensors((), tensors.inputs, tensors.activations)
    others = [value for value in asked if value not in initializers]
    others += matching_any("--retain-grad", retain_grad, inner)
    return Request(
        all_parameters=not wrt,
        parameters=tuple(value for value in asked if value in initializers),
        others=tuple(value for value in dict.fromkeys(others) if value not in detached),
        frozen=frozenset(value for value in stopped if value in initializers),
        detached=tuple(detached),
    )


def select_parameters(
    op: Builder,
    candidates: Collection[ir.Value],
    request: Request,
    composites: Composites,
    before: Collection[str] = (),
) -> Selection:
    """Choose the floating-point initializers that a node can pass a gradient to.

    Literals of the formula (an epsilon, a scale, a mask; see :func:`ckplan.model.is_literal`) are left out, unless they
    are asked for.

    Args:
        op: builder of the forward graph.
        candidates: the model's own floating-point initializers.
        request: what the caller asked for.
        composites: groups of nodes that are differentiated as one.
        before: names of the parameters of the training graph that is differentiated again; they are no literals.

    Raises:
        ModelError: the model has no floating-point initializer that a gradient could reach.
        UsageError: nothing is left.
    """
    if request.all_parameters and not candidates and not request.others:
        raise ModelError(
            "the model has no floating-point parameters, so there is nothing to train",
            "take the model as it was before quantisation, or export it with its weights; or name an input with --wrt",
        )
    readers: set[ir.Value] = set()
    for node in op.graph:
        readers |= differentiable_inputs(node, entry_of(node, op.opset_imports), composites)
    asked = set(request.parameters)
    chosen: list[ir.Value] = []
    idle: list[ir.Value] = []
    notes: list[str] = []
    literals: list[str] = []
    scalars: list[str] = []
    for value in candidates:
        name = str(value.name)
        if value in request.frozen or not (request.all_parameters or value in asked):
            continue
        if value not in readers:
            if not value.uses() or value in asked:
                idle.append(value)
            continue
        if request.all_parameters and is_literal(value) and name not in before:
            if value.metadata_props.get(CONSTANT) not in (ORIGIN, EXPANSION):  # those need no mention
                literals.append(name)
            continue
        if request.all_parameters and not shape_of(value) and name not in before:
            scalars.append(name)
        chosen.append(value)
    if scalars:
        notes.append(
            f"{len(scalars)} scalar(s) are trained, being named like weights ({shortened(scalars)}); "
            "leave them out with --no-grad if they are constants"
        )
    if literals:
        notes.append(
            f"{len(literals)} constant(s) are not trained ({shortened(literals)}); "
            "name them with --wrt if they should be"
        )
    if not chosen and not request.others:
        if not request.all_parameters or request.frozen:
            raise UsageError("no parameter is left to train", "loosen --wrt or --no-grad")
        readers_of = dict.fromkeys(use.node for value in candidates for use in value.uses())
        raise ModelError(
            "no node of the model reads a floating-point parameter in a way that can be differentiated"
            + (f": no gradient passes {listed(list(readers_of))}" if readers_of else ""),
            "see `ckplan ops` for the operators that have gradients",
        )
    return Selection(tuple(chosen), tuple(idle), tuple(notes))


def shortened(names: Sequence[str], most: int = 5) -> str:
    """List names for people, the first few of them."""
    return ", ".join(f"'{name}'" for name in names[:most]) + (", ..." if len(names) > most else "")
