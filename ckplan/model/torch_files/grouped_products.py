"""Products of groups of rows with a matrix each, as experts of a mixture compute them of tokens that are sorted.

How many rows a group has is known when a step runs, and its sizes before. So rows go into blocks of equal size, whose
last one of each group is filled up, and a block is multiplied with its group's matrix. R rows in G groups make at most
``R / B + G`` blocks of B rows, whatever the groups; with ``B = R / G`` that is twice the arithmetic of the rows alone,
where all groups for all rows would be G times that (blocks: Gale et al., *MegaBlocks*, MLSys 2023, section 5.1).
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir


def grouped_products(self: Any, mat2: Any, offs: Any = None, bias: Any = None, out_dtype: int | None = None) -> Any:
    """Write ``aten::_grouped_mm``: rows [R, K] with matrices [G, K, N], of which group g ends before row ``offs[g]``.

    Rows behind the last group are multiplied with its matrix; torch leaves open what lies there.

    Raises:
        NotImplementedError: what is multiplied has another form, which no forward pass of a mixture has.
    """
    del out_dtype  # that of the factors, as torch knows no other
    if offs is None or bias is not None or (len(self.shape), len(mat2.shape)) != (2, 3):
        raise NotImplementedError("a grouped product that is not one of rows with a matrix for each of their groups")
    return _of_groups(self, mat2, offs)


def _of_groups(rows: Any, matrices: Any, ends: Any) -> Any:
    """Products [R, N] of rows [R, K], which lie group by group, with their group's one of `matrices` [G, K, N]."""
    from onnxscript import opset18

    op: Any = opset18

    zero, one = op.Constant(value_ints=[0]), op.Constant(value_ints=[1])
    ends = op.Cast(ends, to=ir.DataType.INT64)
    begins = op.Concat(zero, op.Slice(ends, zero, op.Constant(value_ints=[-1]), zero), axis=0)
    # Sizes, which are numbers where no axis of the file is free.
    many, groups = op.Shape(rows, start=0, end=1), op.Shape(matrices, start=0, end=1)
    size = op.Div(op.Sub(op.Add(many, groups), one), groups)
    blocks = op.Add(op.Div(many, size), groups)
    # Blocks of each group, and those before it.
    filled = op.Div(op.Sub(op.Add(op.Sub(ends, begins), size), one), size)
    until = op.CumSum(filled, op.Constant(value_int=0))
    last = op.Sub(groups, one)
    group_of_block = op.Min(_how_many_end(until, _first(blocks)), last)
    places = _first(many)
    group = op.Min(_how_many_end(ends, places), last)
    # A row moves by what its group begins later in blocks than in rows.
    moved = op.Sub(op.Mul(op.Sub(until, filled), size), begins)
    place = op.Add(places, op.Gather(moved, group))
    empty = op.ConstantOfShape(
        op.Concat(op.Mul(blocks, size), op.Shape(rows, start=1), axis=0), value=ir.tensor([0], dtype=rows.dtype)
    )
    laid_out = op.ScatterND(empty, op.Unsqueeze(place, one), rows)
    in_blocks = op.Reshape(laid_out, op.Concat(blocks, size, op.Shape(rows, start=1), axis=0))
    turned = matrices.producer()
    if turned is not None and turned.op_type == "Transpose" and list(turned.attributes["perm"].as_ints()) == [0, 2, 1]:
        own = op.Transpose(op.Gather(turned.inputs[0], group_of_block, axis=0), perm=[0, 2, 1])
    else:
        own = op.Gather(matrices, group_of_block, axis=0)
    products = op.MatMul(in_blocks, own)
    flat = op.Reshape(products, op.Concat(op.Constant(value_ints=[-1]), op.Shape(matrices, start=2), axis=0))
    return op.Gather(flat, place, axis=0)


def _first(count: Any) -> Any:
    """The numbers 0, 1, 2, ... of which there are as many as the one element of `count` says."""
    from onnxscript import opset18

    op: Any = opset18

    return op.Range(op.Constant(value_int=0), op.Squeeze(count), op.Constant(value_int=1))


def _how_many_end(ends: Any, places: Any) -> Any:
    """How many of `ends` [G] lie at or before each place [P]: the group that a place is in."""
    from onnxscript import opset18

    op: Any = opset18

    ended = op.GreaterOrEqual(op.Unsqueeze(places, op.Constant(value_ints=[1])), ends)
    return op.ReduceSum(op.Cast(ended, to=ir.DataType.INT64), op.Constant(value_ints=[1]), keepdims=0)
