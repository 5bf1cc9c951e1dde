"""What a file is fed, and what onnxruntime makes of that."""

from __future__ import annotations

import onnx_ir as ir


def has_memory_pattern(graph: ir.Graph) -> bool:
    """Whether later runs of a graph have a block of a memory pattern under default session options.

    They have none where something other than a tensor may be fed (``SessionState::ResolveMemoryPatternFlag`` in
    ``core/framework/session_state.cc``), be it a tensor that may be left out.
    """
    return all(isinstance(value.type, ir.TensorType) for value in graph.inputs if not value.is_initializer())
