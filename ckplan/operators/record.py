"""What is known of an operator, in one record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from ckplan.operators.costs import Cost

MICROSOFT = "com.microsoft"
"""The domain of the operators that onnxruntime adds to ONNX."""


@dataclass(frozen=True)
class Operator:
    """What is known of an operator; what is not said holds for most operators.

    Attributes:
        name: its name.
        domain: its domain, empty for ai.onnx.
        cost: prices a node; by default one operation an element of the output, all operands read, all results written.
        heavy: whether it costs far more than its bytes.
        random: whether it draws anew each time it runs.
        view: whether its first output is the memory of its first input in onnxruntime.
        in_place: whether onnxruntime's CPU kernel overwrites its first input when nothing else reads it and the shapes
            agree.
        in_place_on_cuda: the same of the kernel of its CUDA provider.
        workspace: bytes that its kernel takes while it runs, beyond its outputs, for operators that ckplan does not
            know by itself.
        no_gradient: why it cannot be differentiated although it has a floating output; empty where it can, or where
            its outputs are integers, booleans or strings, through which nothing flows back.
        zero_derivative: whether it is constant between its steps: its derivative is zero wherever it exists, so it
            passes no gradient on, which is an answer and not an error.
    """

    name: str
    domain: str = ""
    cost: Callable[[ir.Node], Cost] | None = None
    heavy: bool = False
    random: bool = False
    view: bool = False
    in_place: bool = False
    in_place_on_cuda: bool = False
    workspace: Callable[[ir.Node], int] | None = None
    no_gradient: str = ""
    zero_derivative: bool = False
