"""The arithmetic that exporters write in the place of a dimension's size."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping, Sequence

_LONGEST = 1000
"""Letters of an expression; no exporter writes longer ones, and Python's parser takes them for attacks."""
_OPERATORS: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "floor": lambda numbers: math.floor(numbers[0]),
    "ceil": lambda numbers: math.ceil(numbers[0]),
    "ceiling": lambda numbers: math.ceil(numbers[0]),
    "max": max,
    "min": min,
}


def evaluate(text: str, sizes: Mapping[str, int]) -> int | None:
    """Evaluate the text of a dimension, such as ``2*past + 1`` or ``floor(h/2)``.

    Args:
        text: as it stands in a file.
        sizes: of the names in it.

    Returns:
        A size; None when the text is not arithmetic on known names, or its value is no size.
    """
    if len(text) > _LONGEST:
        return None
    try:
        number = _evaluate(ast.parse(text, mode="eval").body, sizes)
        return int(number) if number >= 0 and number == int(number) else None
    except (SyntaxError, ValueError, KeyError, ZeroDivisionError, OverflowError, RecursionError, MemoryError):
        return None


def _evaluate(tree: ast.expr, sizes: Mapping[str, int]) -> float:
    match tree:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.Name(id=name):
            return sizes[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluate(operand, sizes)
        case ast.BinOp(left=left, op=sign, right=right) if calculate := _OPERATORS.get(type(sign)):
            return calculate(_evaluate(left, sizes), _evaluate(right, sizes))
        case ast.Call(func=ast.Name(id=name), args=[_, *_] as arguments) if function := _FUNCTIONS.get(name.lower()):
            return function([_evaluate(argument, sizes) for argument in arguments])
    raise ValueError("not arithmetic")
