"""GELUs that a model writes out in arithmetic, made one node again.

A model that computes ``0.5 x (1 + erf(x / sqrt 2))``, or the approximation with a tanh, is exported as five to nine
nodes, each of which writes a tensor of the size of x and has a gradient that reads some of them. onnxruntime's kernel
of Gelu (https://onnx.ai/onnx/operators/onnx__Gelu.html) goes through x once, and the gradient of that operator reads x
alone (Hendrycks and Gimpel, arXiv:1606.08415). It is made one where the kernel is: in single precision.

Which nodes these are does not depend on how the formula is written: what is added, multiplied and raised to powers on
the way from x to the bend, a Tanh or an Erf, and from there to the result, is a polynomial in x and the bend, and that
tells.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Container, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.formulas.polynomials import ARITHMETIC, Polynomial, applied, is_same, number, quantity, term
from ckplan.autodiff.formulas.replacement import is_private, nodes_inside, replace_formula
from ckplan.autodiff.reading import shape_of
from ckplan.model.node_reads import fixed_tensor
from ckplan.operators.matching import is_op

_BENDS: Mapping[str, tuple[str, Polynomial]] = {
    "Erf": ("none", {term(x=1): math.sqrt(0.5)}),
    "Tanh": ("tanh", {term(x=1): math.sqrt(2 / math.pi), term(x=3): 0.044715 * math.sqrt(2 / math.pi)}),
}
"""By operator, what Gelu calls the form that it belongs to, and what it, being odd, or its negative is applied to."""

_RESULT: Polynomial = {term(x=1): 0.5, term(x=1, bend=1): 0.5}
_MOST_STEPS = 8
"""Nodes on the way from x to the bend, and from there to the result, at most."""


@dataclass(frozen=True)
class _Written:
    """A GELU written out: its input, the node that makes its result, and all nodes of it."""

    x: ir.Value
    last: ir.Node
    nodes: set[ir.Node]
    approximate: str


def join_gelus(op: Builder, held: Container[ir.Value]) -> None:
    """Make one Gelu of each that is written out.

    Args:
        op: builder of the forward graph.
        held: values that gradients are asked for, or that are differentiated: none of them is inside.
    """
    for bend in [node for node in op.graph if is_op(node, _BENDS)]:
        found = _written(bend, held)
        if found is None:
            continue
        attributes = [ir.AttrString("approximate", found.approximate)]
        replace_formula(op.graph, found.nodes, found.last, "Gelu", [found.x], attributes)


def _written(bend: ir.Node, held: Container[ir.Value]) -> _Written | None:
    """The GELU that a Tanh or an Erf belongs to."""
    argument, bent = bend.inputs[0], bend.outputs[0]
    approximate, wanted = _BENDS[bend.op_type]
    if argument is None or bent.dtype != ir.DataType.FLOAT:
        return None
    for x, sign in itertools.product(_upstream(argument, held), (1.0, -1.0)):
        if is_same(_polynomial(argument, {x: {term(x=1): sign}}, held), wanted):
            last = _last(bent, {x: quantity("x"), bent: {term(bend=1): sign}}, held)
            if last is not None:
                nodes = nodes_inside({x}, last)
                alone = is_private(nodes, last, held) and shape_of(x) == shape_of(last.outputs[0])
                return _Written(x, last, nodes, approximate) if alone else None
    return None


def _last(bent: ir.Value, known: Mapping[ir.Value, Polynomial], held: Container[ir.Value]) -> ir.Node | None:
    """The node that makes the result of what an Erf or a Tanh gives, if it is a GELU's; there is one way to it."""
    y = bent
    for _ in range(_MOST_STEPS):
        readers = y.consumers()
        if not _is_inner(y, held) or len(readers) != 1:
            return None
        y = readers[0].outputs[0]
        made = _polynomial(y, known, held)
        if made is None:
            return None
        if is_same(made, _RESULT):
            return readers[0]
    return None


def _is_inner(value: ir.Value, held: Container[ir.Value]) -> bool:
    return value not in held and not value.is_graph_output()


def _upstream(value: ir.Value, held: Container[ir.Value]) -> list[ir.Value]:
    """What a value is made of by arithmetic, the nearest first."""
    found = {value: 0}
    pending = [value]
    for one in pending:  # grows meanwhile
        node = one.producer()
        if not is_op(node, ARITHMETIC) or found[one] == _MOST_STEPS:
            continue
        new = [v for v in node.inputs if v is not None and v not in found and _number(v, held) is None]
        found.update(dict.fromkeys(new, found[one] + 1))
        pending += dict.fromkeys(new)
    return pending


def _number(value: ir.Value, held: Container[ir.Value]) -> float | None:
    """The number that a value of one element is, if it is fixed in the file and not trained."""
    tensor = fixed_tensor(value)
    return None if tensor is None or value in held or tensor.size != 1 else float(tensor.numpy().reshape(()))


def _polynomial(
    value: ir.Value, known: Mapping[ir.Value, Polynomial], held: Container[ir.Value], steps: int = _MOST_STEPS
) -> Polynomial | None:
    """A value as a polynomial in those that are known; None if it is none, or too many nodes away."""
    if value in known:
        return known[value]
    fixed = _number(value, held)
    if fixed is not None:
        return number(fixed)
    node = value.producer()
    if not is_op(node, ARITHMETIC) or not steps:
        return None
    read = [None if one is None else _polynomial(one, known, held, steps - 1) for one in node.inputs]
    return applied(node.op_type, read)
