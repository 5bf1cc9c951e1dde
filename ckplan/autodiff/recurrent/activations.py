"""The activation functions of recurrent operators and their slopes, in what runs in single and double precision.

Formulas: https://onnx.ai/onnx/operators/onnx__LSTM.html
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.idioms.presence import there
from ckplan.autodiff.registry import NoGradientError

_ALPHA: dict[str, float | None] = {
    "affine": None,
    "elu": 1.0,
    "hardsigmoid": 0.2,
    "leakyrelu": 0.01,
    "scaledtanh": None,
    "thresholdedrelu": None,
}
_BETA: dict[str, float | None] = {"affine": None, "hardsigmoid": 0.5, "scaledtanh": None}
"""Functions with a parameter and its default; None where ONNX's and onnxruntime's differ."""

_NAMES = {
    name.lower(): name
    for name in (
        *("Affine", "Elu", "HardSigmoid", "LeakyRelu", "Relu", "ScaledTanh"),
        *("Sigmoid", "Softplus", "Softsign", "Tanh", "ThresholdedRelu"),
    )
}


@dataclass(frozen=True)
class Activation:
    """A function with its parameters.

    Attributes:
        name: in lower case, as onnxruntime does not mind the case.
        alpha: its first parameter, 0 where it has none.
        beta: its second parameter, 0 where it has none.
        clip: its argument is clipped to +-clip; None: it is not.
    """

    name: str
    alpha: float = 0.0
    beta: float = 0.0
    clip: float | None = None

    @property
    def spelled(self) -> str:
        """Its name as ONNX spells it."""
        return _NAMES[self.name]

    @property
    def has_alpha(self) -> bool:
        """Whether it has a first parameter."""
        return self.name in _ALPHA

    @property
    def has_beta(self) -> bool:
        """Whether it has a second parameter."""
        return self.name in _BETA

    @property
    def told_by_result(self) -> bool:
        """Whether the slope can be told from the result alone."""
        if self.clip is not None:
            return False
        return self.alpha >= 0 if self.name in ("elu", "leakyrelu", "thresholdedrelu") else True

    def apply(self, op: Builder, x: ir.Value) -> ir.Value:
        """Emit the function of x."""
        return self._function(op, self._clipped(op, x))

    def slope(self, op: Builder, result: ir.Value) -> ir.Value:
        """Emit the derivative at the point where the function has this result; needs :attr:`told_by_result`."""
        return self._slope(op, result, result)

    def slope_at(self, op: Builder, x: ir.Value, result: ir.Value) -> ir.Value:
        """Emit the derivative at x."""
        slope = self._slope(op, self._clipped(op, x), result)
        return slope if self.clip is None else op.Where(op.LessOrEqual(op.Abs(x), self.clip), slope, 0.0)

    def _clipped(self, op: Builder, x: ir.Value) -> ir.Value:
        return x if self.clip is None else op.Clip(x, -self.clip, self.clip)

    def _function(self, op: Builder, x: ir.Value) -> ir.Value:
        alpha, beta = self.alpha, self.beta
        match self.name:
            case "sigmoid":
                return op.Sigmoid(x)
            case "tanh":
                return op.Tanh(x)
            case "relu":
                return op.Relu(x)
            case "affine":
                return op.Add(op.Mul(x, alpha), beta)
            case "scaledtanh":
                return op.Mul(op.Tanh(op.Mul(x, beta)), alpha)
            case "hardsigmoid":
                return op.Clip(op.Add(op.Mul(x, alpha), beta), 0.0, 1.0)
            case "leakyrelu":
                return op.Where(op.Less(x, 0.0), op.Mul(x, alpha), x)
            case "thresholdedrelu":
                return op.Where(op.Greater(x, alpha), x, 0.0)
            case "elu":
                return op.Where(op.Less(x, 0.0), op.Mul(op.Sub(op.Exp(op.Min(x, 0.0)), 1.0), alpha), x)
            case "softsign":
                return op.Div(x, op.Add(op.Abs(x), 1.0))
            case _:
                return op.Add(op.Relu(x), op.Log(op.Add(op.Exp(op.Neg(op.Abs(x))), 1.0)))

    def _slope(self, op: Builder, x: ir.Value, y: ir.Value) -> ir.Value:
        """Emit the derivative; x may be the result instead of the argument where that tells as much."""
        alpha, beta = self.alpha, self.beta
        match self.name:
            case "sigmoid":
                return op.Mul(y, op.Sub(1.0, y))
            case "tanh":
                return op.Sub(1.0, op.Mul(y, y))
            case "relu":
                return op.Cast(op.Greater(x, 0.0), to=x.dtype)
            case "affine":
                return op.Add(op.Mul(y, 0.0), alpha)
            case "scaledtanh":
                return op.Sub(alpha * beta, op.Mul(op.Mul(y, y), beta / alpha if alpha else 0.0))
            case "hardsigmoid":
                inside = op.And(op.Greater(y, 0.0), op.Less(y, 1.0))
                return op.Mul(op.Cast(inside, to=y.dtype), alpha)
            case "leakyrelu":
                below = op.Cast(op.Less(x, 0.0) if alpha else op.LessOrEqual(x, 0.0), to=x.dtype)
                return op.Add(op.Mul(below, alpha - 1.0), 1.0)
            case "thresholdedrelu":
                return op.Cast(op.Greater(x, alpha), to=x.dtype)
            case "elu":
                return op.Where(op.Less(x, 0.0) if alpha else op.LessOrEqual(x, 0.0), op.Add(y, alpha), _one(op, y))
            case "softsign":
                rest = op.Sub(1.0, op.Abs(y))
                return op.Mul(rest, rest)
            case _:
                return op.Sub(1.0, op.Exp(op.Neg(y)))


def _one(op: Builder, like: ir.Value) -> ir.Value:
    return op.Cast(there(op, like), to=like.dtype)


def activations_of(node: ir.Node, default: Sequence[str], count: int) -> list[list[Activation]]:
    """Return the activation functions of each direction of a recurrent node, without clipping.

    Alphas and betas go to the functions that have one, in order, as far as they last.

    Args:
        node: the node.
        default: the functions of one direction.
        count: the number of directions.

    Raises:
        NoGradientError: a function is unknown, or a parameter is left out whose default is not agreed on.
    """
    given = node.attributes.get("activations")
    names = list(given.as_strings()) if given is not None else [*default] * count
    if len(names) != len(default) * count:
        raise NoGradientError(f"it has {len(names)} activations and needs {len(default) * count}")
    alphas, betas = _floats(node, "activation_alpha"), _floats(node, "activation_beta")
    found = []
    for name in names:
        key = name.lower()
        if key not in _NAMES:
            raise NoGradientError(f"activation '{name}' is unknown")
        found.append(Activation(key, _next(alphas, _ALPHA, name), _next(betas, _BETA, name)))
    size = len(default)
    return [found[index * size : (index + 1) * size] for index in range(count)]


def _floats(node: ir.Node, name: str) -> Iterator[float]:
    attribute = node.attributes.get(name)
    return iter(()) if attribute is None else iter(attribute.as_floats())


def _next(given: Iterator[float], defaults: dict[str, float | None], name: str) -> float:
    key = name.lower()
    if key not in defaults:
        return 0.0
    value = next(given, defaults[key])
    if value is None:
        what = "activation_alpha" if defaults is _ALPHA else "activation_beta"
        raise NoGradientError(f"{name} has no {what}, and onnxruntime's default is not that of ONNX; give it")
    return value
