"""What onnxruntime's CPU kernel of Einsum allocates beyond its output, from the equation and the shapes.

The kernel brings its operands into one order of axes, contracts them pair by pair as batched matrix products, and
copies the last product into its output (``core/providers/cpu/math/einsum_utils``: ``EinsumComputePreprocessor``,
``EinsumTypedComputeProcessor``). Each of these steps may take a tensor, freed at the kernel's end or when the next one
replaces it. Only sizes are followed here; nothing is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod

from ckplan.planner.arena.regions import chunk_size
from ckplan.planner.problem import Freed, Mark, Piece

Dims = tuple[int, ...]


class _Ledger:
    """Bytes that are allocated, the most that ever were, and all that was taken and given back, outputs left out."""

    def __init__(self, itemsize: float) -> None:
        self._itemsize = itemsize
        self.now = 0
        self.high = 0
        self.pieces: list[Piece] = []
        self._places: dict[int, list[int]] = {}  # of what is there among the pieces, by size

    def take(self, elements: int) -> int:
        size = self._added(elements)
        if size:
            self._places.setdefault(size, []).append(len(self.pieces))
            self.pieces.append(size)
        return size

    def make(self, elements: int) -> None:
        """Take them for the output."""
        self._added(elements)
        self.pieces.append(Mark.OUTPUTS)

    def _added(self, elements: int) -> int:
        size = chunk_size(ceil(elements * self._itemsize))
        self.now += size
        self.high = max(self.high, self.now)
        return size

    def drop(self, size: int) -> None:
        self.now -= size
        if size:
            self.pieces.append(Freed(len(self.pieces) - self._places[size].pop()))


@dataclass
class _Operand:
    """An operand as the kernel holds it.

    Attributes:
        dims: its sizes along all axes of the equation, 1 along those that it does not have.
        own: bytes that the kernel allocated for it; 0 while it is the node's input itself.
    """

    dims: Dims
    own: int = 0


def einsum_workspace(equation: str, shapes: Sequence[Dims], itemsize: float) -> int:
    """Bytes that the kernel holds at once beyond its output, as the arena hands them out.

    Args:
        equation: of the node, with or without an arrow.
        shapes: of the operands.
        itemsize: bytes of an element.

    Raises:
        ValueError: the equation does not fit the shapes.
    """
    ledger, made = _followed(equation, shapes, itemsize)
    return ledger.high - made


def einsum_pieces(equation: str, shapes: Sequence[Dims], itemsize: float) -> tuple[Piece, ...]:
    """Bytes of each tensor that the kernel takes, and which of them it gives back, in turn.

    `Mark.OUTPUTS` stands where it asks for its output. What is not given back is freed when the kernel ends.

    Args:
        equation: of the node, with or without an arrow.
        shapes: of the operands.
        itemsize: bytes of an element.

    Raises:
        ValueError: the equation does not fit the shapes.
    """
    return tuple(_followed(equation, shapes, itemsize)[0].pieces)


def _followed(equation: str, shapes: Sequence[Dims], itemsize: float) -> tuple[_Ledger, int]:
    """What the kernel allocates, and the bytes of its output."""
    terms, result, sizes = _axes_of(equation, shapes)
    ledger = _Ledger(itemsize)
    operands = [_prepared(term, shape, len(sizes), ledger) for term, shape in zip(terms, shapes, strict=True)]
    last = {axis: index for index, term in enumerate(terms) for axis in term if axis not in result}
    first = [axis for axis, index in sorted(last.items()) if index == 0]
    current = operands[0]
    if first:
        # The operand is still held, beside what is left of it after the sum.
        dims = tuple(1 if axis in first else size for axis, size in enumerate(current.dims))
        current = _Operand(dims, ledger.take(prod(dims)))
    if len(operands) == 1:
        kept = [axis for axis in range(len(sizes)) if axis not in first]
        _finish(current.dims, kept, result, ledger)
    for index in range(1, len(operands)):
        summed = [axis for axis, at in sorted(last.items()) if at == index]
        final = result if index == len(operands) - 1 else None
        current = _contracted(current, operands[index], summed, final, ledger)
    return ledger, chunk_size(ceil(prod(sizes[axis] for axis in result) * itemsize))


def _axes_of(equation: str, shapes: Sequence[Dims]) -> tuple[list[list[int]], list[int], list[int]]:
    """The axes of each operand, those of the output, and the size of each axis.

    Axes are numbered as the kernel does: those of an ellipsis first, then letters in order of appearance.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(shapes):
        raise ValueError(f"equation {equation!r} has {len(terms)} operands, not {len(shapes)}")
    spans = [len(shape) - len(t.replace("...", "")) for t, shape in zip(terms, shapes, strict=True) if "..." in t]
    hidden = max(spans, default=0)
    letters = list(dict.fromkeys(left.replace(",", "").replace(".", "")))
    place = {letter: hidden + index for index, letter in enumerate(letters)}
    if not arrow:
        once = sorted(letter for letter in letters if left.count(letter) == 1)
        right = ("..." if hidden else "") + "".join(once)

    def axes(term: str) -> list[int]:
        before, dots, after = term.partition("...")
        return [*(place[c] for c in before), *(range(hidden) if dots else ()), *(place[c] for c in after)]

    found = [axes(term) for term in terms]
    sizes = [1] * (hidden + len(letters))
    for term, shape in zip(found, shapes, strict=True):
        if len(term) != len(shape):
            raise ValueError(f"equation {equation!r} does not fit an operand of rank {len(shape)}")
        for axis, size in zip(term, shape, strict=True):
            sizes[axis] = max(sizes[axis], size)
    return found, axes(right), sizes


def _prepared(term: list[int], shape: Dims, rank: int, ledger: _Ledger) -> _Operand:
    """The operand with diagonals taken and its axes in the order of the equation."""
    operand = _Operand(shape)
    order: list[int] = []
    for axis in term:
        if axis not in order:
            order.append(axis)
            continue
        operand = _diagonal(operand, order.index(axis), len(order), ledger)
    wanted = sorted(range(len(order)), key=lambda position: order[position])
    if wanted != list(range(len(order))):
        operand = _replaced(operand, operand.dims, ledger)
    dims = [1] * rank
    for axis, size in zip(order, operand.dims, strict=True):
        dims[axis] = size
    return _Operand(tuple(dims), operand.own)


def _diagonal(operand: _Operand, first: int, second: int, ledger: _Ledger) -> _Operand:
    """The operand without its second axis; it is turned round where these two are not its innermost ones."""
    dims = tuple(size for place, size in enumerate(operand.dims) if place != second)
    rank = len(operand.dims)
    turned = rank > 2 and {first, second} != {rank - 1, rank - 2}
    copy = ledger.take(prod(operand.dims)) if turned else 0
    made = ledger.take(prod(dims))
    if turned:
        back = ledger.take(prod(dims))
        ledger.drop(made)
        made = back
    ledger.drop(copy)
    ledger.drop(operand.own)
    return _Operand(dims, made)


def _replaced(operand: _Operand, dims: Dims, ledger: _Ledger) -> _Operand:
    """A new tensor in place of an operand, which is freed once the new one is there."""
    made = ledger.take(prod(dims))
    ledger.drop(operand.own)
    return _Operand(dims, made)


def _contracted(
    left: _Operand, right: _Operand, summed: Sequence[int], result: Sequence[int] | None, ledger: _Ledger
) -> _Operand:
    """The product of two operands, summed along some axes; for the last pair, the axes of the output are given."""
    rank = len(left.dims)
    # What is made of the operands here is held beside them until the product is done.
    work = {"left": _Operand(left.dims), "right": _Operand(right.dims)}
    both, only, rest = [], [], []
    for axis, (wide, high) in enumerate(zip(left.dims, right.dims, strict=True)):
        if axis in summed:
            if (wide > 1) != (high > 1):
                side = "left" if wide > 1 else "right"
                dims = tuple(1 if place == axis else size for place, size in enumerate(work[side].dims))
                work[side] = _replaced(work[side], dims, ledger)
        elif wide > 1 and high > 1:
            both.append(axis)
        elif wide > 1:
            only.append(axis)
        else:
            rest.append(axis)
    for side, order in (("left", [*both, *only, *summed, *rest]), ("right", [*both, *summed, *rest, *only])):
        if order != list(range(rank)):
            operand = work[side]
            if operand.own and _is_reshape(order, operand.dims):
                continue
            work[side] = _replaced(operand, operand.dims, ledger)
    made = {axis: left.dims[axis] for axis in (*both, *only)} | {axis: right.dims[axis] for axis in rest}
    dims = tuple(made.get(axis, 1) for axis in range(rank))
    order = [*both, *only, *summed, *rest]
    product = _Operand(tuple(dims[axis] for axis in order), ledger.take(prod(dims)))
    if result is not None:
        _finish(product.dims, order, result, ledger)
    else:
        back = [order.index(axis) for axis in range(rank)]
        if back != list(range(rank)) and not _is_reshape(back, product.dims):
            product = _replaced(product, product.dims, ledger)
    for operand in (*work.values(), left):  # the right one stays with the operands to the end
        ledger.drop(operand.own)
    return _Operand(dims, product.own)


def _is_reshape(order: Sequence[int], dims: Dims) -> bool:
    """Whether a transposition leaves all axes with more than one place in their order."""
    moved = [axis for axis in order if dims[axis] != 1]
    return moved == sorted(moved)


def _finish(dims: Dims, axes: Sequence[int], result: Sequence[int], ledger: _Ledger) -> None:
    """Copy a candidate into the output; a transposed one first where its axes are in another order."""
    elements = prod(dims)
    ledger.make(elements)
    if [axis for axis in axes if axis in result] != list(result):
        ledger.drop(ledger.take(elements))
