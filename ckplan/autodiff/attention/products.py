"""Attentions whose products a file writes as Einsum, in products of matrices.

Models that name their axes (``torch.einsum("bqhd,bkhd->bhqk", q, k)``) are exported so. onnxruntime's kernel of Einsum
turns its operands for a product of matrices each time that it runs
(https://onnx.ai/onnx/operators/onnx__Einsum.html). Turned by Transposes of their own, operands that were turned before
are turned once, and what is known of attentions holds: a gradient of the softmax in one pass, masks, pieces, keys that
heads share.

Only products are taken whose scores stay as they lie: a copy of them would cost more than it brings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.composites import become
from ckplan.autodiff.reading import attr_int, attr_str, required_input, shape_of
from ckplan.autodiff.rules.einsum import terms_of
from ckplan.autodiff.transposes import read_by_transpose, then
from ckplan.operators.matching import is_op
from ckplan.operators.table import ELEMENTWISE

_BETWEEN = ELEMENTWISE | {"Dropout", "TrainingDropout"}
"""What may stand between a product and the softmax."""


@dataclass(frozen=True)
class _Product:
    """An Einsum as a product of matrices.

    Attributes:
        left: which operand has the rows.
        perms: the orders of axes in which the left operand is (..., m, k), and the right one (..., k, n).
        back: the order in which what the product makes is the result.
    """

    left: int
    perms: tuple[tuple[int, ...], tuple[int, ...]]
    back: tuple[int, ...]


def multiply_attentions(op: Builder) -> None:
    """Put products of matrices in the place of the Einsums before and behind softmaxes.

    Args:
        op: builder of the forward graph.
    """
    for softmax in [node for node in op.graph if is_op(node, "Softmax")]:
        weights = softmax.outputs[0]
        if attr_int(softmax, "axis", -1) % len(shape_of(weights)) != len(shape_of(weights)) - 1:
            continue
        for scores in _reached(required_input(softmax, 0), _made_of):
            maker = scores.producer()
            if is_op(maker, "Einsum"):
                found = _product_of(maker)
                if found is not None and _is_idle(found.back):
                    _multiply(op, maker, found)
        for value in _reached(weights, _made_from):
            for reader in value.consumers():
                found = _product_of(reader) if is_op(reader, "Einsum") else None
                if found is not None and reader.inputs[found.left] is value and _is_idle(found.perms[0]):
                    _multiply(op, reader, found)


def _reached(start: ir.Value, step: Callable[[ir.Value], Iterable[ir.Value]]) -> list[ir.Value]:
    """A value, and those of its shape that are reached from it through operations on single elements."""
    found = {start: None}
    pending = [start]
    while pending:
        new = [v for v in step(pending.pop()) if v not in found and shape_of(v) == shape_of(start)]
        found.update(dict.fromkeys(new))
        pending += new
    return list(found)


def _made_of(value: ir.Value) -> list[ir.Value]:
    node = value.producer()
    return [one for one in node.inputs if one is not None] if is_op(node, _BETWEEN) else []


def _made_from(value: ir.Value) -> list[ir.Value]:
    return [node.outputs[0] for node in value.consumers() if is_op(node, _BETWEEN)]


def _product_of(node: ir.Node) -> _Product | None:
    """An Einsum of two operands as a product of matrices, if each has one axis of its own, and they share another."""
    if len(node.inputs) != 2:
        return None
    shapes = [shape_of(required_input(node, index)) for index in range(2)]
    terms, result = terms_of(attr_str(node, "equation", ""), [len(shape) for shape in shapes])
    if any(len(set(term)) < len(term) for term in (*terms, result)):
        return None
    sizes = [dict(zip(term, shape, strict=True)) for term, shape in zip(terms, shapes, strict=True)]
    shared = set(terms[0]) & set(terms[1])
    if any(sizes[0][letter] != sizes[1][letter] for letter in shared):
        return None
    inner, batch = shared.difference(result), [letter for letter in result if letter in shared]
    own = [set(term) - shared for term in terms]
    if len(inner) != 1 or any(len(letters) != 1 or not letters <= set(result) for letters in own):
        return None
    (k,), ((one,), (other,)) = inner, own
    left = 0 if result.index(one) < result.index(other) else 1
    m, n = (one, other) if left == 0 else (other, one)
    orders = _order(terms[left], [*batch, m, k]), _order(terms[1 - left], [*batch, k, n])
    return _Product(left, orders, _order([*batch, m, n], result))


def _order(letters: Sequence[str], wanted: Iterable[str]) -> tuple[int, ...]:
    return tuple(letters.index(letter) for letter in wanted)


def _is_idle(perm: Sequence[int]) -> bool:
    return list(perm) == sorted(perm)


def _multiply(op: Builder, node: ir.Node, product: _Product) -> None:
    """Make a product of an Einsum, with Transposes where they are needed."""
    with op.scope(str(node.name), "forward", before=node):
        sides = zip((product.left, 1 - product.left), product.perms, strict=True)
        operands = [_turned(op, required_input(node, index), perm) for index, perm in sides]
        if not _is_idle(product.back):
            made = op.MatMul(*operands)
            become(node, ("", "Transpose", ""), [made], [ir.AttrInt64s("perm", product.back)])
            return
    become(node, ("", "MatMul", ""), operands, [])


def _turned(op: Builder, value: ir.Value, perm: Sequence[int]) -> ir.Value:
    """A value with its axes in another order, read past the Transpose that made it, if one did."""
    if _is_idle(perm):
        return value
    maker = value.producer()
    before = None if maker is None else read_by_transpose(maker)
    return op.transpose(value, perm) if before is None else op.transpose(before[0], then(before[1], perm))
