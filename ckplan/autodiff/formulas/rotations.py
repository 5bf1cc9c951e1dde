"""Rotary embeddings that a model writes out in arithmetic, made one node again.

Queries and keys are rotated by angles that grow with the position (Su et al., arXiv:2104.09864): pairs (a, b) of
elements of each head, which are its halves or neighbours, become (a cos - b sin, b cos + a sin). Files have seven nodes
and more for that, often as ``x cos + r sin`` with the pairs (-b, a) in r, and as many in the backward pass, each of
which writes a tensor of the size of x or half of it. onnxruntime's kernel of RotaryEmbedding
(https://onnx.ai/onnx/operators/onnx__RotaryEmbedding.html) goes through x once, and so does the gradient, which is the
rotation back. It is made one where the kernel is: in single precision.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator

import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.formulas.replacement import is_private, nodes_inside, replace_formula
from ckplan.autodiff.formulas.rotation_tables import Rotation, is_along_last, rotation_tables
from ckplan.autodiff.losses.head import before_reshapes
from ckplan.autodiff.paths import depends
from ckplan.autodiff.reading import attr_int, required_input, shape_of
from ckplan.model.node_reads import fixed_integers
from ckplan.model.normal_form.opset import may_raise, raise_opset
from ckplan.operators.matching import is_op, made_by

_OPERATOR = "RotaryEmbedding"
_OPSET = 23
"""The first operator set with it."""


def join_rotations(op: Builder, held: Collection[ir.Value], left_out: Collection[ir.Value]) -> None:
    """Make one RotaryEmbedding of each rotation that is written out and whose tables get no gradients.

    A graph that gets such a node belongs to the first operator set with it from then on. In one that draws random
    numbers rotations stay as they are: there is no kernel in that set for what draws.

    Args:
        op: builder of the forward graph.
        held: values that gradients are asked for, or that are differentiated: none of them is inside.
        left_out: parameters whose numbers may be others by and by.
    """
    if not may_raise(op.graph, op.functions.values(), _OPSET):
        return
    unknown = {*held, *left_out}
    for last in [node for node in op.graph if is_op(node, ("Add", "Concat", "Reshape"))]:
        y = last.outputs[0]
        if y.dtype != ir.DataType.FLOAT or len(shape_of(y)) != 4:
            continue
        for found in _rotations(last):
            nodes = nodes_inside({found.x, found.cos, found.sin}, last)
            if not is_private(nodes, last, held) or any(depends(table, held) for table in (found.cos, found.sin)):
                continue
            if _join(op, nodes, last, found, unknown):
                break


def _join(op: Builder, nodes: set[ir.Node], last: ir.Node, found: Rotation, unknown: Collection[ir.Value]) -> bool:
    """Put the operator in the place of the nodes of a rotation, if it can read the tables; whether it can."""
    batch, *middle, size = shape_of(found.x)
    for heads_first, (heads, length) in ((True, middle), (False, middle[::-1])):
        with op.scope(str(last.name), "forward", before=last):
            tables = rotation_tables(op, found, heads_first, unknown)
            if not tables:
                continue
            raise_opset(op.graph, _OPSET)
            interleaved = int(found.neighbours)
            if heads_first:
                inputs, attributes = [found.x, *tables], [ir.AttrInt64("interleaved", interleaved)]
                replace_formula(op.graph, nodes, last, _OPERATOR, inputs, attributes)
                return True
            rows = op.reshape(found.x, [batch, length, heads * size])
            turned = op.RotaryEmbedding(rows, *tables, interleaved=interleaved, num_heads=heads)
            whole = op.constant(shape_of(found.x))
        replace_formula(op.graph, nodes, last, "Reshape", [turned, whole], [])
        return True
    return False


def _rotations(last: ir.Node) -> Iterator[Rotation]:
    """The rotations of a tensor that a node may be the end of."""
    for found in _of_whole_heads(last) if last.op_type == "Add" else _of_parts(last):
        if shape_of(found.x) == shape_of(last.outputs[0]):
            yield found


def _of_whole_heads(last: ir.Node) -> Iterator[Rotation]:
    """Read ``x cos + r sin`` with the pairs (-b, a) in r."""
    for plain, turning in itertools.permutations(_products(last), 2):
        for turned, sin in _operands(turning):
            if (parts := _paired(turned)) is None:
                continue
            minus, a, neighbours = parts
            negated = made_by(minus, "Neg")
            x = None if negated is None else _whole_of(a, required_input(negated, 0), neighbours)
            yield from (Rotation(x, cos, sin, neighbours) for whole, cos in _operands(plain) if whole is x)


def _of_parts(last: ir.Node) -> Iterator[Rotation]:
    """Read the pairs (a cos - b sin, b cos + a sin)."""
    if (parts := _paired(last.outputs[0])) is None:
        return
    first, second, neighbours = parts
    difference, total = made_by(first, "Sub"), made_by(second, "Add")
    if difference is None or total is None:
        return
    products = [*_products(difference), *_products(total)]
    for terms in itertools.product(*(_operands(product) for product in products)) if len(products) == 4 else ():
        (a, cos), (b, sin), *turned = terms
        x = _whole_of(a, b, neighbours)
        if x is not None and turned in ([(b, cos), (a, sin)], [(a, sin), (b, cos)]):
            yield Rotation(x, cos, sin, neighbours)


def _paired(value: ir.Value) -> tuple[ir.Value, ir.Value, bool] | None:
    """The first and the second elements of the pairs in a value, and whether these are neighbours in it."""
    stacked = made_by(value, "Reshape")
    joined = made_by(value if stacked is None else required_input(stacked, 0), "Concat")
    if joined is None or len(joined.inputs) != 2 or not is_along_last(joined):
        return None
    first, second = (required_input(joined, index) for index in (0, 1))
    if stacked is None:
        return first, second, False
    (*outer, size), columns = shape_of(value), shape_of(joined.outputs[0])
    a, b = before_reshapes(first), before_reshapes(second)
    fits = columns == (*outer, size // 2, 2) and shape_of(a) == shape_of(b) == (*outer, size // 2)
    return (a, b, True) if fits else None


def _products(node: ir.Node) -> list[ir.Node]:
    """The two products that a node adds or subtracts, if it does that."""
    products = [maker for value in node.inputs if (maker := made_by(value, "Mul")) is not None]
    return products if len(products) == 2 else []


def _operands(product: ir.Node) -> list[tuple[ir.Value, ir.Value]]:
    """What a node multiplies, in both orders."""
    left, right = (required_input(product, index) for index in (0, 1))
    return [(left, right), (right, left)]


def _whole_of(a: ir.Value, b: ir.Value, neighbours: bool) -> ir.Value | None:
    """What two values are the first and the second elements of the pairs of; None if they are not."""
    first, second = _columns(a), _columns(b)
    if first is None or second is None:
        return None
    x = first[0]
    half = shape_of(x)[-1] // 2
    expected = [(x, 0, 2), (x, 1, 2)] if neighbours else [(x, 0, 1), (x, half, 1)]
    alike = shape_of(a) == shape_of(b) == (*shape_of(x)[:-1], half)
    return x if [first, second] == expected and alike and shape_of(x)[-1] == 2 * half else None


def _columns(value: ir.Value) -> tuple[ir.Value, int, int] | None:
    """What a value is columns of: the tensor, the first of them, and the step from one to the next."""
    part = before_reshapes(value)
    node = made_by(part, ("Slice", "Split"))
    if node is None:
        return None
    x = required_input(node, 0)
    *outer, size = shape_of(x)
    if node.op_type == "Split":
        if attr_int(node, "axis", 0) not in (-1, len(outer)):
            return None
        start = sum(shape_of(one)[-1] for one in node.outputs[: node.outputs.index(part)])
        pairs = before_reshapes(x)
        if size == 2 and shape_of(pairs) == (*outer[:-1], 2 * outer[-1]) and shape_of(value) == tuple(outer):
            return pairs, start, 2
        return (x, start, 1) if part is value else None
    starts, axes = (fixed_integers(node, index) for index in (1, 3))
    if part is not value or starts is None or axes is None or shape_of(value)[:-1] != tuple(outer):
        return None
    steps = fixed_integers(node, 4) or [1] * len(axes)
    by_axis = {axis % len(shape_of(x)): at for axis, *at in zip(axes, starts, steps, strict=True)}
    start, step = by_axis.get(len(outer), [0, 1])
    return x, start + size if start < 0 else start, step
