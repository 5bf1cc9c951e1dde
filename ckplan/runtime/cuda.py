"""onnxruntime's CUDA execution provider under default session options.

Plans for it are made without a GPU: what onnxruntime makes of the graph is asked of the CPU's session. Kernels differ
from the CPU's in what they overwrite, as the provider's sources register them (``MayInplace``), and convolutions are
cuDNN's. On an H100 a Softmax takes a buffer of its own for the logits, 1,570 MB of a GPT-2 of 124e6 parameters, and a
convolution of a U-Net 403 MB to turn what it reads and makes.
"""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from ckplan.planner.problem import Piece
from ckplan.runtime.cpu import CPU
from ckplan.runtime.kernels.cudnn import CONVOLUTIONS, convolution_workspace
from ckplan.runtime.kernels.memory_use import overwritable_on_cuda
from ckplan.runtime.kernels.workspace import pieces_of, workspace_of
from ckplan.runtime.runtime import Runtime


def _workspace(node: ir.Node, threads: int) -> int:
    return convolution_workspace(node) if node.op_type in CONVOLUTIONS else workspace_of(node, threads)


def _pieces(node: ir.Node) -> tuple[Piece, ...]:
    return () if node.op_type in CONVOLUTIONS else pieces_of(node)


CUDA: Runtime = replace(CPU, name="cuda", overwritten=overwritable_on_cuda, workspace=_workspace, pieces=_pieces)
"""The runtime of plans that are asked for with ``--device cuda``."""
