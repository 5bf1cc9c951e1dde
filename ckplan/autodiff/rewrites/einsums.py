"""Einsums that are products of matrices, written as such.

Models that name their axes are exported so: attentions (``torch.einsum("bqhd,bkhd->bhqk", q, k)``), dense layers of
several axes, experts. onnxruntime's kernel of Einsum (https://onnx.ai/onnx/operators/onnx__Einsum.html) turns its
operands for a product of matrices each time that it runs, those of the gradient as well. With Transposes and Reshapes
of their own, what was turned before is turned once, a matrix that lies the other way round is read so by the product,
and what is known of products holds: linear layers, the gradient of an attention's softmax in one pass, pieces, keys
that heads share.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.composites import become
from ckplan.autodiff.idioms.transposes import read_by_transpose, then
from ckplan.autodiff.reading import attr_str, is_floating, required_input, shape_of
from ckplan.autodiff.rules.linear_algebra.einsum import terms_of
from ckplan.operators.matching import is_op


@dataclass(frozen=True)
class _Product:
    """An Einsum as a product of matrices, (batch, rows, inner) times (batch, inner, columns).

    Attributes:
        left: which operand has the rows.
        batch: indices of both operands and the result.
        rows: those of the left operand and the result.
        inner: those that are summed over.
        columns: those of the right operand and the result.
    """

    left: int
    batch: tuple[str, ...]
    rows: tuple[str, ...]
    inner: tuple[str, ...]
    columns: tuple[str, ...]


def multiply_einsums(op: Builder) -> None:
    """Put products of matrices in the place of the Einsums of two operands that are some.

    Args:
        op: builder of the forward graph.
    """
    for node in [node for node in op.graph if is_op(node, "Einsum") and len(node.inputs) == 2]:
        shapes = [shape_of(required_input(node, index)) for index in range(2)]
        terms, result = terms_of(attr_str(node, "equation", ""), [len(shape) for shape in shapes])
        sizes = _sizes(terms, shapes)
        if sizes is None or not is_floating(node.outputs[0]) or 0 in sizes.values():
            continue
        forms = list(_forms(terms, result))
        if forms:
            _multiply(op, node, min(forms, key=lambda form: _moved(form, terms, result, sizes)), terms, result, sizes)


def _sizes(terms: Sequence[str], shapes: Sequence[Sequence[int]]) -> dict[str, int] | None:
    """The sizes of axes by their index; None if one is stretched, or an operand has it twice."""
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        if len(set(term)) < len(term):
            return None
        for letter, size in zip(term, shape, strict=True):
            if sizes.setdefault(letter, size) != size:
                return None
    return sizes


def _forms(terms: Sequence[str], result: str) -> Iterator[_Product]:
    """All orders of the axes in which an Einsum is a product of matrices; none if it is no such product."""
    shared = set(terms[0]) & set(terms[1])
    for left in range(2):
        one, other = terms[left], terms[1 - left]
        batch, inner = shared.intersection(result), shared.difference(result)
        rows, columns = set(one) - shared, set(other) - shared
        if not rows or not columns or not inner or not rows | columns <= set(result):
            return
        orders = (
            _orders(batch, result, one, other),
            _orders(rows, result, one),
            _orders(inner, one, other),
            _orders(columns, result, other),
        )
        yield from (_Product(left, *some) for some in itertools.product(*orders))


def _orders(letters: set[str], *terms: str) -> list[tuple[str, ...]]:
    """The orders in which some indices stand in several terms."""
    return list(dict.fromkeys(tuple(letter for letter in term if letter in letters) for term in terms))


def _moved(form: _Product, terms: Sequence[str], result: str, sizes: Mapping[str, int]) -> float:
    """How many elements are copied to bring axes into another order; turned matrices count a quarter."""
    made = [*form.batch, *form.rows, *form.columns]
    moved = 0.0
    for indices, wanted, turned in (
        (terms[form.left], (*form.batch, *form.rows, *form.inner), (*form.batch, *form.inner, *form.rows)),
        (terms[1 - form.left], (*form.batch, *form.inner, *form.columns), (*form.batch, *form.columns, *form.inner)),
        (made, tuple(result), None),
    ):
        if tuple(indices) != wanted:
            moved += math.prod(sizes[letter] for letter in indices) * (0.25 if tuple(indices) == turned else 1)
    return moved


def _multiply(
    op: Builder, node: ir.Node, form: _Product, terms: Sequence[str], result: str, sizes: Mapping[str, int]
) -> None:
    """Make a product of an Einsum, with Transposes and Reshapes where they are needed."""
    left, right = required_input(node, form.left), required_input(node, 1 - form.left)
    batch, rows, inner, columns = (
        [sizes[letter] for letter in letters] for letters in (form.batch, form.rows, form.inner, form.columns)
    )
    with op.scope(str(node.name), "forward", before=node):
        left = _turned(op, left, _order(terms[form.left], (*form.batch, *form.rows, *form.inner)))
        right = _turned(op, right, _order(terms[1 - form.left], (*form.batch, *form.inner, *form.columns)))
        across = [math.prod(rows)] if batch else rows  # of a linear layer samples and places stay as they are
        operands = [
            op.reshape(left, [*batch, *across, math.prod(inner)]),
            op.reshape(right, [*batch, math.prod(inner), math.prod(columns)]),
        ]
        back = _order([*form.batch, *form.rows, *form.columns], result)
        is_shaped, is_turned = (len(across), len(columns)) != (len(rows), 1), list(back) != sorted(back)
        if is_shaped or is_turned:
            made = op.MatMul(*operands)
            made = op.reshape(made, [*batch, *rows, *columns]) if is_turned else made
    if is_turned:
        become(node, ("", "Transpose", ""), [made], [ir.AttrInt64s("perm", back)])
    elif is_shaped:
        become(node, ("", "Reshape", ""), [made, op.constant([*batch, *rows, *columns])], [])
    else:
        become(node, ("", "MatMul", ""), operands, [])


def _order(letters: Sequence[str], wanted: Iterable[str]) -> tuple[int, ...]:
    return tuple(letters.index(letter) for letter in wanted)


def _turned(op: Builder, value: ir.Value, perm: Sequence[int]) -> ir.Value:
    """A value with its axes in another order, read past the Transpose that made it, if one did."""
    if list(perm) == sorted(perm):
        return value
    maker = value.producer()
    before = None if maker is None else read_by_transpose(maker)
    return op.transpose(value, perm) if before is None else op.transpose(before[0], then(before[1], perm))
