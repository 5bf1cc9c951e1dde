"""Open onnxruntime sessions and run steps. Only child processes import this module's callees."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ckplan.isolation.arrays import Array, is_exotic
from ckplan.meter.running.device import device_that_ran, wanted_providers
from ckplan.operators import sessions

Order = Literal["default", "priority"]

_LARGE = 1 << 30
"""Bytes of a file from which its optimised graph is written without weights."""

SEED = 20
"""Seed of random operators: the first runs of two processes then draw the same numbers in the same order."""


def open_session(
    source: str | bytes,
    device: str,
    *,
    order: Order = "default",
    threads: int | None = None,
    profile: Path | None = None,
    arena: bool = True,
    pattern: bool = True,
    weights: str | None = None,
    optimized: Path | None = None,
    cut: bool = False,
    spin: bool = True,
) -> tuple[Any, str]:
    """Open a session with default options but for what is named here.

    Args:
        source: path of a model, or a serialised one.
        device: one of `ckplan.meter.running.device.DEVICES`.
        order: ``default``, or ``priority`` for ``ExecutionOrder.PRIORITY_BASED``.
        threads: intra-op threads; None leaves onnxruntime's default.
        profile: prefix of the profile file; None turns profiling off.
        arena: whether the CPU memory arena is on (the default).
        pattern: whether memory patterns are on (the default).
        weights: folder of the external data of a serialised model.
        optimized: where to write the graph as onnxruntime optimised it.
        cut: whether the CPU arena hands out what was asked for, to 256 bytes; by default it hands out free chunks of up
            to twice that size as they are. Holds for the whole process.
        spin: whether threads that have nothing to do wait in a loop (the default): a step is over sooner, for up to
            half as much again of processor time. Nothing else depends on it.

    Returns:
        The session, and the device that it really uses.

    Raises:
        EnvironmentUnavailableError: ``cuda`` was asked for and is not there.
    """
    import onnxruntime as ort

    # Random operators without a seed of their own draw from a generator that is seeded by the time of day.
    ort.set_seed(SEED)
    options = ort.SessionOptions()
    options.log_severity_level = 3  # errors: they are all that is worth telling when a run fails
    if order == "priority":
        options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    if threads is not None:
        options.intra_op_num_threads = threads
    if profile is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(profile)
    if not spin:
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.enable_cpu_mem_arena = arena
    options.enable_mem_pattern = pattern
    if cut:
        place = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
        ort.create_and_register_allocator(place, ort.OrtArenaCfg({"max_dead_bytes_per_chunk": 256}))
        options.add_session_config_entry("session.use_env_allocators", "1")
    if weights is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", weights)
    if optimized is not None:
        options.optimized_model_filepath = str(optimized)
        if isinstance(source, str) and Path(source).stat().st_size > _LARGE:
            # With what was folded, it might cross protobuf's limit. Data files are named as they are, not copied.
            options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights.bin")
            options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "1024")
    session = sessions.open_session(source, options, wanted_providers(ort, device))
    return session, device_that_ran(session.get_providers(), device)


def step_of(session: Any, feed: Mapping[str, Array]) -> Callable[[], Sequence[Any]]:
    """A function that runs one step on fixed inputs, through the call that users make.

    Models with inputs or outputs that numpy has no type for (bfloat16, float8) are run through OrtValues, the
    only call that takes them.

    Returns:
        A function without arguments whose results are arrays, or OrtValues to be read with `as_array`.
    """
    exotic = any(is_exotic(array.dtype) for array in feed.values())
    exotic |= any("float8" in value.type or "bfloat16" in value.type for value in session.get_outputs())
    if not exotic:
        arrays = dict(feed)
        return lambda: session.run(None, arrays)
    names = [value.name for value in session.get_outputs()]
    values = as_ort_values(feed)
    return lambda: session.run_with_ort_values(names, values)


def as_ort_values(feed: Mapping[str, Array]) -> dict[str, Any]:
    """The arrays as OrtValues in CPU memory."""
    import onnxruntime as ort

    values = {}
    for name, array in feed.items():
        if is_exotic(array.dtype):
            import onnx

            element = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            raw = array.view(np.dtype(f"u{array.dtype.itemsize}"))
            values[name] = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(raw, element)
        else:
            values[name] = ort.OrtValue.ortvalue_from_numpy(array)
    return values


def as_array(result: Any) -> Array | None:
    """One result of a step as an array; None for what is not a tensor (sequences, maps, absent optionals)."""
    if isinstance(result, np.ndarray):
        return result
    if isinstance(result, np.generic):
        return np.asarray(result)
    if not hasattr(result, "is_tensor") or not result.is_tensor():
        return None
    if "float8" not in result.data_type() and "bfloat16" not in result.data_type():
        return np.asarray(result.numpy())
    import onnx

    dtype = onnx.helper.tensor_dtype_to_np_dtype(result.element_type())
    raw = ctypes.string_at(result.data_ptr(), result.tensor_size_in_bytes())
    return np.frombuffer(raw, dtype=dtype).reshape(result.shape())
