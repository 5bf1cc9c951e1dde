"""Layer normalisations that a model writes out in arithmetic, made one node again, with a mean or without.

Files of JAX and TensorFlow, and older ones of torch, have seven to a dozen nodes for a LayerNormalization
(https://onnx.ai/onnx/operators/onnx__LayerNormalization.html; Ba et al., arXiv:1607.06450), and nearly all files have
six for an RMSNormalization (https://onnx.ai/onnx/operators/onnx__RMSNormalization.html; Zhang and Sennrich,
arXiv:1910.07467), most of which write a tensor of the size of x. The gradient of the operator reads x, and of the first
two numbers for each row. A scale of ones and a shift of zeros, as they are before training, are known as what they are,
too.

There are many ways to write the formula, with the variance as the mean of squared deviations or as the mean of squares
less the square of the mean, and with the scale multiplied into the deviation first. All of them are the same polynomial
in x, the means of x and of its square, the deviation and the parameters, and that tells. A scale may be computed of a
parameter, as one and what is learnt.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.formulas.polynomials import Polynomial, applied, is_same, number, product, quantity, term, total
from ckplan.autodiff.formulas.replacement import TYPES, is_private, nodes_inside, reduced_axis, replace_formula
from ckplan.autodiff.losses.head import SHAPE_ONLY, before_reshapes
from ckplan.autodiff.reading import dtype_of, shape_of, size_of
from ckplan.model.inference.infer import static_shape
from ckplan.model.normal_form.opset import may_raise, raise_opset
from ckplan.operators.matching import is_op

_MEANS: Mapping[int, Polynomial] = {0: number(1.0), 1: quantity("mean"), 2: quantity("square")}
"""Of each power of x."""
_CENTRED = "LayerNormalization"
_PLAIN = "RMSNormalization"
_VARIANCE: Mapping[str, Polynomial] = {
    _CENTRED: {term(square=1): 1.0, term(mean=2): -1.0},
    _PLAIN: {term(square=1): 1.0},
}
"""What the deviation is the root of, but for a number that is added, by operator."""
_NORMALISED: Mapping[str, Polynomial] = {
    _CENTRED: {term(x=1, deviation=-1): 1.0, term(mean=1, deviation=-1): -1.0},
    _PLAIN: {term(x=1, deviation=-1): 1.0},
}
"""The result without scale and shift, by operator."""
_OPSET = 23
"""The first operator set with an RMSNormalization."""
_TENSOR = "tensor "
"""Begins the name of a quantity that is a tensor of the file."""
_MOST_STEPS = 12
"""Nodes from a mean of x to the deviation, and from there to the result, at most."""
_MOST_READ = 8
"""Values that a scale is computed of, at most."""
_LARGEST_EPSILON = 0.1


@dataclass(frozen=True)
class _Written:
    """A normalisation written out: the operator, its last node, and what the operator takes."""

    op_type: str
    last: ir.Node
    x: ir.Value
    scale: ir.Value | None
    shift: ir.Value | None
    epsilon: float

    @property
    def nodes(self) -> set[ir.Node]:
        """All nodes of it."""
        return nodes_inside({self.x, self.scale, self.shift}, self.last)


def join_layer_norms(op: Builder, held: Container[ir.Value], is_constant: Callable[[ir.Value], bool]) -> list[ir.Value]:
    """Make one LayerNormalization or RMSNormalization of each that is written out along the last axis.

    A graph that gets one of the second kind belongs to the first operator set with it from then on. In one that draws
    random numbers those stay as they are: there is no kernel in that set for what draws.

    Args:
        op: builder of the forward graph.
        held: values that gradients are asked for, or that are differentiated: none of them is inside.
        is_constant: whether an initializer of one number is no parameter.

    Returns:
        The initializers that are scales and shifts.
    """
    affine: list[ir.Value] = []
    made: set[str] = set()
    has_plain = may_raise(op.graph, op.functions.values(), _OPSET)
    for root in [node for node in op.graph if is_op(node, "Sqrt")]:
        found = _written(root, held, is_constant)
        if found is None:
            continue
        affine += [value for part in (found.scale, found.shift) if part is not None for value in _stored(part)]
        if found.op_type == _PLAIN and not has_plain:
            continue
        size = shape_of(found.x)[-1]
        scale = found.scale or op.constant(np.ones(size, dtype_of(found.x)))
        with op.scope(str(found.last.name), "forward", before=found.last):
            parts = [op.reshape(part, [size]) for part in (scale, found.shift) if part is not None]
        attributes = [ir.AttrInt64("axis", -1), ir.AttrFloat32("epsilon", found.epsilon)]
        replace_formula(op.graph, found.nodes, found.last, found.op_type, [found.x, *parts], attributes)
        made.add(found.op_type)
    if _PLAIN in made:
        raise_opset(op.graph, _OPSET)
    return affine


def _written(root: ir.Node, held: Container[ir.Value], is_constant: Callable[[ir.Value], bool]) -> _Written | None:
    """The normalisation that a square root belongs to."""
    argument, deviation = root.inputs[0], root.outputs[0]
    if argument is None or deviation.dtype not in TYPES:
        return None
    sources = _squared(argument)
    for op_type, x in itertools.product((_CENTRED, _PLAIN), sources):  # the first is the second of what is centred
        formula = _Formula(x, deviation, is_constant)
        epsilon = _epsilon(formula.of(argument), _VARIANCE[op_type])
        if epsilon is None:
            continue
        for y in reversed(_downstream(deviation)):
            found = _normalised(op_type, formula, x, y, epsilon)
            if found is not None and is_private(found.nodes, found.last, held):
                return found
    return None


def _squared(argument: ir.Value) -> list[ir.Value]:
    """What a square root may be the deviation of: what is squared under a mean, or what that was centred from."""
    pending, seen = [argument], {argument}
    for value in pending:  # grows meanwhile
        node = value.producer()
        if node is None or node.domain or len(pending) > 4 * _MOST_STEPS:
            continue
        if node.op_type == "ReduceMean":
            square = None if node.inputs[0] is None else node.inputs[0].producer()
            base = square.inputs[0] if square is not None and square.op_type in ("Mul", "Pow") else None
            centred = None if base is None else base.producer()
            before = centred.inputs[0] if centred is not None and centred.op_type == "Sub" else None
            return [x for x in (base, before) if x is not None and len(shape_of(x)) > 1]
        new = [read for read in node.inputs if read is not None and read not in seen]
        seen.update(new)
        pending += new
    return []


def _normalised(op_type: str, formula: _Formula, x: ir.Value, y: ir.Value, epsilon: float) -> _Written | None:
    """The normalisation of x that a value is, if it is one."""
    made, last = formula.of(y), y.producer()
    parts = None if made is None or shape_of(y) != shape_of(x) else _parts(made, op_type)
    if parts is None or last is None:
        return None
    scale, shift = (None if name is None else formula.tensors[name] for name in parts)
    fits = all(part is None or _is_of_columns(part, x) for part in (scale, shift))
    return _Written(op_type, last, x, scale, shift, epsilon) if fits else None


class _Formula:
    """What values are made of, as polynomials in x, its means, the deviation and the parameters.

    Attributes:
        tensors: the parameters, by the quantities that they are.
    """

    def __init__(self, x: ir.Value, deviation: ir.Value, is_constant: Callable[[ir.Value], bool]) -> None:
        self.tensors: dict[str, ir.Value] = {}
        self._is_constant = is_constant
        self._x = x
        self._whole = shape_of(x)
        self._known: dict[ir.Value, Polynomial | None] = {x: quantity("x")}
        self._deviation = deviation

    def of(self, value: ir.Value, steps: int = _MOST_STEPS) -> Polynomial | None:
        """The polynomial of a value; None if it is none, or too many nodes away."""
        if value not in self._known:
            self._known[value] = self._made(value, steps)
        return self._known[value]

    def _made(self, value: ir.Value, steps: int) -> Polynomial | None:
        if value is self._deviation:
            return quantity("deviation")
        if static_shape(value) is None:  # as a sequence has none
            return None
        if before_reshapes(value).is_initializer() or (size_of(value) == self._whole[-1] and self._is_fixed(value)):
            return self._fixed(value)
        node = value.producer()
        if node is None or node.domain or not steps or not self._is_row_or_whole(value):
            return None
        read = [one for one in node.inputs if one is not None]
        if node.op_type == "ReduceMean":
            return self._mean(node, steps)
        if node.op_type in SHAPE_ONLY:  # a number for each row, with or without an axis for it
            return self.of(read[0], steps - 1) if self._is_row_or_whole(read[0]) else None
        if node.op_type == "Expand":  # the same number all along the row
            return self.of(read[0], steps - 1) if len(shape_of(read[0])) == len(shape_of(value)) else None
        computed = [one for one in read if not self._is_fixed(one)]
        if any(len(shape_of(one)) < len(shape_of(value)) for one in computed):
            return None  # laid along other axes than its own
        of_read = [self.of(one, steps - 1) for one in read]
        if node.op_type == "Max" and {} in of_read:  # of zero and a variance, which is not less
            return next((one for one in of_read if one != {}), None)
        return applied(node.op_type, of_read)

    def _is_fixed(self, value: ir.Value) -> bool:
        """Whether nothing but what the file holds goes into a value."""
        return bool(_stored(value, self._x))

    def _fixed(self, value: ir.Value) -> Polynomial | None:
        """Of what the file holds: a number, or a tensor."""
        data = before_reshapes(value)
        if size_of(value) == 1 and data.const_value is not None and self._is_constant(data):
            return number(float(data.const_value.numpy().reshape(())))
        self.tensors[_TENSOR + str(value.name)] = value
        return quantity(_TENSOR + str(value.name))

    def _mean(self, node: ir.Node, steps: int) -> Polynomial | None:
        """Of a mean along the last axis, in which only x and its square change."""
        source = node.inputs[0]
        if source is None or shape_of(source) != self._whole or reduced_axis(node) != len(self._whole) - 1:
            return None
        inner = self.of(source, steps - 1)
        if inner is None:
            return None
        parts: list[Polynomial] = []
        for powers, factor in inner.items():
            others = dict(powers)
            mean = _MEANS.get(others.pop("x", 0))
            if mean is None or others.keys() - {"mean", "square"}:
                return None
            parts.append(product(mean, {term(**others): factor}))
        return total(parts)

    def _is_row_or_whole(self, value: ir.Value) -> bool:
        rows = self._whole[:-1]
        return shape_of(value) in (self._whole, (*rows, 1), rows)


def _stored(value: ir.Value, x: ir.Value | None = None) -> list[ir.Value]:
    """The initializers that a value is computed of, if it is of them alone, in a few nodes, and not of x.

    Of several, single numbers are left out: they are no parameter of the value's own.
    """
    found: dict[ir.Value, None] = {}
    pending = [before_reshapes(value)]
    for one in pending:  # grows meanwhile
        node = one.producer()
        if one is x or len(pending) > _MOST_READ:
            return []
        if one.is_initializer():
            found[one] = None
        elif node is None:
            return []
        else:
            pending += [before_reshapes(read) for read in node.inputs if read is not None]
    return [one for one in found if size_of(one) > 1 or len(found) == 1]


def _is_of_columns(value: ir.Value, x: ir.Value) -> bool:
    """Whether a tensor has a number for each column of x, and is of its type."""
    shape = shape_of(value)
    return value.dtype == x.dtype and shape[-1:] == shape_of(x)[-1:] and size_of(value) == shape[-1]


def _epsilon(found: Polynomial | None, variance: Polynomial) -> float | None:
    """What is added to the variance, where a polynomial is that of a variance and a number."""
    epsilon = 0.0 if found is None else found.get((), 0.0)
    is_added = 0 < epsilon <= _LARGEST_EPSILON and is_same(found, total([variance, number(epsilon)]))
    return epsilon if is_added else None


def _parts(made: Polynomial, op_type: str) -> tuple[str | None, str | None] | None:
    """Scale and shift of a polynomial that is a normalisation, by the names of these quantities."""
    own = {name for powers in made for name, _ in powers if name.startswith(_TENSOR)}
    if len(own) > 2:
        return None
    names = [None, *sorted(own)]
    for scale, shift in itertools.product(names, names if op_type == _CENTRED else [None]):
        normalised = _NORMALISED[op_type]
        scaled = normalised if scale is None else product(normalised, quantity(scale))
        if is_same(made, scaled if shift is None else total([scaled, quantity(shift)])):
            return scale, shift
    return None


def _downstream(value: ir.Value) -> list[ir.Value]:
    """What is made of a value in a few steps, the nearest first."""
    found: dict[ir.Value, None] = {}
    pending = [value]
    for _ in range(_MOST_STEPS):
        pending = [
            made for one in pending for reader in one.consumers() for made in reader.outputs if made not in found
        ]
        found.update(dict.fromkeys(pending))
        if len(found) > 4 * _MOST_STEPS:
            break
    return list(found)
