"""Whether a rebatched model still computes, for each part of the batch, what the original did."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ckplan.display import one_line
from ckplan.errors import EnvironmentUnavailableError, ModelError
from ckplan.model.inference.execute import SEED, execute, random_inputs
from ckplan.model.inference.infer import static_shape
from ckplan.model.sizes.rebatch import Rebatch

_TOLERANCE = 1e-3


def check_rebatched(reference: ir.Model, model: ir.Model, repair: Rebatch) -> None:
    """Run `model` once, and `reference` on the first and on the last part of the same inputs; compare.

    Args:
        reference: the model at the old batch; consumed.
        model: the model at the new batch; left as it is.
        repair: says how large the batch is and was, and what was rebound.

    Raises:
        ModelError: an output differs, or one of the models does not run.
    """
    old, new = repair.old, repair.new
    model = model.clone()
    _randomise_fillings(model)
    _randomise_fillings(reference)
    inputs = random_inputs(model)
    names = [value.name or "" for value in model.graph.outputs]
    hint = "use the file's own input shape, or export the model with dynamic axes"
    try:
        got, _ = execute(model, inputs, names)
        for start in sorted({0, max(0, new - old)}):
            part = {
                name: array[start : start + old] if array.ndim and array.shape[0] == new else array
                for name, array in inputs.items()
            }
            expected, _ = execute(reference.clone(), part, names)
            for name, whole, piece in zip(names, got, expected, strict=True):
                if not _agrees(whole, piece, start, old, new):
                    raise ModelError(
                        f"output '{name}' changes when the batch goes from {old} to {new}, whichever axis takes it in "
                        f"{len(repair.changed)} shape(s) that the file fixes, such as {repair.changed[0]}",
                        hint,
                    )
    except (ModelError, EnvironmentUnavailableError):
        raise
    except Exception as error:  # onnxruntime has its own exception classes for each status code
        reason = one_line(error)
        raise ModelError(f"the model does not run with a batch of {new} instead of {old} ({reason})", hint) from error


def _agrees(whole: np.ndarray, piece: np.ndarray, start: int, old: int, new: int) -> bool:
    if whole.shape == piece.shape and whole.dtype.kind not in "f":
        return True  # not batched
    axes = [axis for axis, (a, b) in enumerate(zip(whole.shape, piece.shape, strict=True)) if a != b]
    if not axes:
        return True
    if len(axes) > 1 or whole.shape[axes[0]] * old != piece.shape[axes[0]] * new or new < old:
        return False
    axis, size = axes[0], piece.shape[axes[0]]
    first = start * size // old
    part = np.take(whole, range(first, first + size), axis=axis)
    if part.dtype.kind != "f":
        return bool(np.mean(part == piece) > 0.99)
    scale = float(np.max(np.abs(piece), initial=0.0))
    return bool(np.all(np.abs(part - piece) <= _TOLERANCE * scale + 1e-7))


def _randomise_fillings(model: ir.Model) -> None:
    """A weight whose elements are all the same (a stand-in, as in the light models) would hide a mixed-up batch."""
    generator = np.random.default_rng(SEED + 1)
    for name in sorted(model.graph.initializers):
        value = model.graph.initializers[name]
        shape = static_shape(value)
        tensor = value.const_value
        if (
            tensor is None
            or shape is None
            or not tensor.dtype.is_floating_point()
            or isinstance(tensor, ir.ExternalTensor)
        ):
            continue
        array = tensor.numpy()
        if array.size > 1 and not any(array.strides):
            fan = max(1, array.size // shape[0])
            random = generator.standard_normal(shape) / np.sqrt(fan)
            value.const_value = ir.Tensor(random.astype(array.dtype), name=name)
