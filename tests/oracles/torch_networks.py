"""Convolution, pooling, normalisation, resizing and loss operators of ONNX in torch."""

from __future__ import annotations

from math import ceil, floor

import torch
from torch.nn import functional

from tests.oracles.torch_registry import Call, Result, operator

CONVOLUTIONS = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
TRANSPOSED = {1: functional.conv_transpose1d, 2: functional.conv_transpose2d, 3: functional.conv_transpose3d}


def _pads(call: Call, sizes: list[int], kernel: list[int], strides: list[int], dilations: list[int]) -> list[int]:
    """Padding before all spatial axes, then after them, by ``pads`` or ``auto_pad``."""
    automatic = call.text("auto_pad", "NOTSET")
    if automatic == "NOTSET":
        return list(call.get("pads", [0] * 2 * len(sizes)))
    if automatic == "VALID":
        return [0] * 2 * len(sizes)
    totals = [
        max(0, (ceil(size / stride) - 1) * stride + (side - 1) * dilation + 1 - size)
        for size, side, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True)
    ]
    smaller, larger = [total // 2 for total in totals], [total - total // 2 for total in totals]
    return smaller + larger if automatic == "SAME_UPPER" else larger + smaller


def _padded(value: torch.Tensor, pads: list[int], fill: float = 0.0) -> torch.Tensor:
    """Pad the spatial axes; ``pads`` as in ONNX."""
    count = len(pads) // 2
    order = [pads[axis + side * count] for axis in reversed(range(count)) for side in (0, 1)]
    return functional.pad(value, order, value=fill) if any(order) else value


@operator("Conv")
def conv(call: Call) -> Result:
    rank = call[0].ndim - 2
    kernel, strides = list(call[1].shape[2:]), call.get("strides", [1] * rank)
    dilations = call.get("dilations", [1] * rank)
    value = _padded(call[0], _pads(call, list(call[0].shape[2:]), kernel, strides, dilations))
    return CONVOLUTIONS[rank](value, call[1], call.optional(2), strides, 0, dilations, call.get("group", 1))


@operator("ConvTranspose")
def conv_transpose(call: Call) -> Result:
    """Padding takes away from the result; ``output_shape`` and ``auto_pad`` are not here."""
    if "output_shape" in call.attributes or call.text("auto_pad", "NOTSET") != "NOTSET":
        raise NotImplementedError("a ConvTranspose with output_shape or auto_pad")
    rank = call[0].ndim - 2
    strides, dilations = call.get("strides", [1] * rank), call.get("dilations", [1] * rank)
    pads, extra = call.get("pads", [0] * 2 * rank), call.get("output_padding", [0] * rank)
    result = TRANSPOSED[rank](call[0], call[1], call.optional(2), strides, 0, extra, call.get("group", 1), dilations)
    for axis in range(rank):
        length = result.shape[axis + 2] - pads[axis] - pads[axis + rank]
        result = result.narrow(axis + 2, pads[axis], length)
    return result


def _windows(call: Call, fill: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Pooling windows, (N, C, out..., window), of the padded input and of ones, which are zero outside of it.

    "Outside" is beyond the padding when ``count_include_pad`` is set.
    """
    value, kernel = call[0], list(call.attributes["kernel_shape"])
    rank = len(kernel)
    strides, dilations = call.get("strides", [1] * rank), call.get("dilations", [1] * rank)
    sizes = list(value.shape[2:])
    pads = _pads(call, sizes, kernel, strides, dilations)
    ones = torch.ones_like(value)
    value = _padded(value, pads, fill)
    ones = _padded(ones, pads, 1.0 if call.get("count_include_pad", 0) else 0.0)
    beyond = []
    for axis in range(rank):
        reach = (kernel[axis] - 1) * dilations[axis] + 1
        steps = (value.shape[axis + 2] - reach) / strides[axis]
        count = (ceil(steps) if call.get("ceil_mode", 0) else floor(steps)) + 1
        if call.get("ceil_mode", 0) and (count - 1) * strides[axis] >= sizes[axis] + pads[axis]:
            count -= 1  # a window that starts in the padding behind is left out
        beyond.append(max(0, (count - 1) * strides[axis] + reach - value.shape[axis + 2]))
    value, ones = _padded(value, [0] * rank + beyond, fill), _padded(ones, [0] * rank + beyond)
    for axis in range(rank):
        reach = (kernel[axis] - 1) * dilations[axis] + 1
        value, ones = (item.unfold(axis + 2, reach, strides[axis])[..., :: dilations[axis]] for item in (value, ones))
    return value.flatten(2 + rank), ones.flatten(2 + rank)


@operator("MaxPool")
def max_pool(call: Call) -> Result:
    """Of equal values the first one takes the gradient; indices are not computed, a node that reads them fails."""
    windows, _ = _windows(call, float("-inf"))
    return windows.gather(-1, windows.argmax(-1, keepdim=True)).squeeze(-1)


@operator("AveragePool")
def average_pool(call: Call) -> Result:
    windows, ones = _windows(call, 0.0)
    return windows.sum(-1) / ones.sum(-1)


@operator("GlobalAveragePool")
def global_average_pool(call: Call) -> Result:
    return call[0].mean(list(range(2, call[0].ndim)), keepdim=True)


@operator("GlobalMaxPool")
def global_max_pool(call: Call) -> Result:
    return call[0].amax(list(range(2, call[0].ndim)), keepdim=True)


@operator("LRN")
def local_response_normalization(call: Call) -> Result:
    size = call.attributes["size"]
    squares = call[0].square().movedim(1, -1)
    sums = functional.pad(squares, [(size - 1) // 2, size // 2]).unfold(-1, size, 1).sum(-1).movedim(-1, 1)
    base = sums * (call.number("alpha", 1e-4) / size) + call.number("bias", 1.0)
    return torch.mul(call[0], base.pow(-call.number("beta", 0.75)))


def _per_channel(vector: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return vector.reshape(-1, *[1] * (like.ndim - 2))


@operator("BatchNormalization")
def batch_normalization(call: Call) -> Result:
    value, mean, variance = call[0], call[3], call[4]
    epsilon, momentum = call.number("epsilon", 1e-5), call.number("momentum", 0.9)
    if call.get("training_mode", 0):
        axes = [axis for axis in range(value.ndim) if axis != 1]
        mean, variance = value.mean(axes), value.var(axes, correction=0)
    scale = call[1] / (variance + epsilon).sqrt()
    result = (value - _per_channel(mean, value)) * _per_channel(scale, value) + _per_channel(call[2], value)
    if not call.get("training_mode", 0):
        return result
    return (
        result,
        call[3] * momentum + mean.detach() * (1 - momentum),
        call[4] * momentum + variance.detach() * (1 - momentum),
    )


@operator("InstanceNormalization")
def instance_normalization(call: Call) -> Result:
    axes = list(range(2, call[0].ndim))
    centred = call[0] - call[0].mean(axes, keepdim=True)
    scaled = centred / (centred.square().mean(axes, keepdim=True) + call.number("epsilon", 1e-5)).sqrt()
    return scaled * _per_channel(call[1], call[0]) + _per_channel(call[2], call[0])


@operator("GroupNormalization")
def group_normalization(call: Call) -> Result:
    return functional.group_norm(call[0], call.attributes["num_groups"], call[1], call[2], call.number("epsilon", 1e-5))


@operator("LayerNormalization")
def layer_normalization(call: Call) -> Result:
    axis = call.get("axis", -1) % call[0].ndim
    axes = list(range(axis, call[0].ndim))
    mean = call[0].mean(axes, keepdim=True)
    centred = call[0] - mean
    inverse = (centred.square().mean(axes, keepdim=True) + call.number("epsilon", 1e-5)).rsqrt()
    result, bias = centred * inverse * call[1], call.optional(2)
    return (result if bias is None else result + bias), mean, inverse


@operator("RMSNormalization")
def rms_normalization(call: Call) -> Result:
    axes = list(range(call.get("axis", -1) % call[0].ndim, call[0].ndim))
    inverse = (call[0].square().mean(axes, keepdim=True) + call.number("epsilon", 1e-5)).rsqrt()
    return call[0] * inverse * call[1]


@operator("LpNormalization")
def lp_normalization(call: Call) -> Result:
    norm = torch.linalg.vector_norm(call[0], call.get("p", 2), call.get("axis", -1), keepdim=True)
    return torch.div(call[0], torch.where(norm == 0, 1, norm))


@operator("DepthToSpace")
def depth_to_space(call: Call) -> Result:
    batch, channels, height, width = call[0].shape
    side = call.attributes["blocksize"]
    if call.text("mode", "DCR") == "CRD":
        return functional.pixel_shuffle(call[0], side)
    split = call[0].reshape(batch, side, side, channels // side**2, height, width).permute(0, 3, 4, 1, 5, 2)
    return split.reshape(batch, channels // side**2, height * side, width * side)


@operator("Pad")
def pad(call: Call) -> Result:
    rank = call[0].ndim
    given, fill = call.integers(1) or [], call.optional(2)
    axes = call.integers(3) or list(range(rank))
    pads = [0] * 2 * rank
    for index, axis in enumerate(axes):
        pads[axis % rank], pads[axis % rank + rank] = given[index], given[index + len(axes)]
    if call.text("mode", "constant") == "constant":
        return _padded(call[0], pads, 0.0 if fill is None else float(fill))
    value = call[0]
    for axis in range(rank):
        places = torch.arange(-pads[axis], value.shape[axis] + pads[axis + rank])
        value = value.index_select(axis, _reflected(places, value.shape[axis], call.text("mode", "")))
    return value


def _reflected(places: torch.Tensor, size: int, mode: str) -> torch.Tensor:
    """Positions outside of 0 to ``size`` - 1, brought inside."""
    if mode == "edge":
        return places.clamp(0, size - 1)
    if mode == "wrap":
        return places % size
    period = max(1, 2 * (size - 1))
    folded = places % period
    return torch.where(folded < size, folded, period - folded)


@operator("Resize")
def resize(call: Call) -> Result:
    """Nearest (floor, asymmetric) and linear (half_pixel or align_corners) resizing of the spatial axes."""
    rank = call[0].ndim
    if call.get("axes"):
        raise NotImplementedError("a Resize of some axes")
    sizes, scales = call.integers(3), call.optional(2)
    if sizes is None:
        assert scales is not None
        exact = [size * float(scale) for size, scale in zip(call[0].shape, scales, strict=True)]
        sizes = [floor(size) for size in exact]
        if exact != sizes:
            raise NotImplementedError("a Resize by scales that do not give whole sizes")
    mode, place = call.text("mode", "nearest"), call.text("coordinate_transformation_mode", "half_pixel")
    if sizes[:2] != list(call[0].shape[:2]) or rank not in (3, 4, 5):
        raise NotImplementedError("a Resize of other than the spatial axes")
    if call.text("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise NotImplementedError("a Resize that keeps the aspect ratio")
    if mode == "nearest" and place == "asymmetric" and call.text("nearest_mode", "round_prefer_floor") == "floor":
        return functional.interpolate(call[0], sizes[2:], mode="nearest")
    if mode == "linear" and place in ("half_pixel", "align_corners") and not call.get("antialias", 0):
        kind = {3: "linear", 4: "bilinear", 5: "trilinear"}[rank]
        return functional.interpolate(call[0], sizes[2:], mode=kind, align_corners=place == "align_corners")
    raise NotImplementedError(f"a Resize of mode {mode}, {place}")


@operator("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy(call: Call) -> Result:
    logarithms = torch.log_softmax(call[0], 1)
    return _negative_log_likelihood(call, logarithms), logarithms


@operator("NegativeLogLikelihoodLoss")
def negative_log_likelihood(call: Call) -> Result:
    return _negative_log_likelihood(call, call[0])


def _negative_log_likelihood(call: Call, logarithms: torch.Tensor) -> torch.Tensor:
    """The loss written out; without ``ignore_index`` every label counts."""
    labels, weights = call[1].long(), call.optional(2)
    ignored = labels == call.attributes["ignore_index"] if "ignore_index" in call.attributes else None
    safe = labels if ignored is None else labels.masked_fill(ignored, 0)
    factor = torch.ones(safe.shape, dtype=call.dtype) if weights is None else weights[safe]
    factor = factor if ignored is None else factor.masked_fill(ignored, 0.0)
    losses = -logarithms.gather(1, safe.unsqueeze(1)).squeeze(1) * factor
    match call.text("reduction", "mean"):
        case "none":
            return losses
        case "sum":
            return losses.sum()
        case _:
            return losses.sum() / factor.sum()


@operator("GridSample")
def grid_sample(call: Call) -> Result:
    mode = call.text("mode", "linear")
    return functional.grid_sample(
        call[0],
        call[1],
        {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode),
        call.text("padding_mode", "zeros"),
        bool(call.get("align_corners", 0)),
    )
