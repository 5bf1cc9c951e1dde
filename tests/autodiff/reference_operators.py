"""Plain numpy versions of operators that onnx's reference evaluator gets wrong or cannot run in full.

Its ConvTranspose (1.23) fails with groups, unequal kernels and ``output_shape``.
"""

from __future__ import annotations

import itertools

import numpy as np
import onnx.reference
import pytest
from onnx.reference.op_run import OpRun

from tests.autodiff import gradcheck


class ConvTranspose(OpRun):
    """Every input element adds its multiple of the kernel to the output; then the padding is cut off."""

    def _run(
        self,
        x,
        w,
        bias=None,
        auto_pad="NOTSET",
        dilations=None,
        group=1,
        kernel_shape=None,
        output_padding=None,
        output_shape=None,
        pads=None,
        strides=None,
    ):
        kernel, rank = w.shape[2:], w.ndim - 2
        ones = [1] * rank
        strides, dilations, extra = strides or ones, dilations or ones, output_padding or [0] * rank
        sizes = x.shape[2:]
        full = [
            (n - 1) * s + (k - 1) * d + 1 + e
            for n, s, k, d, e in zip(sizes, strides, kernel, dilations, extra, strict=True)
        ]
        begin, end = list((pads or [0] * 2 * rank)[:rank]), list((pads or [0] * 2 * rank)[rank:])
        if auto_pad.startswith("SAME") and not output_shape:
            output_shape = [n * s for n, s in zip(sizes, strides, strict=True)]
        if output_shape:
            total = [max(have - want, 0) for have, want in zip(full, output_shape, strict=True)]
            begin = [t // 2 if auto_pad == "SAME_UPPER" else t - t // 2 for t in total]
            end = [t - b for t, b in zip(total, begin, strict=True)]
        wide, high = x.shape[1] // group, w.shape[1]
        y = np.zeros((x.shape[0], group * high, *full), x.dtype)
        for g in range(group):
            part, weight = x[:, g * wide : (g + 1) * wide], w[g * wide : (g + 1) * wide]
            for tap in itertools.product(*map(range, kernel)):
                places = tuple(
                    slice(i * d, i * d + (n - 1) * s + 1, s)
                    for i, d, n, s in zip(tap, dilations, sizes, strides, strict=True)
                )
                product = np.einsum("nc...,co->no...", part, weight[(slice(None), slice(None), *tap)])
                y[(slice(None), slice(g * high, (g + 1) * high), *places)] += product
        y = y[(..., *(slice(b, size - e) for b, e, size in zip(begin, end, full, strict=True)))]
        return (y if bias is None else y + bias.reshape(-1, *ones),)


OPERATORS = [ConvTranspose]


@pytest.fixture
def use_reference_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the gradient checks use the operators of this module."""

    def evaluator(model):
        return onnx.reference.ReferenceEvaluator(model, new_ops=[gradcheck.Erf, gradcheck.Gelu, *OPERATORS])

    monkeypatch.setattr(gradcheck, "evaluator", evaluator)
