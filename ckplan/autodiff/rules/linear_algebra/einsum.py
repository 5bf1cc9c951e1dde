"""Gradient of Einsum: each operand's is the Einsum of the gradient with the other operands."""

from __future__ import annotations

import itertools
import math
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients
from ckplan.autodiff.reading import attr_str, dtype_of, required_input, shape_of
from ckplan.autodiff.registry import NoGradientError, rule


@rule("Einsum")
def einsum(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Swap each operand's indices with the result's.

    An index that an operand has twice takes its diagonal: the gradient is put there by a product with an identity
    matrix. Axes of one element that were stretched are summed over.
    """
    inputs = [required_input(node, i) for i in range(len(node.inputs))]
    g = dy[0]
    assert g is not None
    if 0 in shape_of(g) or any(0 in shape_of(x) for x in inputs):
        return [None] * len(inputs)
    terms, result = terms_of(attr_str(node, "equation", ""), [len(shape_of(x)) for x in inputs])
    sizes: dict[str, int] = {}
    for term, x in zip(terms, inputs, strict=True):
        for letter, size in zip(term, shape_of(x), strict=True):
            sizes[letter] = max(size, sizes.get(letter, 1))
    if shape_of(g) != tuple(sizes[letter] for letter in result):
        # ONNX takes an axis for as long as the first operand says, so that the shapes behind it are wrong as well.
        raise NoGradientError(
            "it stretches an axis, which ONNX's shape inference overlooks; Expand its inputs before it"
        )
    gradients: list[ir.Value | None] = [None] * len(inputs)
    for index, x in enumerate(inputs):
        if op.wants(x):
            others = [(terms[i], inputs[i]) for i in range(len(inputs)) if i != index]
            gradients[index] = _gradient(op, (result, g), others, (terms[index], x), sizes)
    return gradients


def _gradient(
    op: Builder,
    result: tuple[str, ir.Value],
    others: Sequence[tuple[str, ir.Value]],
    operand: tuple[str, ir.Value],
    sizes: Mapping[str, int],
) -> ir.Value:
    """Emit the gradient of one operand; all but ``sizes`` are pairs of indices and what has them."""
    term, x = operand
    factors = [result, *others]
    spare = iter(letter for letter in string.ascii_letters if letter not in sizes)
    own = ""
    stretched = dict(sizes)
    for letter, size in zip(term, shape_of(x), strict=True):
        if letter in own:
            again = next(spare)
            factors.append((letter + again, op.constant(np.eye(size, dtype=dtype_of(x)))))
            stretched[again] = size
            letter = again
        own += letter
    # Indices that only this operand has were summed over: every element along them has the same gradient.
    available = set().union(*(indices for indices, _ in factors))
    known = "".join(letter for letter in own if letter in available)
    # Shape inference takes an axis for as long as any operand has it, so those that are stretched are made whole.
    whole = [(indices, op.expand(value, [stretched[letter] for letter in indices])) for indices, value in factors]
    g = _product(op, whole, known, stretched)
    aligned = op.reshape(g, [stretched[letter] if letter in available else 1 for letter in own])
    narrow = [axis for axis, size in enumerate(shape_of(x)) if size == 1 and shape_of(aligned)[axis] > 1]
    return op.expand(op.reduce_sum(aligned, narrow), shape_of(x))


def _product(op: Builder, factors: Sequence[tuple[str, ir.Value]], result: str, sizes: Mapping[str, int]) -> ir.Value:
    """Emit the Einsum of factors, two at a time, each time the two that take the fewest multiplications.

    onnxruntime goes from left to right, and what it has of three factors in between has every index that the last one
    has: for a product that is summed over positions, a matrix for each of them, where another order needs none.

    Args:
        op: the builder.
        factors: pairs of indices and what has them.
        result: its indices.
        sizes: of the axis of each index.
    """
    left = list(factors)
    while len(left) > 2:
        steps = [_step(left, pair, result, sizes) for pair in itertools.combinations(range(len(left)), 2)]
        best = min(steps, key=lambda step: (step.work, step.size))
        (before, one), (behind, other) = (left[index] for index in best.pair)
        product = op.Einsum(one, other, equation=f"{before},{behind}->{best.indices}")
        left = [factor for index, factor in enumerate(left) if index not in best.pair] + [(best.indices, product)]
    equation = ",".join(indices for indices, _ in left) + "->" + result
    return op.Einsum(*(value for _, value in left), equation=equation)


@dataclass(frozen=True)
class _Step:
    """What it takes to multiply two of several factors: multiplications, the indices of the result, its elements."""

    pair: tuple[int, int]
    work: int
    indices: str
    size: int


def _step(
    factors: Sequence[tuple[str, ir.Value]], pair: tuple[int, int], result: str, sizes: Mapping[str, int]
) -> _Step:
    """Multiplying a pair of factors; indices that neither the others nor the result have are summed over."""
    read = set(result).union(*(term for index, (term, _) in enumerate(factors) if index not in pair))
    every = dict.fromkeys(factors[pair[0]][0] + factors[pair[1]][0])
    kept = "".join(letter for letter in every if letter in read)
    work, size = (math.prod(sizes[letter] for letter in letters) for letters in (every, kept))
    return _Step(pair, work, kept, size)


def terms_of(equation: str, ranks: list[int]) -> tuple[list[str], str]:
    """The operands' and the result's indices of an Einsum, with letters in place of dots.

    Args:
        equation: as the node has it.
        ranks: of the operands.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    letters = {letter for letter in equation if letter.isalpha()}
    spare = [letter for letter in string.ascii_letters if letter not in letters]
    widths = [
        rank - len(term.replace("...", "")) if "..." in term else 0 for term, rank in zip(terms, ranks, strict=True)
    ]
    # As in broadcasting, dots stand for the last of the axes where another operand has more.
    dots = "".join(spare[: max(widths)])
    if not arrow:
        counts = left.replace(",", "").replace("...", "")
        right = ("..." if dots else "") + "".join(sorted(x for x in set(counts) if counts.count(x) == 1))
    spelled = [term.replace("...", dots[len(dots) - width :]) for term, width in zip(terms, widths, strict=True)]
    return spelled, right.replace("...", dots)
