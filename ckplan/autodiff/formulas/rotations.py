"""Rotary embeddings that a model writes out in arithmetic, made one node again.

Queries and keys are rotated by angles that grow with the position (Su et al., arXiv:2104.09864). Files have seven nodes
for that, ``x cos + concat(-b, a) sin`` with the halves a and b of each head, or
``concat(a cos - b sin, b cos + a sin)``, and as many in the backward pass, each of which writes a tensor of the size of
x or half of it. onnxruntime's kernel of RotaryEmbedding
(https://onnx.ai/onnx/operators/onnx__RotaryEmbedding.html) goes through x once, and so does the gradient, which is the
rotation back. It is made one where the kernel is: in single precision.

The operator has one cosine for both elements of a pair, and a row of them for each position of each sample. So the
halves of a table that is as wide as a head have to be alike, and rows that all samples share are numbered.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.formulas.replacement import is_private, nodes_inside, replace_formula
from ckplan.autodiff.losses.head import SHAPE_ONLY, before_reshapes
from ckplan.autodiff.paths import depends
from ckplan.autodiff.reading import attr_int, required_input, shape_of, size_of
from ckplan.autodiff.slices import stretch
from ckplan.model.node_reads import fixed_integers, fixed_tensor
from ckplan.model.opset import raise_opset
from ckplan.operators.matching import is_op

_OPERATOR = "RotaryEmbedding"
_OPSET = 23
"""The first operator set with it."""
_ALONG_ROWS = ("Cast", "Cos", "Expand", "Gather", "Mul", "Neg", "Sin")
"""Operators that make what is the same of what is the same: by one number, or of whole rows."""


@dataclass(frozen=True)
class _Written:
    """A rotation written out: its last node, what is rotated, and cosines and sines as the file lays them out."""

    last: ir.Node
    x: ir.Value
    cos: ir.Value
    sin: ir.Value


def join_rotations(op: Builder, held: Collection[ir.Value], left_out: Collection[ir.Value]) -> None:
    """Make one RotaryEmbedding of each rotation that is written out and whose tables get no gradients.

    A graph that gets such a node belongs to the first operator set with it from then on.

    Args:
        op: builder of the forward graph.
        held: values that gradients are asked for, or that are differentiated: none of them is inside.
        left_out: parameters whose numbers may be others by and by.
    """
    is_joined = False
    unknown = {*held, *left_out}
    for node in [node for node in op.graph if is_op(node, ("Add", "Concat"))]:
        if node.outputs[0].dtype != ir.DataType.FLOAT or len(shape_of(node.outputs[0])) != 4:
            continue
        for found in _rotations(node):
            nodes = nodes_inside({found.x, found.cos, found.sin}, node)
            if not is_private(nodes, node, held) or any(depends(table, held) for table in (found.cos, found.sin)):
                continue
            tables = _tables(op, found, unknown)
            if tables:
                replace_formula(op.graph, nodes, node, _OPERATOR, [found.x, *tables], [])
                is_joined = True
                break
    if is_joined:
        raise_opset(op.graph, _OPSET)


def _rotations(last: ir.Node) -> Iterator[_Written]:
    """The rotations of a tensor that a node may be the end of."""
    for x, cos, sin in _of_whole_heads(last) if last.op_type == "Add" else _of_halves(last):
        if shape_of(x) == shape_of(last.outputs[0]):
            yield _Written(last, x, cos, sin)


def _of_whole_heads(last: ir.Node) -> Iterator[tuple[ir.Value, ir.Value, ir.Value]]:
    """Read ``x cos + concat(-b, a) sin``: x, cosines and sines."""
    for plain, turning in itertools.permutations(_products(last), 2):
        for turned, sin in _operands(turning):
            halves = turned.producer()
            if not is_op(halves, "Concat") or len(halves.inputs) != 2 or not _is_along_last(halves):
                continue
            minus, first = (required_input(halves, index) for index in (0, 1))
            negated = minus.producer()
            if is_op(negated, "Neg") and (x := _whole_of(first, required_input(negated, 0))) is not None:
                yield from ((x, cos, sin) for whole, cos in _operands(plain) if whole is x)


def _of_halves(last: ir.Node) -> Iterator[tuple[ir.Value, ir.Value, ir.Value]]:
    """Read ``concat(a cos - b sin, b cos + a sin)``: x, cosines and sines."""
    parts = [value.producer() for value in last.inputs if value is not None]
    if len(parts) != 2 or not _is_along_last(last) or not is_op(parts[0], "Sub") or not is_op(parts[1], "Add"):
        return
    products = [*_products(parts[0]), *_products(parts[1])]
    for terms in itertools.product(*(_operands(product) for product in products)) if len(products) == 4 else ():
        (a, cos), (b, sin), *turned = terms
        x = _whole_of(a, b)
        if x is not None and turned in ([(b, cos), (a, sin)], [(a, sin), (b, cos)]):
            yield x, cos, sin


def _products(node: ir.Node) -> list[ir.Node]:
    """The two products that a node adds or subtracts, if it does that."""
    makers = [value.producer() for value in node.inputs if value is not None]
    products = [maker for maker in makers if is_op(maker, "Mul")]
    return products if len(products) == 2 else []


def _operands(product: ir.Node) -> list[tuple[ir.Value, ir.Value]]:
    """What a node multiplies, in both orders."""
    left, right = (required_input(product, index) for index in (0, 1))
    return [(left, right), (right, left)]


def _is_along_last(concat: ir.Node) -> bool:
    return attr_int(concat, "axis", 0) in (-1, len(shape_of(concat.outputs[0])) - 1)


def _whole_of(first: ir.Value, second: ir.Value) -> ir.Value | None:
    """What two values are the first and the second half of along the last axis; None if they are not."""
    halves = [_half(value) for value in (first, second)]
    if None in halves:
        return None
    (x, start), (other, middle) = (half for half in halves if half is not None)
    size = shape_of(x)[-1]
    return x if x is other and not start and 2 * middle == size == 2 * shape_of(first)[-1] else None


def _half(value: ir.Value) -> tuple[ir.Value, int] | None:
    """What a value is a stretch of along the last axis, and where that begins."""
    node = value.producer()
    if node is None or node.domain or node.op_type not in ("Slice", "Split"):
        return None
    x = required_input(node, 0)
    size = shape_of(x)[-1]
    if node.op_type == "Split":
        if attr_int(node, "axis", 0) not in (-1, len(shape_of(x)) - 1):
            return None
        return x, sum(shape_of(part)[-1] for part in node.outputs[: node.outputs.index(value)])
    starts, axes, steps = (fixed_integers(node, index) for index in (1, 3, 4))
    if starts is None or axes is None or any(step != 1 for step in steps or ()):
        return None
    if shape_of(value)[:-1] != shape_of(x)[:-1] or shape_of(value)[-1] == size:
        return None
    by_axis = dict(zip((axis % len(shape_of(x)) for axis in axes), starts, strict=True))
    start = by_axis[len(shape_of(x)) - 1]
    return x, start + size if start < 0 else start


def _tables(op: Builder, found: _Written, unknown: Collection[ir.Value]) -> list[ir.Value]:
    """Cosines, sines and, where samples share them, the numbers of their rows, as the operator reads them; or nothing.

    Args:
        op: builder of the forward graph.
        found: the rotation.
        unknown: values whose numbers are not to be relied on.
    """
    batch, _, length, size = shape_of(found.x)
    half = size // 2
    shapes = {((1,) * 4 + shape_of(table))[-4:] for table in (found.cos, found.sin)}
    (samples, *heads_and_rows, width), *others = shapes
    if others or samples not in (1, batch) or heads_and_rows != [1, length] or width not in (half, size):
        return []
    if width == size and not all(_has_like_halves(table, unknown) for table in (found.cos, found.sin)):
        return []
    shape = [length, half] if samples < batch else [batch, length, half]
    with op.scope(str(found.last.name), "forward", before=found.last):
        tables = [_laid_out(op, table, half, shape, unknown) for table in (found.cos, found.sin)]
    if samples < batch:
        tables.append(op.constant(np.tile(np.arange(length), (batch, 1))))
    return tables


def _laid_out(
    op: Builder, table: ir.Value, half: int, shape: Collection[int], unknown: Collection[ir.Value]
) -> ir.Value:
    """The first columns of a table in another shape; what the file fixes, as a constant."""
    tensor = _known(table, unknown)
    if tensor is not None:
        return op.constant(tensor.reshape(-1, shape_of(table)[-1])[:, :half].reshape(tuple(shape)))
    if shape_of(table)[-1] != half:
        table = stretch(op, table, len(shape_of(table)) - 1, 0, half)
    return op.reshape(table, shape)


def _known(value: ir.Value, unknown: Collection[ir.Value]) -> np.ndarray | None:
    """The numbers of a value in its shape that the file fixes; None if it does not."""
    data = before_reshapes(value)
    tensor = None if data in unknown else fixed_tensor(data)
    return None if tensor is None else tensor.numpy().reshape(shape_of(value))


def _has_like_halves(value: ir.Value, unknown: Collection[ir.Value]) -> bool:
    """Whether the first and the second half of the last axis of a value are certain to be the same."""
    size = shape_of(value)[-1]
    array = _known(value, unknown)
    if array is not None:
        return size % 2 == 0 and bool(np.array_equal(array[..., : size // 2], array[..., size // 2 :]))
    node = value.producer()
    if node is None or node.domain:
        return False
    read = [one for one in node.inputs if one is not None]
    if node.op_type == "Concat":
        return len(read) == 2 and read[0] is read[1] and _is_along_last(node)
    if node.op_type == "Mul":
        read = sorted(read, key=size_of, reverse=True)
        if size_of(read[1]) != 1:
            return False
    if node.op_type == "Gather" and attr_int(node, "axis", 0) % len(shape_of(read[0])) == len(shape_of(read[0])) - 1:
        return False
    is_kept = node.op_type in (*SHAPE_ONLY, *_ALONG_ROWS) and shape_of(read[0])[-1:] == (size,)
    return is_kept and _has_like_halves(read[0], unknown)
