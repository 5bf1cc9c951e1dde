"""Polynomials in named quantities: what a formula is, however a file writes it.

Powers may be negative, so that quotients by a single product are polynomials, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce

Term = tuple[tuple[str, int], ...]
"""A product of powers: each quantity and its power, sorted; the empty one is a number alone."""

Polynomial = Mapping[Term, float]
"""The factor of each term; none is zero."""

ARITHMETIC = frozenset({"Add", "Div", "Mul", "Neg", "Pow", "Sub"})
"""Operators that make polynomials of polynomials."""

_POWERS = (1, 2, 3)
"""Exponents that are multiplied out."""


def term(**powers: int) -> Term:
    """The product of some quantities, by their powers."""
    return tuple(sorted(powers.items()))


def quantity(name: str) -> Polynomial:
    """A quantity by itself."""
    return {term(**{name: 1}): 1.0}


def number(value: float) -> Polynomial:
    """A number by itself."""
    return {(): value} if value else {}


def total(parts: Iterable[Polynomial]) -> Polynomial:
    """The sum of polynomials."""
    made: dict[Term, float] = {}
    for part in parts:
        for one, factor in part.items():
            made[one] = made.get(one, 0.0) + factor
    return {one: factor for one, factor in made.items() if factor}


def product(left: Polynomial, right: Polynomial) -> Polynomial:
    """The product of two polynomials."""
    made: dict[Term, float] = {}
    for one, factor in left.items():
        for other, by in right.items():
            powers = dict(one)
            for name, power in other:
                powers[name] = powers.get(name, 0) + power
            joined = term(**{name: power for name, power in powers.items() if power})
            made[joined] = made.get(joined, 0.0) + factor * by
    return {one: factor for one, factor in made.items() if factor}


def applied(op_type: str, read: Sequence[Polynomial | None]) -> Polynomial | None:
    """What an operator of `ARITHMETIC`, or Reciprocal, makes of polynomials; None if that is no polynomial."""
    if any(one is None for one in read):
        return None
    match op_type, [one for one in read if one is not None]:
        case "Neg", [one]:
            return product(one, number(-1.0))
        case "Add", [one, other]:
            return total([one, other])
        case "Sub", [one, other]:
            return total([one, product(other, number(-1.0))])
        case "Mul", [one, other]:
            return product(one, other)
        case "Div", [one, other] if len(other) == 1:
            return product(one, _inverse(other))
        case "Reciprocal", [one] if len(one) == 1:
            return _inverse(one)
        case "Pow", [one, other] if other.keys() == {()} and other[()] in _POWERS:
            return reduce(product, [one] * int(other[()]))
    return None


def _inverse(one: Polynomial) -> Polynomial:
    """One by a polynomial of a single term."""
    return {tuple((name, -power) for name, power in powers): 1 / factor for powers, factor in one.items()}


def is_same(found: Polynomial | None, wanted: Polynomial) -> bool:
    """Whether a polynomial is another one, as far as single precision tells."""
    if found is None or found.keys() != wanted.keys():
        return False
    return all(math.isclose(found[powers], factor, rel_tol=1e-6) for powers, factor in wanted.items())
