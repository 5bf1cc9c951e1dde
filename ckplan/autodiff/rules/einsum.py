"""Gradient of Einsum: each operand's is the Einsum of the gradient with the other operands."""

from __future__ import annotations

import string

import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients, attr_str, required_input, shape_of
from ckplan.autodiff.registry import NoGradientError, rule


@rule("Einsum")
def einsum(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Swap each operand's indices with the result's."""
    inputs = [required_input(node, i) for i in range(len(node.inputs))]
    terms, result = _terms(attr_str(node, "equation", ""), [len(shape_of(x)) for x in inputs])
    sizes: dict[str, int] = {}
    for term, x in zip(terms, inputs, strict=True):
        for letter, size in zip(term, shape_of(x), strict=True):
            if sizes.setdefault(letter, size) != size:
                raise NoGradientError("an Einsum that broadcasts is not differentiated")
    gradients: list[ir.Value | None] = [None] * len(inputs)
    for index, (term, x) in enumerate(zip(terms, inputs, strict=True)):
        if not op.wants(x):
            continue
        if len(set(term)) < len(term):
            raise NoGradientError("an Einsum that takes a diagonal is not differentiated")
        others = [i for i in range(len(inputs)) if i != index]
        available = set(result).union(*(terms[i] for i in others))
        known = "".join(letter for letter in term if letter in available)
        equation = ",".join([result, *(terms[i] for i in others)]) + "->" + known
        g = op.Einsum(dy[0], *(inputs[i] for i in others), equation=equation)
        # Indices that only this operand has were summed over: every element along them has the same gradient.
        aligned = op.reshape(g, [sizes[letter] if letter in available else 1 for letter in term])
        gradients[index] = op.expand(aligned, shape_of(x))
    return gradients


def _terms(equation: str, ranks: list[int]) -> tuple[list[str], str]:
    """Return the operands' and the result's indices, with letters in place of dots."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    letters = {letter for letter in equation if letter.isalpha()}
    spare = [letter for letter in string.ascii_letters if letter not in letters]
    widths = [rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks, strict=True) if "..." in term]
    if len(set(widths)) > 1:
        raise NoGradientError("an Einsum that broadcasts is not differentiated")
    dots = "".join(spare[: widths[0]]) if widths else ""
    if not arrow:
        counts = left.replace(",", "").replace("...", "")
        right = ("..." if widths else "") + "".join(sorted(x for x in set(counts) if counts.count(x) == 1))
    return [term.replace("...", dots) for term in terms], right.replace("...", dots)
