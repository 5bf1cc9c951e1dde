"""Scatters, cumulative products, Fourier transforms and the inverses of windows of ONNX in torch."""

from __future__ import annotations

import torch
from torch.nn import functional

from tests.oracles.torch_registry import Call, Result, operator

REDUCTIONS = {"mul": "prod", "max": "amax", "min": "amin"}


def _scatter(data: torch.Tensor, axis: int, index: torch.Tensor, updates: torch.Tensor, how: str) -> torch.Tensor:
    index = torch.where(index < 0, index + data.shape[axis], index)
    if how == "none":
        return data.scatter(axis, index, updates)
    if how == "add":
        return data.scatter_add(axis, index, updates)
    return data.scatter_reduce(axis, index, updates, REDUCTIONS[how], include_self=True)


@operator("ScatterElements")
def scatter_elements(call: Call) -> Result:
    return _scatter(call[0], call.get("axis", 0), call[1], call[2], call.text("reduction", "none"))


@operator("ScatterND")
def scatter_nd(call: Call) -> Result:
    data, indices, updates = call[0], call[1], call[2]
    depth = indices.shape[-1]
    rows = torch.zeros(indices.shape[:-1], dtype=torch.int64)
    for axis in range(depth):
        index = indices[..., axis]
        rows = rows * data.shape[axis] + torch.where(index < 0, index + data.shape[axis], index)
    flat = data.reshape(-1, data[(0,) * depth].numel())
    index = rows.reshape(-1, 1).expand(-1, flat.shape[1])
    updates = updates.reshape(index.shape)
    return _scatter(flat, 0, index, updates, call.text("reduction", "none")).reshape(data.shape)


@operator("GatherND")
def gather_nd(call: Call) -> Result:
    data, indices, batch = call[0], call[1], call.get("batch_dims", 0)
    grids = torch.meshgrid(*(torch.arange(size) for size in indices.shape[:-1]), indexing="ij")
    return data[(*grids[:batch], *indices.unbind(-1))]


@operator("Compress")
def compress(call: Call) -> Result:
    data = call[0] if "axis" in call.attributes else call[0].reshape(-1)
    return data.index_select(call.get("axis", 0), torch.nonzero(call[1]).reshape(-1))


@operator("TopK")
def top_k(call: Call) -> Result:
    largest, ordered = bool(call.get("largest", 1)), bool(call.get("sorted", 1))
    values, indices = torch.topk(call[0], int(call[1]), call.get("axis", -1), largest, ordered)
    return values, indices


@operator("Det")
def det(call: Call) -> Result:
    return torch.linalg.det(call[0])


@operator("Mod")
def mod(call: Call) -> Result:
    return torch.fmod(call[0], call[1]) if call.get("fmod", 0) else torch.remainder(call[0], call[1])


@operator("CumProd")
def cumprod(call: Call) -> Result:
    x, axis = call[0], int(call[1])
    if call.get("reverse", 0):
        x = x.flip(axis)
    y = torch.cumprod(x, axis)
    if call.get("exclusive", 0):
        size = x.shape[axis]
        y = torch.cat([torch.ones_like(x.narrow(axis, 0, 1)), y.narrow(axis, 0, size - 1)], axis)
    return y.flip(axis) if call.get("reverse", 0) else y


@operator("DFT")
def dft(call: Call) -> Result:
    x, length = call[0], call.optional(1)
    given = call.integers(2)
    axis = (given[0] if given else -2) % x.dim()
    size = None if length is None else int(length)
    values = torch.view_as_complex(x.contiguous()) if x.shape[-1] == 2 else x[..., 0]
    inverse, onesided = call.get("inverse", 0), call.get("onesided", 0)
    if inverse and onesided:
        return torch.fft.irfft(values, size, axis)[..., None]
    if onesided:
        return torch.view_as_real(torch.fft.rfft(values, size, axis))
    return torch.view_as_real(
        torch.fft.ifft(values, size, axis).resolve_conj() if inverse else torch.fft.fft(values, size, axis)
    )


@operator("STFT")
def stft(call: Call) -> Result:
    signal, window = call[0], call.optional(2)
    lengths = call.integers(3)
    length = lengths[0] if lengths else len(window) if window is not None else signal.shape[1]
    frames = signal.unfold(1, length, int(call[1]))  # batch, frames, parts, length
    frames = frames if window is None else frames * window
    if signal.shape[-1] == 2:
        values = torch.complex(frames[:, :, 0], frames[:, :, 1])
        return torch.view_as_real(torch.fft.fft(values))
    values = frames[:, :, 0]
    onesided = call.get("onesided", 1)
    return torch.view_as_real(torch.fft.rfft(values) if onesided else torch.fft.fft(values))


@operator("Col2Im")
def col2im(call: Call) -> Result:
    image, block = call.integers(1), call.integers(2)
    assert image is not None
    assert block is not None
    if len(image) != 2:
        raise NotImplementedError("torch folds images only")
    pads, strides = call.get("pads", [0] * 4), call.get("strides", [1, 1])
    padded = [size + pads[axis] + pads[2 + axis] for axis, size in enumerate(image)]
    whole = functional.fold(call[0], padded, block, call.get("dilations", [1, 1]), 0, strides)
    return whole[:, :, pads[0] : pads[0] + image[0], pads[1] : pads[1] + image[1]]


@operator("MaxUnpool")
def max_unpool(call: Call) -> Result:
    x, indices = call[0], call[1]
    kernel = call.get("kernel_shape")
    strides, pads = call.get("strides", [1] * len(kernel)), call.get("pads", [0] * 2 * len(kernel))
    given = call.integers(2)
    sizes = [
        (n - 1) * s + k - pads[axis] - pads[axis + len(kernel)]
        for axis, (n, s, k) in enumerate(zip(x.shape[2:], strides, kernel, strict=True))
    ]
    if given is not None and given[2:] != sizes:
        raise NotImplementedError("what indices count in then differs from one implementation to the other")
    shape = [*x.shape[:2], *sizes]
    flat = torch.zeros(shape, dtype=x.dtype).reshape(-1)
    return flat.scatter(0, indices.reshape(-1), x.reshape(-1)).reshape(shape)


@operator("AffineGrid")
def affine_grid(call: Call) -> Result:
    size = call.integers(1)
    assert size is not None
    return functional.affine_grid(call[0], size, bool(call.get("align_corners", 0)))
