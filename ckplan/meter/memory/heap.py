"""Memory meter 2: the high-water of the heap, by memray, with onnxruntime's arena off.

It shares no code with meter 1: memray watches every allocation of the process, whoever makes it. It needs the
arena and memory patterns off, since an arena asks the system for more than it hands out; so it tells what the
values and workspaces of a run take, not what the arena keeps.

onnxruntime's own objects (an entry for each value, a description of each tensor that is alive) are told apart from
that: they go by the number of nodes, however large the tensors are, and no plan is about them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckplan.errors import EnvironmentUnavailableError
from ckplan.isolation.arrays import load_arrays
from ckplan.meter.meter import Figure, Meter
from ckplan.meter.running.child import Channel
from ckplan.meter.running.session import as_ort_values, open_session
from ckplan.meter.types import Heap
from ckplan.operators import sessions

if TYPE_CHECKING:
    import memray

_VALUE, _OBJECT = range(2)

_LARGER = 4096
"""Bytes from which what a kernel allocates by itself is its workspace: indices that it copies, for one."""

METER = Meter(
    "heap",
    (
        Figure(
            "  heap (second meter)",
            lambda found: found.heap.activations if found.heap and found.counters else None,
            under="activations, peak",
        ),
        Figure(
            "    objects of onnxruntime",
            lambda found: found.heap.objects if found.heap and found.counters else None,
            under="activations, peak",
            alone=True,
        ),
    ),
    job="ckplan.meter.memory.heap",
    read=lambda told: Heap(**told),
    doing="high-water of the heap",
    devices=("cpu",),
)


def job(channel: Channel) -> dict[str, Any]:
    """In the child: bytes held by the session, high-water of a run, and of what the run itself frees again.

    Raises:
        EnvironmentUnavailableError: memray is not installed.
    """
    try:
        import memray
    except ImportError as error:
        raise EnvironmentUnavailableError("memray is not installed", "pip install memray (Linux and macOS)") from error
    import onnxruntime as ort

    request = channel.request
    feed = load_arrays(Path(request["inputs"]))
    capture = channel.folder / "capture.bin"

    def watched(call: Callable[[], Any]) -> tuple[Any, memray.FileReader]:
        """Result of a call, and what it allocated."""
        with memray.Tracker(destination=memray.FileDestination(capture, overwrite=True)):
            result = call()
        return result, memray.FileReader(capture)

    _make_first_session(ort)
    channel.progress("the loading (heap meter)")
    (session, device), opened = watched(
        lambda: open_session(
            request["path"],
            request["device"],
            threads=request["threads"],
            arena=False,
            pattern=False,
            spin=request.get("spin", True),
        )
    )
    if device != "cpu":
        raise EnvironmentUnavailableError("the heap meter sees no device memory", "use --device cpu")
    held = sum(record.size for record in opened.get_leaked_allocation_records(merge_threads=True))
    names = [value.name for value in session.get_outputs()]
    values = as_ort_values(feed)
    channel.progress("the run (heap meter)", session=held)
    # The outputs are alive when watching ends: what is alive then is not activations.
    _results, ran = watched(lambda: session.run_with_ort_values(names, values))
    activations, objects = high_waters(ran)
    return {"session": held, "run": ran.metadata.peak_memory, "activations": activations, "objects": objects}


def high_waters(reader: memray.FileReader) -> tuple[int, int]:
    """High-water of the memory for values and workspaces during a run, and that of onnxruntime's own objects, in bytes.

    Of the former is what is allocated aligned, as its allocator does it (``core/framework/allocator.cc``), and what is
    larger than any object. The table of all values is made before the first of them. What outlives the run is left
    out: its outputs, and what a first run makes for all later ones (buffers of threads, caches of kernels).
    """
    import memray

    kinds = memray.AllocatorType
    aligned = {kinds.POSIX_MEMALIGN, kinds.ALIGNED_ALLOC, kinds.MEMALIGN, kinds.VALLOC, kinds.PVALLOC, kinds.MMAP}
    freeing = {kinds.FREE, kinds.MUNMAP}
    records = list(reader.get_allocation_records())
    staying: dict[int, int] = {}
    for number, record in enumerate(records):
        if record.allocator in freeing:
            staying.pop(record.address, None)
        else:
            staying[record.address] = number
    lasting = set(staying.values())
    alive: dict[int, tuple[int, int]] = {}
    made = [record for number, record in enumerate(records) if number not in lasting]
    held, most, begun = [0, 0], [0, 0], not any(record.allocator in aligned for record in made)
    for number, record in enumerate(records):
        if record.allocator in freeing:
            kind, size = alive.pop(record.address, (0, 0))
            held[kind] -= size
            continue
        begun = begun or record.allocator in aligned
        if number in lasting:
            continue
        kind = _VALUE if record.allocator in aligned or (begun and record.size >= _LARGER) else _OBJECT
        alive[record.address] = kind, record.size
        held[kind] += record.size
        most[kind] = max(most[kind], held[kind])
    return most[_VALUE], most[_OBJECT]


def _make_first_session(ort: Any) -> None:
    """Open and drop a session on the smallest model: the first in a process builds tables that all share."""
    from onnx import TensorProto, helper

    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "first", [value], [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    sessions.open_session(model.SerializeToString(), ort.SessionOptions())
