"""The gradient of a convolution's weight: which form suits a shape, and in how many parts it goes through the batch.

The forms, and where the timings behind the choices come from, are in
:mod:`ckplan.autodiff.rules.convolution.conv_forms`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Device
from ckplan.autodiff.reading import attr_int, shape_of, size_of
from ckplan.autodiff.rules.convolution import depthwise_forms, depthwise_rows, unfolded
from ckplan.autodiff.rules.convolution.conv_forms import (
    BY_TAP,
    FORMS,
    WITHOUT_EINSUM,
    Form,
    channels_first,
    of_each,
    taps_together,
)
from ckplan.autodiff.rules.convolution.depthwise_rows import EINSUM_TYPES
from ckplan.autodiff.rules.windows import Window

#: Up to this many input channels of a group, a product per tap is too narrow to be fast.
FEW_CHANNELS = 8

#: The kernel of Einsum works in two more tensors of its result's size; so many of them are to be no larger than the
#: model's largest tensor.
EINSUM_RESULTS = 8

#: For one tap it takes a third more time than ``sample``, as it copies both operands: as good where so many of such
#: copies are no larger than the model's largest tensor.
EINSUM_COPIES = 4

#: Elements of dy from which on the gradients of input and weight are made of the same copies: that is half of the time
#: that they take apart or up to nine tenths of it, and five nodes more.
SHARED_ELEMENTS = 2**14

#: A weight gradient works through the batch in at most about this many parts, of samples alike.
MAX_PARTS = 4


def weight_gradient_form(
    samples: int, channels: int, filters: int, groups: int, window: Window, largest: int = 0, device: Device = "cpu"
) -> Form:
    """Choose the form of a weight gradient.

    Args:
        samples: batch size.
        channels: input channels, of all groups.
        filters: output channels, of all groups.
        groups: number of groups.
        window: geometry.
        largest: elements of the model's largest tensor, beside which others may be small.
        device: whose kernels it is for.
    """
    wide, high = channels // groups, filters // groups
    if high == 1 and (wide == 1 or groups > 1) and (form := depthwise_forms.form_for(wide, window, device)):
        return form
    if wide <= FEW_CHANNELS and not window.is_pointwise:
        return "unfold" if unfolded.suits(samples, channels, window, largest) else "conv"
    products = samples * filters * wide * window.size
    activations = samples * (channels * math.prod(window.inputs) + filters * window.places)
    small = groups == 1 and EINSUM_RESULTS * filters * wide * window.size <= largest
    if 2 * products > activations:
        return "einsum" if small else "batch"
    copies = samples * (channels + filters) * window.places
    if window.is_pointwise and small and EINSUM_COPIES * copies <= largest:
        return "einsum"
    return "sample" if groups == 1 else "image"


def weight_gradient(op: Builder, x: ir.Value, dy: ir.Value, kernel: Sequence[int], window: Window) -> ir.Value:
    """Emit the gradient of a convolution's weight.

    Args:
        op: the builder.
        x: input of the convolution, (N, C, ...).
        dy: gradient of its output, (N, O, ...).
        kernel: shape of the weight, (O, C / groups, ...).
        window: geometry.
    """
    if not size_of(dy):  # kernels that have nothing to sum up leave what lay in memory
        return op.zeros(kernel, dy)
    groups = shape_of(x)[1] // kernel[1]
    joined = _joined(x) if groups == 1 else []
    if not joined:
        form = _form_for(op, x, dy, groups, window)
        total = _over_samples(op, x, dy, kernel, window, form)
        return channels_first(op, total) if form in BY_TAP else total
    forms = [_form_for(op, part, dy, 1, window) for part in joined]
    each = [
        _over_samples(op, part, dy, (kernel[0], shape_of(part)[1], *kernel[2:]), window, form)
        for part, form in zip(joined, forms, strict=True)
    ]
    if BY_TAP.issuperset(forms):
        return channels_first(op, op.Concat(*each, axis=-1))
    laid = [channels_first(op, part) if form in BY_TAP else part for part, form in zip(each, forms, strict=True)]
    return op.Concat(*laid, axis=1)


def shares_rows(op: Builder, x: ir.Value, dy: ir.Value, groups: int, window: Window) -> bool:
    """Say whether the gradients of a convolution's input and weight are best made of the same copies of dy.

    See :mod:`ckplan.autodiff.rules.convolution.depthwise_rows`.

    Args:
        op: the builder.
        x: input of the convolution, (N, C, ...).
        dy: gradient of its output, (N, O, ...).
        groups: number of groups.
        window: geometry.
    """
    if size_of(dy) < SHARED_ELEMENTS or any(stride > 1 for stride in window.strides):
        return False
    if _form_for(op, x, dy, groups, window) != "row":
        return False
    samples, channels = shape_of(x)[:2]
    copies = depthwise_rows.copied(samples * channels, depthwise_rows.adjoint(window))
    return copies <= depthwise_rows.MOST_COPIES * op.largest


def _form_for(op: Builder, x: ir.Value, dy: ir.Value, groups: int, window: Window) -> Form:
    samples, channels = shape_of(x)[:2]
    form = weight_gradient_form(samples, channels, shape_of(dy)[1], groups, window, op.largest, op.device)
    return form if dy.dtype in EINSUM_TYPES else WITHOUT_EINSUM.get(form, form)


def _over_samples(
    op: Builder, x: ir.Value, dy: ir.Value, kernel: Sequence[int], window: Window, form: Form
) -> ir.Value:
    """Emit a weight gradient in one form, in the layout of that form, for one part of the batch after the other."""
    samples, channels = shape_of(x)[:2]
    groups = channels // kernel[1]
    parts = _parts(op, x, dy, form, window) if form in ("unfold", "dot", "row") and window.size > 1 else 1
    if parts == 1:
        return FORMS[form](op, x, dy, kernel, groups, window)
    x, dy = (op.reshape(value, [parts, samples // parts, *shape_of(value)[1:]]) for value in (x, dy))

    def of_part(inner: Builder, x: ir.Value, dy: ir.Value) -> ir.Value:
        return FORMS[form](inner, x, dy, kernel, groups, window)

    return op.reduce_sum(of_each(op, x, dy, of_part), [0], keepdims=False)


def _joined(x: ir.Value) -> list[ir.Value]:
    """The tensors whose channels a convolution's input is joined of, if it is.

    They are read in its place: the joined copy is then kept for nothing, and where they are kept for something else
    (a Relu before, the other end of a skip connection), nothing is kept for this convolution at all.
    """
    maker = x.producer()
    if (
        maker is None
        or maker.op_type != "Concat"
        or maker.domain
        or attr_int(maker, "axis", 0) not in (1, 1 - len(shape_of(x)))
    ):
        return []
    parts = [part for part in maker.inputs if part is not None and size_of(part)]
    if any(shape_of(part)[1] <= FEW_CHANNELS for part in parts):
        return []
    return [inner for part in parts for inner in _joined(part) or [part]]


def _parts(op: Builder, x: ir.Value, dy: ir.Value, form: Form, window: Window) -> int:
    """Return in how many parts of as many samples each to go through the batch.

    A gradient holds about two copies of ``x`` (transposed and padded, and what products read), what is told by
    :func:`depthwise_forms.dot_copies`, or what all taps read. That is of no account for a small layer, but where ``x``
    is among the largest tensors of the model, the peak may well lie here. What all taps read is to be no more than half
    of such a tensor.
    """
    samples, size, largest = shape_of(x)[0], size_of(x), max(op.largest, 1)
    read = size // math.prod(window.inputs) * window.places
    if form == "unfold":
        least = -(-2 * window.size * read // largest)
    elif form == "dot":
        filters, wide = shape_of(dy)[1], shape_of(x)[1] // shape_of(dy)[1]
        elements = samples * filters * depthwise_forms.dot_copies(wide, window, op.device)
        least = min(MAX_PARTS, -(-elements // largest))
    else:
        least = MAX_PARTS if 2 * size > largest or size + taps_together(op, read, window) * read >= largest else 1
    return next(parts for parts in range(min(least, samples), samples + 1) if samples % parts == 0)
