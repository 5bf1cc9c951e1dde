"""Formulas that go number by number, computed for large tensors in blocks that stay in the cache.

Each pass over a tensor that no cache holds waits for memory, and what lies between two passes is a tensor as large. In
a Scan over blocks of the numbers only what goes in and what comes out is whole. One thread takes half of the time or
less, and two take as long as over whole tensors; a block is enough for about three. On a GPU each block would start its
kernels anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.control_flow.bodies import BodyBuilder
from ckplan.autodiff.pieces.regions import near_divisor
from ckplan.autodiff.reading import dtype_of, shape_of, size_of
from ckplan.autodiff.recurrent.time_loop import States, scan

_BLOCK = 2**17
"""Numbers in a block: a few of them in single precision lie in the cache that a core has to itself."""

_FEWEST = 8
"""Blocks below which a tensor is left whole: what stands in one of them is an eighth of it and more."""


def by_blocks(op: Builder, node: ir.Node, formula: Callable[..., ir.Value], *read: ir.Value) -> ir.Value:
    """Emit what a formula makes of some tensors, block by block where they are large.

    Args:
        op: the builder.
        node: what the formula is the gradient of.
        formula: emits the gradient, number by number, with a builder and of tensors in the order of ``read``.
        read: all of one shape.

    Returns:
        The gradient, of that shape.
    """
    shape, size, dtype = shape_of(read[0]), size_of(read[0]), dtype_of(read[0])
    count = near_divisor(size, size // _BLOCK) if size >= _FEWEST * _BLOCK else 1
    # Within a body there is a loop already.
    if count < _FEWEST or op.device != "cpu" or dtype.itemsize < 4 or isinstance(op, BodyBuilder):
        return formula(op, *read)

    def step(inner: Builder, _: States, blocks: Mapping[str, ir.Value]) -> tuple[States, Mapping[str, ir.Value]]:
        return (), {"gradient": formula(inner, *blocks.values())}

    blocks = {f"read{place}": op.reshape(value, (count, size // count)) for place, value in enumerate(read)}
    _, made = scan(op, f"{node.name}/grad/Scan", "backward", step, (), blocks, ("gradient",), backwards=False)
    return op.reshape(made["gradient"], shape)
