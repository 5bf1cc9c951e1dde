"""What is differentiated: a loss, the sum of several, and tensors whose gradients are given as inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.composites import known_outputs
from ckplan.autodiff.losses.crossentropy import lower_losses
from ckplan.autodiff.losses.loss import Loss, add_loss, own_losses
from ckplan.autodiff.reading import is_floating, shape_of
from ckplan.display import did_you_mean
from ckplan.errors import UsageError


@dataclass(frozen=True)
class Objective:
    """What is differentiated.

    Attributes:
        outputs: what the training graph shows of it: the loss first (the total, if there are several), then the
            single losses, then the tensors whose gradients are given.
        targets: the values that the reverse sweep starts from, each with its given gradient; None stands for one.
        description: what it is, for people.
    """

    outputs: tuple[ir.Value, ...]
    targets: Mapping[ir.Value, ir.Value | None]
    description: str


def add_objective(op: Builder, loss: Sequence[str], grad_ys: Sequence[str], default: str | None = None) -> Objective:
    """Find or append what is differentiated.

    Args:
        op: builder of the forward graph.
        loss: the losses, each as in :func:`ckplan.autodiff.losses.loss.add_loss`. Several are summed, and each is an
            output of its own: under the name of the model's output, or ``loss_<output>`` (``loss_<output>_0``, ...
            where several are of one output); their sum is ``total_loss``. With none, the loss is chosen, unless
            ``grad_ys`` says what to differentiate: the model's own
            (:func:`ckplan.autodiff.losses.loss.own_losses`), else one that its head suggests.
        grad_ys: names of floating-point tensors of any shape whose gradients the caller gives: an input
            ``<name>_given_grad`` is added for each, of its shape and element type.
        default: the loss to take if none is given and the model has it as an output.

    Raises:
        UsageError: a name does not exist, is given twice, or is no loss.
        ModelError: no output is floating point.
    """
    lower_losses(op)
    if default is not None and not loss and not grad_ys and default in [value.name for value in op.graph.outputs]:
        loss = [default]
    specs: Sequence[str | None] = loss or ([] if grad_ys else own_losses(op) or [None])
    losses = [add_loss(op, spec) for spec in specs]
    _name_losses(op, losses)
    targets: dict[ir.Value, ir.Value | None] = {}
    for spec, found in zip(specs, losses, strict=True):
        if found.value in targets:
            raise UsageError(f"the loss `{spec}` is given twice", "name each loss once")
        targets[found.value] = None
    described = [found.description for found in losses]
    outputs = [found.value for found in losses]
    if len(losses) > 1:
        outputs.insert(0, _total(op, outputs))
        described = [f"the total of {'; '.join(described)}"]
    for wanted in grad_ys:
        value = _tensor(op, wanted)
        if value in targets:
            raise UsageError(f"`{wanted}` is differentiated twice", "name it once with --loss or --grad-ys")
        given = ir.Value(name=op.unique_name(f"{wanted}_given_grad"), type=value.type, shape=ir.Shape(shape_of(value)))
        op.graph.inputs.append(given)
        targets[value] = given
        outputs.append(value)
        described.append(f"'{wanted}' with its gradient from input '{given.name}'")
    return Objective(tuple(outputs), targets, "; ".join(described))


def _name_losses(op: Builder, losses: Sequence[Loss]) -> None:
    """Name the losses that were put behind outputs: one ``loss``, of several each after its output."""
    found: dict[ir.Value, list[ir.Value]] = {}
    for loss in losses:
        if loss.behind is not None:
            found.setdefault(loss.behind, []).append(loss.value)
    for output, values in found.items():
        name = "loss" if len(losses) == 1 else f"loss_{output.name}"
        for index, value in enumerate(values):
            value.name = op.unique_name(name if len(values) == 1 else f"{name}_{index}")


def _total(op: Builder, losses: Sequence[ir.Value]) -> ir.Value:
    """Sum losses in the widest of their element types."""
    widest = max((value.dtype for value in losses if value.dtype is not None), key=lambda dtype: dtype.itemsize)
    with op.scope("loss", "forward"):
        parts = [op.cast(value, widest) for value in losses]
        total = op.Sum(*(op.reshape(part, ()) for part in parts))
    total.name = op.unique_name("total_loss")
    return total


def _tensor(op: Builder, name: str) -> ir.Value:
    """Return the output or inner value of that name."""
    found = {str(value.name): value for node in op.graph for value in known_outputs(node) if value.name}
    value = found.get(name)
    if value is None:
        outputs = ", ".join(f"`{output.name}`" for output in op.graph.outputs)
        raise UsageError(
            f"`--grad-ys {name}` is not a tensor that a node of the model makes",
            did_you_mean(name, found, most=3) or f"the model's outputs are {outputs}",
        )
    if not is_floating(value):
        raise UsageError(f"`--grad-ys {name}` is not floating point", "choose a floating-point tensor")
    return value
