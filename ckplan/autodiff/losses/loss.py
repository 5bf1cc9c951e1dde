"""A loss: an output of the model, or one put behind it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from ckplan.autodiff.breaks import between, reached_by
from ckplan.autodiff.builder import Builder
from ckplan.autodiff.composites import outline
from ckplan.autodiff.idioms.sums import total
from ckplan.autodiff.losses.crossentropy import declare_classes, emit_cross_entropy, prepare_labels
from ckplan.autodiff.losses.head import Head, behind_softmax, chosen_from, head_of, main_output, scored_axis
from ckplan.autodiff.quantisation import is_quantised
from ckplan.autodiff.reading import is_floating, shape_of, size_of
from ckplan.autodiff.selection.evidence import judge
from ckplan.autodiff.selection.uses import uses_of
from ckplan.display import did_you_mean, shortened
from ckplan.errors import ModelError, UsageError
from ckplan.operators.matching import input_of, is_op

#: Losses that can be put behind an output, as ``--loss`` names them.
LOSSES = ("cross-entropy", "mse", "sum", "mean", "sum-of-squares")

_LOSS = re.compile(r"(?<![a-z])loss(es)?(?![a-z])", re.IGNORECASE)
_TOTAL = re.compile(r"(?<![a-z])(total|sum)(?![a-z])", re.IGNORECASE)


@dataclass(frozen=True)
class Loss:
    """A loss in the graph.

    Attributes:
        value: the value to differentiate, a floating tensor of one element.
        description: what it is, for people.
        behind: the output of the model that it was put behind, if it is none itself.
    """

    value: ir.Value
    description: str
    behind: ir.Value | None = None


def own_losses(op: Builder) -> list[str]:
    """Return the losses that a model has among its outputs, as :func:`add_loss` names them; none if it has none.

    They are its scalar, if it has one that learns from data; what is called the loss, or the total; else all single
    numbers that are called losses of something, which are summed; else the mean of what is called a loss and has a
    number for each sample.

    Args:
        op: builder of the forward graph.
    """
    floating = _floating_outputs(op)
    called = [value for value in floating if _LOSS.search(str(value.name))]
    single = [value for value in called if size_of(value) == 1]
    scalars = [value for value in floating if shape_of(value) == () or (value not in called and _is_reduced(value))]
    if len(floating) > 1:
        scalars = [value for value in scalars if value in called or _learns_from_data(op, value)]
    for found in (
        scalars,
        [value for value in single if str(value.name).lower() == "loss"],
        [value for value in single if _TOTAL.search(str(value.name))],
    ):
        if len(found) == 1:
            return [str(found[0].name)]
    return [str(value.name) for value in single] or [f"mean:{value.name}" for value in called if len(called) == 1]


def add_loss(op: Builder, spec: str | None) -> Loss:
    """Find the loss in the graph or append one, adding graph inputs for what the outputs are compared with.

    Args:
        op: builder of the forward graph.
        spec: an output of the model by name; one of :data:`LOSSES`, behind the first floating output; or
            ``<loss>:<output>``. None takes cross-entropy if the model's head makes scores of classes, else mse; the
            description says why. Where the one output is what an ArgMax chose, it is of what was chosen from.

    Raises:
        UsageError: the output does not exist, cannot be used that way, or has no elements.
        ModelError: no output is floating point.
    """
    outputs = _floating_outputs(op)
    chosen_of = None if outputs else chosen_from(op.graph.outputs)
    if chosen_of is not None and spec in (None, "cross-entropy"):
        return _of_head(op, chosen_of.scores, chosen_of)
    if not outputs:
        quantised = any(is_quantised(node) for value in op.graph.outputs if (node := value.producer()))
        sequences = any(isinstance(value.type, ir.SequenceType) for value in op.graph.outputs)
        other = "sequences" if sequences else "integers or texts"
        raise ModelError(
            "the model has no floating-point output, so there is nothing to differentiate",
            "train the model as it was before quantisation"
            if quantised
            else f"cut the model before its {other}, for example with onnx.utils.extract_model",
        )
    if spec is None:
        taught = _taught(op)
        return _default(op, main_output(op, [value for value in outputs if value in taught] or outputs))
    by_name = {str(value.name): value for value in op.graph.outputs}
    if spec in by_name:
        return Loss(_scalar(by_name[spec]), f"the model's output '{spec}'")
    kind, colon, chosen = spec.partition(":")
    if kind not in LOSSES:
        raise UsageError(
            f"`{spec}` is neither a loss nor an output of the model",
            did_you_mean(spec, [*by_name, *LOSSES], most=3) or _choices(by_name),
        )
    if colon and chosen not in by_name:
        raise UsageError(
            f"the model has no output `{chosen}`", did_you_mean(chosen, by_name, most=3) or _choices(by_name)
        )
    output = by_name[chosen] if chosen else outputs[0]
    if not is_floating(output):
        raise UsageError(f"output `{output.name}` is not floating point", _choices([str(v.name) for v in outputs]))
    _check_elements(output)
    with op.scope("loss", "forward"):
        if kind == "cross-entropy":
            found = _cross_entropy(op, output)
        elif kind == "mse":
            found = _mean_squared_error(op, output)
        else:
            reduction = {"sum": "ReduceSum", "mean": "ReduceMean", "sum-of-squares": "ReduceSumSquare"}[kind]
            found = Loss(total(op, output, reduction), f"{kind} of '{output.name}'", output)
    return found


def _floating_outputs(op: Builder) -> list[ir.Value]:
    """The outputs that a loss can be or can be put behind: floating-point tensors, not sequences of them."""
    return [value for value in op.graph.outputs if isinstance(value.type, ir.TensorType) and is_floating(value)]


def _learns_from_data(op: Builder, value: ir.Value) -> bool:
    """Whether parameters and inputs both reach a value: a temperature reads no data, an accuracy teaches nothing."""
    graph = op.graph
    fed = [given for given in graph.inputs if not given.is_initializer()]
    reads_data = not fed or bool(between(graph, fed, [value]))
    return reads_data and value in _taught(op)


def _taught(op: Builder) -> set[ir.Value]:
    """What depends differentiably on a parameter; the numbers of a formula are none, such as of a perplexity."""
    held = [value for value in op.graph.initializers.values() if is_floating(value)]
    return reached_by(op.graph, op.opset_imports, [value for value in held if judge(value, uses_of(value)).trained])


def _is_reduced(value: ir.Value) -> bool:
    """Whether a value of shape (1,) is one number made of all elements of a tensor; a prediction is made otherwise."""
    if shape_of(value) != (1,):
        return False
    node = value.producer()
    while is_op(node, ("Identity", "Reshape", "Squeeze", "Unsqueeze")) and (read := input_of(node, 0)) is not None:
        if shape_of(read) == ():
            return True
        node = read.producer()
    if not is_op(node, ("ReduceMean", "ReduceSum", "ReduceSumSquare")) or (read := input_of(node, 0)) is None:
        return False
    named = node.attributes.get_ints("axes") or input_of(node, 1)
    return named is None and size_of(read) > 1


def _choices(outputs: Sequence[str] | dict[str, ir.Value]) -> str:
    return f"choose one of {', '.join(LOSSES)}, or of the outputs {shortened([f'`{name}`' for name in outputs], 10)}"


def _check_elements(output: ir.Value) -> None:
    """See that there is something to put a loss behind: the mean of nothing is no number."""
    if not size_of(output):
        shape = "x".join(map(str, shape_of(output)))
        raise UsageError(
            f"output `{output.name}` of shape {shape} has no elements, and a loss needs some",
            "give sizes of at least 1 with --dim or --shape",
        )


def _scalar(value: ir.Value) -> ir.Value:
    if not is_floating(value) or size_of(value) != 1:
        raise UsageError(
            f"output `{value.name}` is {value.dtype}{list(shape_of(value))}, and a loss is one floating-point number",
            f"reduce it with --loss mean:{value.name}" if is_floating(value) else "choose another output",
        )
    return value


def _default(op: Builder, output: ir.Value) -> Loss:
    """Put the loss behind an output that its head suggests."""
    return _of_head(op, output, head_of(op.graph, output))


def _of_head(op: Builder, output: ir.Value, head: Head) -> Loss:
    _check_elements(head.scores if head.axis is not None else output)
    with op.scope("loss", "forward"):
        loss = _mean_squared_error(op, output) if head.axis is None else _cross_entropy(op, output, head)
    return replace(loss, description=f"{loss.description}, since {head.reason}")


def _cross_entropy(op: Builder, output: ir.Value, head: Head | None = None) -> Loss:
    logits, axis = behind_softmax(output) if head is None else (head.scores, head.axis)
    shape = shape_of(logits)
    axis = scored_axis(logits) if axis is None else axis
    if axis is None:
        raise UsageError(f"cross-entropy needs classes, and output `{output.name}` is one number", "use --loss mse")
    samples = [dim for i, dim in enumerate(shape) if i != axis]
    # Classifiers that end in a pooling have scores of shape [N, C, 1, 1]; their labels are [N].
    while len(samples) > 1 and samples[-1] == 1 and axis == 1:
        samples.pop()
    target = ir.Value(name=op.unique_name("labels"), type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape(samples))
    op.graph.inputs.append(target)
    declare_classes(target, shape[axis])
    labels = prepare_labels(op, target, logits, axis)
    value = emit_cross_entropy(op, logits, labels)
    behind = f"the logits '{logits.name}' of output '{output.name}'" if logits is not output else f"'{output.name}'"
    return Loss(value, f"cross-entropy of {behind} against input '{target.name}'", output)


def _mean_squared_error(op: Builder, output: ir.Value) -> Loss:
    target = ir.Value(name=op.unique_name("target"), type=output.type, shape=ir.Shape(shape_of(output)))
    op.graph.inputs.append(target)
    with op.recording() as nodes:
        difference = op.Sub(output, target)
        value = op.Mul(total(op, difference, "ReduceSumSquare"), 1 / size_of(output))
    outline(op, "MeanSquaredError", nodes, [output, target], [value, difference])
    return Loss(value, f"mean squared error of '{output.name}' against input '{target.name}'", output)
