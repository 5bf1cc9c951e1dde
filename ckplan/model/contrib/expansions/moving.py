"""Operators that move, choose or sample elements."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ckplan.model.contrib.emitter import Emitter, NotExpandableError, Results
from ckplan.model.contrib.registry import expansion


@expansion("Trilu")
def trilu(e: Emitter) -> Results:
    """Trilu of ONNX, which took it over."""
    return [e.Trilu(e.required(0), e.input(1), upper=e.int_attribute("upper", 1))]


@expansion("GatherND")
def gather_nd(e: Emitter) -> Results:
    """GatherND of ONNX, which took it over; int32 indices become int64."""
    return [e.GatherND(e.required(0), e.cast(e.required(1), ir.DataType.INT64))]


@expansion("Pad")
def pad(e: Emitter) -> Results:
    """Pad of ONNX, whose pads are a vector and whose value is a scalar."""
    pads, value = e.required(1), e.input(2)
    if value is not None:
        value = e.reshape(value, [])
    flat = e.reshape(pads, [2 * len(e.shape(e.required(0)))])
    return [e.Pad(e.required(0), flat, value, mode=e.text_attribute("mode", "constant"))]


@expansion("Range")
def range_of_numbers(e: Emitter) -> Results:
    """Range of ONNX, whose operands are scalars."""
    start, limit = (e.reshape(e.required(index), []) for index in range(2))
    step = e.input(2)
    assert start.dtype is not None
    by = e.literal(np.ones((), start.dtype.numpy())) if step is None else e.reshape(step, [])
    return [e.Range(start, limit, by)]


@expansion("ExpandDims")
def expand_dims(e: Emitter) -> Results:
    """Unsqueeze."""
    axis = e.known(1, "axis").reshape(-1).astype(np.int64)
    return [e.Unsqueeze(e.required(0), axis)]


@expansion("TorchEmbedding")
def torch_embedding(e: Emitter) -> Results:
    """Gather; the row of the padding index is passed on as it is, which makes no difference to the result."""
    e.refuse(2, because="it leaves a row out of training; freeze the table, or export an ordinary Gather")
    return [e.Gather(e.required(0), e.required(1), axis=0)]


@expansion("UnfoldTensor")
def unfold(e: Emitter) -> Results:
    """Windows along an axis; their elements stand along a new last axis."""
    x = e.required(0)
    shape = e.shape(x)
    axis = e.int_attribute("dim", -1) % len(shape)
    size, step = e.int_attribute("size"), e.int_attribute("step", 1)
    starts = np.arange((shape[axis] - size) // step + 1) * step
    windows = e.Gather(x, (starts[:, None] + np.arange(size)).astype(np.int64), axis=axis)
    order = [i for i in range(len(shape) + 1) if i != axis + 1]
    return [e.transpose(windows, [*order, axis + 1])]


@expansion("GridSample")
def grid_sample(e: Emitter) -> Results:
    """GridSample of ONNX, whose modes have other names."""
    modes = {"bilinear": "linear", "bicubic": "cubic"}
    mode = e.text_attribute("mode", "bilinear")
    return [
        e.GridSample(
            e.required(0),
            e.required(1),
            align_corners=e.int_attribute("align_corners"),
            padding_mode=e.text_attribute("padding_mode", "zeros"),
            mode=modes.get(mode, mode),
        )
    ]


@expansion("CropAndResize")
def crop_and_resize(e: Emitter) -> Results:
    """GridSample of each box's image, corners aligned, with a constant wherever the box leaves the image."""
    if e.text_attribute("mode", "bilinear") != "bilinear":
        raise NotExpandableError("its mode 'nearest' rounds in a way of its own")
    x, boxes = e.required(0), e.required(1)
    count = e.shape(boxes)[0]
    sizes = [int(size) for size in e.known(3, "crop_size")]
    places = []
    assert boxes.dtype is not None
    for axis, size in enumerate(sizes):
        first, last = (e.slice(boxes, column, column + 1, 1) for column in (axis, axis + 2))
        # A crop of one element is taken from the middle.
        steps = np.linspace(0, 1, size) if size > 1 else np.asarray([0.5])
        line = e.Add(e.Mul(e.Sub(last, first), steps.astype(boxes.dtype.numpy())), first)
        places.append(e.reshape(line, [count, size, 1, 1] if axis == 0 else [count, 1, size, 1]))
    whole = np.asarray([count, *sizes, 1], dtype=np.int64)
    rows, columns = (e.Expand(place, whole) for place in places)
    grid = e.Sub(e.Mul(e.Concat(columns, rows, axis=-1), 2.0), 1.0)
    sampled = e.GridSample(
        e.Gather(x, e.required(2), axis=0),
        grid,
        align_corners=1,
        padding_mode="border",
        mode="linear",
    )
    inside = None
    for place in places:
        here = e.And(e.GreaterOrEqual(place, 0.0), e.LessOrEqual(place, 1.0))
        inside = here if inside is None else e.And(inside, here)
    assert inside is not None
    outside = np.asarray(e.float_attribute("extrapolation_value", 0.0), dtype=boxes.dtype.numpy())
    return [e.Where(e.reshape(inside, [count, 1, *sizes]), sampled, outside)]
