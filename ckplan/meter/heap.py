"""Memory meter 2: the high-water of the heap, by memray, with onnxruntime's arena off.

It shares no code with meter 1: memray watches every allocation of the process, whoever makes it. It needs the
arena and memory patterns off, since an arena asks the system for more than it hands out; so it tells what the
values and workspaces of a run take, not what the arena keeps.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ckplan.errors import EnvironmentUnavailableError
from ckplan.isolation.arrays import load_arrays
from ckplan.meter.child import Channel
from ckplan.meter.meter import Figure, Meter
from ckplan.meter.session import as_ort_values, open_session
from ckplan.meter.types import Heap
from ckplan.operators import sessions

METER = Meter(
    "heap",
    (
        Figure(
            "  heap (second meter)",
            lambda found: found.heap.activations if found.heap and found.counters else None,
            under="activations, peak",
        ),
    ),
    job="ckplan.meter.heap",
    read=lambda told: Heap(**told),
    doing="high-water of the heap",
    devices=("cpu",),
)


def job(channel: Channel) -> dict[str, Any]:
    """In the child: bytes held by the session, high-water of a run, and of a run into outputs made beforehand."""
    try:
        import memray
    except ImportError as error:
        raise EnvironmentUnavailableError("memray is not installed", "pip install memray (Linux and macOS)") from error
    import onnxruntime as ort

    request = channel.request
    feed = load_arrays(Path(request["inputs"]))
    capture = channel.folder / "capture.bin"

    def watched(call: Callable[[], Any]) -> tuple[Any, int, int]:
        """Result of a call, its high-water, and the bytes that it left allocated."""
        destination = memray.FileDestination(capture, overwrite=True)
        with memray.Tracker(destination=destination, file_format=memray.FileFormat.AGGREGATED_ALLOCATIONS):
            result = call()
        reader = memray.FileReader(capture)
        left = sum(record.size for record in reader.get_leaked_allocation_records(merge_threads=True))
        return result, reader.metadata.peak_memory, left

    _make_first_session(ort)
    channel.progress("the loading (heap meter)")
    (session, device), _, held = watched(
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
    names = [value.name for value in session.get_outputs()]
    values = as_ort_values(feed)
    channel.progress("the first run (heap meter)", session=held)
    results, peak, _ = watched(lambda: session.run_with_ort_values(names, values))

    activations = None
    if all(result.has_value() and result.is_tensor() for result in results):
        binding = session.io_binding()
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        places = [
            ort.OrtValue.ortvalue_from_shape_and_type(result.shape(), result.element_type()) for result in results
        ]
        del results
        for name, place in zip(names, places, strict=True):
            binding.bind_ortvalue_output(name, place)
        channel.progress("the second run (heap meter)", run=peak)
        _, activations, _ = watched(lambda: session.run_with_iobinding(binding))
    return {"session": held, "run": peak, "activations": activations}


def _make_first_session(ort: Any) -> None:
    """Open and drop a session on the smallest model: the first in a process builds tables that all share."""
    from onnx import TensorProto, helper

    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "first", [value], [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    sessions.open_session(model.SerializeToString(), ort.SessionOptions())
