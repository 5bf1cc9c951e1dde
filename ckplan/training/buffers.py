"""Values that each step replaces, in memory that onnxruntime reads and writes itself: nothing is copied."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ckplan.errors import ModelError
from ckplan.isolation.arrays import Array, is_exotic
from ckplan.model.half import running_advice
from ckplan.operators.sessions import clean
from ckplan.training.data import Data, beyond
from ckplan.training.stepfile import Spec


def ort_value(array: Array) -> Any:
    """An OrtValue over the memory of an array, which must live as long."""
    import onnxruntime

    if not is_exotic(array.dtype):
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)
    import onnx

    element = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    raw = array.view(np.dtype(f"u{array.dtype.itemsize}"))
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(raw, element)


class Buffers:
    """Two sets of arrays that change places: a step reads one and writes the other. In place, both are one.

    Args:
        initial: the first values; they are taken over, not copied.
        in_place: whether new values may be written over the old ones.
    """

    def __init__(self, initial: Mapping[str, Array], in_place: bool = False) -> None:
        held = dict(initial)
        self._arrays = (held, held if in_place else {name: np.empty_like(array) for name, array in held.items()})
        self.sets = tuple({name: ort_value(array) for name, array in arrays.items()} for arrays in self._arrays)
        self.current = 0

    @property
    def values(self) -> dict[str, Array]:
        """The arrays that the next step reads."""
        return self._arrays[self.current]

    @property
    def new(self) -> dict[str, Array]:
        """The arrays that the last step wrote, until `swap`."""
        return self._arrays[1 - self.current]

    def swap(self) -> None:
        """Let the next step read what the last one wrote."""
        self.current = 1 - self.current

    def set(self, values: Mapping[str, Array]) -> None:
        """Copy values in."""
        for name, array in self.values.items():
            array[...] = values[name]


def bind(session: Any, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Any:
    """Bind OrtValues to the inputs and outputs of a session that have their names; returns the binding."""
    binding = session.io_binding()
    for name, value in inputs.items():
        binding.bind_ortvalue_input(name, value)
    for name, value in outputs.items():
        binding.bind_ortvalue_output(name, value)
    return binding


def run_bound(
    session: Any, binding: Any, what: str, batch: Data | None = None, inputs: Mapping[str, Spec] | None = None
) -> None:
    """Run a session on what is bound to it.

    Args:
        session: an onnxruntime session.
        binding: see `bind`.
        what: what is run, in words.
        batch: the data that are bound, to look at if a kernel refuses them.
        inputs: what takes them.

    Raises:
        ModelError: a kernel refuses what it is given, or memory is short.
    """
    try:
        session.run_with_iobinding(binding)
    except Exception as error:  # onnxruntime's exceptions have no base class of their own
        reason = clean(str(error))[:300]
        cause = beyond(batch or {}, inputs or {}) or running_advice(reason)
        raise ModelError(
            f"onnxruntime fails in {what} ({reason})", cause or "check the data; or use a smaller batch"
        ) from error


def all_finite(arrays: Iterable[Array]) -> bool:
    """Whether no array holds an infinity or NaN."""
    return all(bool(np.isfinite(array).all()) for array in arrays if array.dtype.kind not in "iub")
