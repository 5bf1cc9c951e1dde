"""What is particular to a runtime: where it executes, on how many threads, and how its kernels treat memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from ckplan.planner.problem import Piece


@dataclass(frozen=True)
class Runtime:
    """A way in which onnxruntime executes a graph. One more is one more file like `ckplan.runtime.cpu`.

    Attributes:
        name: as a user calls it.
        providers: execution providers that a session is opened with, in order of preference.
        threads: threads that kernels with a buffer for each are taken to run on.
        without: optimisers of onnxruntime that are left out, by name.
        view: the input whose memory a node's first output is, None where it has memory of its own.
        overwritten: the input that a node's kernel may overwrite with its first output, None where it may not.
        workspace: bytes that a node's kernel takes while it runs, beyond its outputs, on a number of threads; bodies of
            control flow are not its business.
        pieces: the same tensor by tensor; see `ckplan.planner.problem.Op`. Empty where the kernel takes all at once.
        outside: bytes that it takes besides, outside the allocator whose counters onnxruntime tells.
    """

    name: str
    providers: tuple[str, ...]
    threads: int
    without: tuple[str, ...]
    view: Callable[[ir.Node], ir.Value | None]
    overwritten: Callable[[ir.Node], ir.Value | None]
    workspace: Callable[[ir.Node, int], int]
    pieces: Callable[[ir.Node], tuple[Piece, ...]]
    outside: Callable[[ir.Node], int]
