"""Matrix products and convolutions with what is fused to them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ckplan.model.contrib.emitter import Emitter, NotExpandableError, Results
from ckplan.model.contrib.expansions.activations import activate
from ckplan.model.contrib.registry import expansion


@expansion("FusedMatMul", "TransposeMatMul", "FusedMatMulActivation")
def fused_matmul(e: Emitter) -> Results:
    """Alpha times the product of A and B, either with axes moved; then an activation."""
    a = _operand(e, e.required(0), "A")
    b = _operand(e, e.required(1), "B")
    y = e.scale(e.MatMul(a, b), e.float_attribute("alpha", 1.0))
    return [_activated(e, y)]


def _operand(e: Emitter, value: ir.Value, side: str) -> ir.Value:
    """Return an operand of a product with its axes where MatMul wants them.

    ``transBatch`` says that axis 0 stands for the rows: (K, batch..., N) is batch... matrices of K by N.
    """
    rank = len(e.shape(value))
    perm = list(range(rank))
    if rank < 2:
        return value
    if e.int_attribute(f"transBatch{side}"):
        perm = [*perm[1:-1], 0, rank - 1]
    if e.int_attribute(f"trans{side}"):
        perm[-2], perm[-1] = perm[-1], perm[-2]
    return e.transpose(value, perm)


def _activated(e: Emitter, value: ir.Value) -> ir.Value:
    numbers = [
        e.float_attribute(f"activation_{name}", 0.0) if f"activation_{name}" in e.node.attributes else None
        for name in ("alpha", "beta", "gamma")
    ]
    if e.text_attribute("activation") == "Softmax":
        y: ir.Value = e.Softmax(value, axis=e.int_attribute("activation_axis", -1))
        return y
    return activate(e, value, e.text_attribute("activation"), *numbers)


@expansion("FusedGemm")
def fused_gemm(e: Emitter) -> Results:
    """Gemm and an activation."""
    y = e.Gemm(e.required(0), e.required(1), e.input(2), **_copied(e, "alpha", "beta", "transA", "transB"))
    return [_activated(e, y)]


@expansion("FusedConv")
def fused_conv(e: Emitter) -> Results:
    """Conv, then Z added, then an activation."""
    y = e.plus(_conv(e, e.required(0), e.required(1)), e.input(3))
    return [activate(e, y, e.text_attribute("activation"), *e.floats_attribute("activation_params"))]


@expansion("NhwcConv", "NhwcFusedConv")
def nhwc_conv(e: Emitter) -> Results:
    """The same with channels last: of images, and in a NhwcConv of the weights as well."""
    x, weight = e.required(0), e.required(1)
    rank = len(e.shape(x))
    channels_first = [0, rank - 1, *range(1, rank - 1)]
    if e.node.op_type == "NhwcConv":
        weight = e.transpose(weight, channels_first)
    y = _conv(e, e.transpose(x, channels_first), weight)
    y = e.plus(e.transpose(y, [0, *range(2, rank), 1]), e.input(3))
    return [activate(e, y, e.text_attribute("activation"), *e.floats_attribute("activation_params"))]


def _conv(e: Emitter, x: ir.Value, weight: ir.Value) -> ir.Value:
    y: ir.Value = e.Conv(
        x,
        weight,
        e.input(2),
        **_copied(e, "auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"),
    )
    return y


@expansion("ConvTransposeWithDynamicPads")
def conv_transpose_with_dynamic_pads(e: Emitter) -> Results:
    """ConvTranspose whose padding is an input, which has to be known."""
    given = _copied(e, "auto_pad", "dilations", "group", "kernel_shape", "output_padding", "strides")
    if e.input(2) is not None:
        given["pads"] = [int(pad) for pad in e.known(2, "Pads")]
    return [e.ConvTranspose(e.required(0), e.required(1), e.input(3), **given)]


def _copied(e: Emitter, *names: str) -> dict[str, Any]:
    """Return those of the node's attributes that are given."""
    found = {name: e.node.attributes.get(name) for name in names}
    return {name: attribute.value for name, attribute in found.items() if attribute is not None}


@expansion("CDist")
def pairwise_distances(e: Emitter) -> Results:
    """Distances of each row of A from each row of B."""
    metric = e.text_attribute("metric", "sqeuclidean")
    kinds = {"euclidean": "ReduceL2", "sqeuclidean": "ReduceSumSquare", "cityblock": "ReduceL1"}
    if metric not in kinds:
        raise NotExpandableError(f"its metric '{metric}' has no form in standard operators here")
    first, second = (e.required(index) for index in range(2))
    rows = e.reshape(first, [e.shape(first)[0], 1, e.shape(first)[1]])
    return [e.emit(kinds[metric], e.Sub(rows, second), np.asarray([2], dtype=np.int64), keepdims=0)]


@expansion("ComplexMul", "ComplexMulConj")
def complex_product(e: Emitter) -> Results:
    """Products of complex numbers whose parts stand along the last axis; of A and the conjugate of B."""
    sign = -1 if e.node.op_type == "ComplexMulConj" else 1
    (a, b), (c, d) = (e.Split(e.required(index), axis=-1, num_outputs=2, _outputs=2) for index in range(2))
    cross, along = (e.Mul(b, d), e.Mul(a, d))
    real = e.Add(e.Mul(a, c), cross) if sign < 0 else e.Sub(e.Mul(a, c), cross)
    imaginary = e.Sub(e.Mul(b, c), along) if sign < 0 else e.Add(e.Mul(b, c), along)
    return [e.Concat(real, imaginary, axis=-1)]
