"""Runs of a file whose arena may hold no more than a number of bytes.

On the CPU onnxruntime is given an arena that is one region from the start and cuts its chunks to size: of all arenas
that a user can set up with the limit, it wastes least. On CUDA the provider is given ``gpu_mem_limit``, with regions as
large as what was asked for; there, parameters and inputs are in the arena, too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ckplan.isolation.arrays import load_arrays
from ckplan.meter.running.child import Channel
from ckplan.meter.running.device import CUDA, device_that_ran, wanted_providers
from ckplan.meter.running.session import step_of
from ckplan.operators.sessions import open_session
from ckplan.planner.arena.regions import UNIT, ArenaSettings

RUNS = 3
"""The first run, the run that takes the block of the memory pattern, and one in the steady state."""

_EXHAUSTED = ("available memory of", "failed to allocate memory", "bad_alloc", "out of memory", "bfcarena")
"""What onnxruntime's messages hold when memory is all that a run lacked; lower case."""

_LARGEST_FIRST = 2**31 - 1
"""onnxruntime takes no larger number for the size of the first region."""


def arena_settings(limit: int) -> ArenaSettings:
    """The arena of a limit on the CPU: one region, nothing of more than 256 bytes handed out that was not asked for."""
    return ArenaSettings(limit=limit, first_region=min(limit, _LARGEST_FIRST), waste=UNIT)


def arena_options(limit: int) -> dict[str, int]:
    """The same as ``onnxruntime.OrtArenaCfg`` takes it."""
    settings = arena_settings(limit)
    return {
        "max_mem": limit,
        "initial_chunk_size_bytes": settings.first_region,
        "max_dead_bytes_per_chunk": settings.waste,
    }


def cuda_options(limit: int) -> dict[str, str]:
    """Options of the CUDA provider for a limit."""
    return {"gpu_mem_limit": str(limit), "arena_extend_strategy": "kSameAsRequested"}


def job(channel: Channel) -> dict[str, Any]:
    """In the child: run the file under a limit, and tell whether it went through or what memory it lacked."""
    request = channel.request
    feed = load_arrays(Path(request["inputs"]))
    try:
        channel.progress("the loading (within a limit)")
        session = _opened(request)
        step = step_of(session, feed)
        for number in range(RUNS):
            channel.progress(f"run {number + 1} of {RUNS} (within a limit)")
            results = step()
            # They may be views of onnxruntime's own buffers.
            del results
    except Exception as error:  # onnxruntime's exceptions have no base class of their own
        if not is_exhausted(str(error)) and not isinstance(error, MemoryError):
            raise
        return {"ran": False}
    return {"ran": True}


def is_exhausted(message: str) -> bool:
    """Whether a message of onnxruntime says that an allocator had no more to give."""
    return any(text in message.lower() for text in _EXHAUSTED)


def _opened(request: dict[str, Any]) -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4  # that memory runs out is what is looked for
    options.enable_mem_pattern = request["pattern"]
    if request["threads"] is not None:
        options.intra_op_num_threads = request["threads"]
    providers: list[Any] = wanted_providers(ort, request["device"])
    if request["device"] == "cuda":
        providers = [(CUDA, cuda_options(request["limit"])), *providers[1:]]
    else:
        place = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
        ort.create_and_register_allocator(place, ort.OrtArenaCfg(arena_options(request["limit"])))
        options.add_session_config_entry("session.use_env_allocators", "1")
    session = open_session(request["path"], options, providers)
    device_that_ran(session.get_providers(), request["device"])
    return session
