"""What onnxruntime's CPU kernels of DFT and STFT take beyond their outputs.

A transform whose length is no power of two is a convolution with a chirp (Bluestein), computed by transforms of the
next power of two that holds it. For all of a node's transforms there are the chirp and its spectrum, and for the one
that runs its samples and their spectrum (onnxruntime 1.31, ``core/providers/cpu/signal/dft.cc``).
"""

from __future__ import annotations

import math

import onnx_ir as ir

from ckplan.model.node_reads import fixed_integers
from ckplan.operators.matching import input_of
from ckplan.runtime.sizes import dimensions_of

_TENSORS = 4


def fourier_tensors(node: ir.Node) -> list[int]:
    """Bytes of each tensor that a DFT or an STFT works in; none where the length is a power of two or not known."""
    length = _length_of_frames(node) if node.op_type == "STFT" else _length(node)
    dtype = node.outputs[0].dtype
    if not length or dtype is None or length.bit_count() == 1:
        return []
    samples = 1 << (2 * length - 2).bit_length()
    return [math.ceil(2 * samples * dtype.itemsize)] * _TENSORS


def _length(node: ir.Node) -> int | None:
    """The length of a DFT's transforms."""
    if input_of(node, 1) is not None:
        given = fixed_integers(node, 1)
        return given[0] if given else None
    axes = fixed_integers(node, 2) or [node.attributes.get_int("axis", -2)]
    whole = node.outputs[0] if node.attributes.get_int("inverse", 0) else input_of(node, 0)
    dims = None if whole is None else dimensions_of(whole)
    return dims[axes[0]] if dims else None


def _length_of_frames(node: ir.Node) -> int | None:
    """The length of an STFT's transforms: that of its window, if it has one."""
    window = input_of(node, 2)
    if window is not None:
        dims = dimensions_of(window)
        return dims[0] if dims else None
    given = fixed_integers(node, 3)
    return given[0] if given else None
