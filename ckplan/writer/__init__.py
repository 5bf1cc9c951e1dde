"""Plan -> ONNX: clones, control edges, node order and metadata, so that onnxruntime runs a file as planned."""

from __future__ import annotations

from ckplan.writer.emit import emit

__all__ = ["emit"]
