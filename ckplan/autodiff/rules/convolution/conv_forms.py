"""The forms that the gradient of a convolution's weight can take; which one suits a shape, see `conv_weight_gradient`.

Timings behind the choices come from ``benchmarks/gradient_forms.py`` (onnxruntime 1.31, x86-64 with AVX-512, one and
two threads). Weights are not constants in a training graph, so onnxruntime packs nothing ahead and blocks no layout.

Weight gradient, of ``x`` (N, C, ...) and ``dy`` (N, O, ...), K taps:

``image``   one matrix product per sample, of all taps or of a row of them, summed over the samples at the end. A Scan
            goes from sample to sample, so that copies are those of one. No copy of ``dy``. In 0.8 to 1.07 of the time
            that products of the whole batch take, tap by tap.
``batch``   one matrix product per tap, which sums over the samples as well; needs ``dy`` transposed. Used when
            the N products of ``image`` would take more memory than the activations.
``einsum``  as ``batch`` without groups: the kernel of Einsum makes the same copies and the same product.
``sample``  as ``image`` without groups; the sum over the samples brings the taps into their places as well. Of small
            planes by one product for a sample, see :mod:`ckplan.autodiff.rules.convolution.crossed_taps`: 0.7 to 1.08
            of the time, in 8 nodes instead of 10 to 16.
``unfold``  of few channels in a group and few taps, where a product per tap is 3 to 5 times slower: one product with
            what all taps read, see :mod:`ckplan.autodiff.rules.convolution.unfolded`.
``conv``    a convolution of ``x`` with ``dy`` as the kernel, a group for each sample. 2 to 4 times slower than products
            in general; best for few channels and large kernels (7x7 stem: 32 ms against 45), of depthwise ones as well.
``dot``     for depthwise, and
``row``     for depthwise in small planes: see :mod:`ckplan.autodiff.rules.convolution.depthwise_forms`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Literal

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.reading import dtype_of, shape_of, size_of
from ckplan.autodiff.recurrent.time_loop import States, Values, scan
from ckplan.autodiff.rules.convolution import crossed_taps, depthwise_forms, unfolded
from ckplan.autodiff.rules.windows import Window, pad_axes, permuted, places_of, tap_of

Form = Literal["image", "batch", "einsum", "sample", "unfold", "conv", "dot", "row"]

#: Up to this many elements of copies for all taps of a sample, one product of them all is about as fast as one of each
#: row: larger ones fall out of the processor's cache in between.
SAMPLE_COPIES = 2**21

#: Elements of dy from which on a convolution by dy has a group for each sample: four nodes more.
APART_ELEMENTS = 2**16


def of_each(
    op: Builder, x: ir.Value, dy: ir.Value, emit: Callable[[Builder, ir.Value, ir.Value], ir.Value]
) -> ir.Value:
    """Emit what is made of each row of two tensors, stacked up.

    A Scan goes from row to row, which it hands to its body where they lie: only the copies of one are there at a time,
    and the nodes that make them stand in the file once.

    Args:
        op: the builder.
        x: (rows, ...).
        dy: (rows, ...).
        emit: emits it from a row of each.
    """
    if shape_of(x)[0] == 1:
        made = emit(op, *(op.reshape(value, shape_of(value)[1:]) for value in (x, dy)))
        return op.reshape(made, [1, *shape_of(made)])

    def step(inner: Builder, _: States, read: Mapping[str, ir.Value]) -> tuple[States, Values]:
        inner.largest = op.largest
        return [], {"made": emit(inner, read["x"], read["dy"])}

    name = f"{x.name}/weight_gradient"
    return scan(op, name, "backward", step, [], {"x": x, "dy": dy}, {"made"}, backwards=False)[1]["made"]


def _image(op: Builder, x: ir.Value, dy: ir.Value, kernel: Sequence[int], groups: int, window: Window) -> ir.Value:
    samples, channels = shape_of(x)[:2]
    if window.size == 1:
        lead = [samples] if groups == 1 else [samples, groups]
        # onnxruntime merges the transposition into the product, which then reads x where it lies.
        x = op.reshape(_only_tap(op, x, window), [*lead, channels // groups, window.places])
        dy = op.reshape(dy, [*lead, kernel[0] // groups, window.places])
        products = op.MatMul(dy, _swapped(op, x))
    else:
        products = _by_sample(op, x, dy, kernel, groups, window)
    return _by_tap(op, op.reduce_sum(products, [0], keepdims=False), kernel)


def _by_sample(op: Builder, x: ir.Value, dy: ir.Value, kernel: Sequence[int], groups: int, window: Window) -> ir.Value:
    """Emit the products of each sample with its taps, side by side, (N, groups, O / groups, taps C / groups).

    Without groups there is no axis of them.
    """
    channels = shape_of(x)[1]
    lead, wide, high = [groups] if groups > 1 else [], channels // groups, kernel[0] // groups
    split = [*lead, wide, *window.inputs]
    perm = [*range(len(lead)), *range(len(lead) + 1, len(split)), len(lead)]

    def of_sample(inner: Builder, x: ir.Value, dy: ir.Value) -> ir.Value:
        together = taps_together(inner, channels * window.places, window, SAMPLE_COPIES)
        last = inner.Transpose(_padded(inner, inner.reshape(x, split), window), perm=perm)
        dy = inner.reshape(dy, [*lead, high, window.places])
        taps = _taps(inner, last, len(lead), [*lead, window.places, wide], window, together)
        return _side_by_side(inner, [inner.MatMul(dy, tap) for tap in taps])

    return of_each(op, x, dy, of_sample)


def _batch(op: Builder, x: ir.Value, dy: ir.Value, kernel: Sequence[int], groups: int, window: Window) -> ir.Value:
    samples, channels = shape_of(x)[:2]
    wide, high = channels // groups, kernel[0] // groups
    depth = samples * window.places
    lead = [] if groups == 1 else [groups]
    perm = [1, 0, *range(2, len(shape_of(dy)))]
    dy = permuted(op, dy, perm, [*lead, high, depth])
    if window.size == 1:
        x = _only_tap(op, x, window)
    sizes = shape_of(x)[2:]
    split = [samples, *lead, wide, *sizes]
    spatial = range(len(split) - len(sizes), len(split))
    perm = [1, 0, *spatial, 2] if lead else [0, *spatial, 1]
    if window.size == 1:
        products = op.MatMul(dy, permuted(op, op.reshape(x, split), perm, [*lead, depth, wide]))
    else:
        last = op.Transpose(_padded(op, op.reshape(x, split), window), perm=perm)
        together = taps_together(op, samples * channels * window.places, window)
        taps = _taps(op, last, len(lead) + 1, [*lead, depth, wide], window, together)
        products = _side_by_side(op, [op.MatMul(dy, tap) for tap in taps])
    return _by_tap(op, products, kernel)


def _sample(op: Builder, x: ir.Value, dy: ir.Value, kernel: Sequence[int], groups: int, window: Window) -> ir.Value:
    samples, channels = shape_of(x)[:2]
    turned = samples > 1 and _reads_dy_last(x, dy, window)
    if window.size == 1:
        x = op.reshape(_only_tap(op, x, window), [samples, channels, window.places])
        dy = op.reshape(dy, [samples, kernel[0], window.places])
        # onnxruntime merges the transposition into the product, as in _image.
        left, right = (x, dy) if turned else (dy, x)
        products = op.MatMul(left, _swapped(op, right))
    elif _crosses(op, channels, kernel[0], window):
        products = of_each(op, x, dy, partial(crossed_taps.of_sample, window=window))
    else:
        products = _by_sample(op, x, dy, kernel, groups, window)
    if samples == 1:
        return channels_first(op, _by_tap(op, products, kernel))
    axes = "ijk"[: len(kernel) - 2]
    if window.size == 1:  # the axes of the kernel are those of the ones
        ones = op.constant(np.ones([samples, *kernel[2:]], dtype_of(products)))
        return op.Einsum(ones, products, equation=f"n{axes},n{'co' if turned else 'oc'}->oc{axes}")
    products = op.reshape(products, [samples, kernel[0], *kernel[2:], channels])
    return op.Einsum(op.constant(np.ones([samples], dtype_of(products))), products, equation=f"n,no{axes}c->oc{axes}")


def _einsum(op: Builder, x: ir.Value, dy: ir.Value, kernel: Sequence[int], groups: int, window: Window) -> ir.Value:
    rank = len(kernel) - 2
    plane, taps = "hwd"[:rank], "ijk"[:rank]
    if window.size == 1:
        x = _only_tap(op, x, window)
        if window.places == 1:  # the axes of dy's plane are those of the kernel
            return op.Einsum(dy, x, equation=f"no{plane},nc{taps}->oc{plane}")
        if _reads_dy_last(x, dy, window):
            return op.reshape(op.Einsum(x, dy, equation=f"nc{plane},no{plane}->oc"), kernel)
        return op.reshape(op.Einsum(dy, x, equation=f"no{plane},nc{plane}->oc"), kernel)
    last = op.Transpose(_padded(op, x, window), perm=[0, *range(2, rank + 2), 1])
    samples, *sizes, channels = shape_of(last)
    rows = op.reshape(last, [samples, math.prod(sizes), channels])
    together, each = taps_together(op, samples * channels * window.places, window), []
    shape = window.kernel if together == window.size else (*[1] * (rank - 1), together)
    for first in range(0, window.size, together):
        read = np.stack([places_of(window, tap, sizes) for tap in window.taps[first : first + together]], axis=-1)
        found = op.Gather(rows, read.reshape(*window.outputs, *shape), axis=1)
        each.append(op.Einsum(dy, found, equation=f"no{plane},n{plane}{taps}c->oc{taps}"))
    return op.reshape(op.Concat(*each, axis=2), kernel) if len(each) > 1 else each[0]


def _conv(op: Builder, x: ir.Value, dy: ir.Value, kernel: Sequence[int], groups: int, window: Window) -> ir.Value:
    samples, channels = shape_of(x)[:2]
    filters, wide = kernel[0], channels // groups
    rank = len(kernel)
    spatial = range(2, rank)
    x = pad_axes(op, x, spatial, [0] * (rank - 2), [min(size, 0) for size in window.end])
    sizes = shape_of(x)[2:]
    attributes = {
        "strides": window.dilations,
        "dilations": window.strides,
        "pads": [*window.begin, *(max(size, 0) for size in window.end)],
        "kernel_shape": window.outputs,
    }
    swap = [1, 0, *spatial]
    together = size_of(dy) < APART_ELEMENTS or samples * math.prod(kernel) > size_of(x) + size_of(dy)
    if groups == 1 and together:
        x = permuted(op, x, swap, [channels, samples, *sizes])
        dy = permuted(op, dy, swap, [filters, samples, *window.outputs])
        return permuted(op, op.Conv(x, dy, **attributes), swap, kernel)
    # One group per sample and group of channels; the channels of a group take the place of the samples. So dy is read
    # where it lies, and a GPU has so many more sums to work at: a 7x7 stem of 64 samples takes 7 ms in place of 91.
    split = op.reshape(x, [samples, groups, wide, *sizes])
    x = permuted(op, split, [2, 0, 1, *range(3, rank + 1)], [wide, samples * groups, *sizes])
    dy = op.reshape(dy, [samples * filters, 1, *window.outputs])
    each = op.Conv(x, dy, group=samples * groups, **attributes)
    total = op.reduce_sum(op.reshape(each, [wide, samples, filters, *kernel[2:]]), [1], keepdims=False)
    return permuted(op, total, swap, kernel)


def _dot(op: Builder, x: ir.Value, dy: ir.Value, kernel: Sequence[int], groups: int, window: Window) -> ir.Value:
    return depthwise_forms.dot(op, x, dy, kernel, window)


def _row(op: Builder, x: ir.Value, dy: ir.Value, kernel: Sequence[int], groups: int, window: Window) -> ir.Value:
    return depthwise_forms.row(op, x, dy, kernel, window, op.largest - size_of(x))


_Emit = Callable[[Builder, ir.Value, ir.Value, Sequence[int], int, Window], ir.Value]
#: Forms whose products have the channels last: sums and joints are made in this layout, and the transposition after
#: them is the last node. onnxruntime would put it there, as a node of its own that stands behind all others.
BY_TAP: frozenset[Form] = frozenset({"image", "batch"})
#: What emits each form of the weight gradient, for the whole batch at once.
FORMS: dict[Form, _Emit] = {
    "image": _image,
    "batch": _batch,
    "einsum": _einsum,
    "sample": _sample,
    "unfold": unfolded.weight_gradient,
    "conv": _conv,
    "dot": _dot,
    "row": _row,
}

#: The forms that say the same without Einsum.
WITHOUT_EINSUM: dict[Form, Form] = {"einsum": "batch", "sample": "image"}


def _taps(
    op: Builder, last: ir.Value, first_axis: int, shape: Sequence[int], window: Window, together: int
) -> Iterator[ir.Value]:
    """Yield the taps of a tensor whose channels come last; each is emitted when it is asked for.

    A tap is gathered, place by place: one node, and as fast as a slice of all axes.

    Args:
        op: the builder.
        last: what the window slides over, padded, channels last.
        first_axis: the first of its spatial axes.
        shape: of one tap, channels last.
        window: geometry.
        together: how many taps lie side by side in what is yielded, as so many times the channels.
    """
    lead, sizes = shape_of(last)[:first_axis], shape_of(last)[first_axis:-1]
    rows = op.reshape(last, [*lead, math.prod(sizes), shape[-1]])
    taps = window.taps
    for first in range(0, len(taps), together):
        read = np.stack([places_of(window, tap, sizes) for tap in taps[first : first + together]], axis=-1)
        found = op.Gather(rows, read.reshape(-1), axis=first_axis)
        yield op.reshape(found, [*shape[:-1], read.shape[1] * shape[-1]])


def _reads_dy_last(x: ir.Value, dy: ir.Value, window: Window) -> bool:
    """Say whether the product of a kernel of one tap is best made with dy on its right side, and turned.

    The right side of a product that sums up rows of both is laid out anew, so the narrower one belongs there, unless to
    turn the result takes as much. That is 0.5 to 0.9 of the time.

    Args:
        x: input of the convolution, (N, C, ...).
        dy: gradient of its output, (N, O, ...).
        window: geometry.
    """
    (samples, channels), filters = shape_of(x)[:2], shape_of(dy)[1]
    return window.size == 1 and filters * channels < samples * (channels - filters) * window.places


def taps_together(op: Builder, copy: int, window: Window, most: float = math.inf) -> int:
    """Into how many copies of x a product may read its taps: all of them, a row of them, or one.

    The fewer products, the fewer nodes and the faster. Copies that together are half of the model's largest tensor are
    of no account: there are such only where the layers are deep and the activations small.

    Args:
        op: the builder.
        copy: elements of what one tap reads.
        window: geometry.
        most: elements of the copies for all taps, up to which all are worth while.
    """
    room = op.largest // 2
    if window.size * copy <= min(room, most):
        return window.size
    return window.kernel[-1] if window.kernel[-1] * copy <= room else 1


def _crosses(op: Builder, channels: int, filters: int, window: Window) -> bool:
    """Whether to take one product of rows of taps and columns of taps: where their copies are of no account."""
    return crossed_taps.suits(window) and 4 * crossed_taps.copies(channels, filters, window) <= op.largest


def _side_by_side(op: Builder, products: Sequence[ir.Value]) -> ir.Value:
    return op.Concat(*products, axis=-1) if len(products) > 1 else products[0]


def _only_tap(op: Builder, x: ir.Value, window: Window) -> ir.Value:
    """Return what a kernel of one tap reads."""
    return tap_of(op, _padded(op, x, window), window, window.taps[0], range(2, 2 + len(window.inputs)))


def _padded(op: Builder, value: ir.Value, window: Window) -> ir.Value:
    """Pad the last axes, over which a window slides.

    They are padded while they are the last: a GPU pads others in 50 times that time (64x512x7x7: 1.7 ms).
    """
    axes = range(len(shape_of(value)) - len(window.inputs), len(shape_of(value)))
    return pad_axes(op, value, axes, window.begin, [max(size, 0) for size in window.end])


def _swapped(op: Builder, value: ir.Value) -> ir.Value:
    rank = len(shape_of(value))
    return op.Transpose(value, perm=[*range(rank - 2), rank - 1, rank - 2])


def _by_tap(op: Builder, products: ir.Value, kernel: Sequence[int]) -> ir.Value:
    """A gradient whose columns are taps by channels, as (O, ..., C / groups)."""
    return op.reshape(products, [kernel[0], *kernel[2:], kernel[1]])


def channels_first(op: Builder, gradient: ir.Value) -> ir.Value:
    """Bring what a form of `BY_TAP` makes into the layout of the weight, (O, C / groups, ...)."""
    last = len(shape_of(gradient)) - 1
    return op.transpose(gradient, [0, last, *range(1, last)])
