"""Softmax behind a mask of moderate numbers, without the denormal numbers that it would make.

Windowed attention masks by adding -100 to a score, and e^-100 is a denormal number: on x86 each operation with one
traps into microcode. Such a softmax of 49 x 49 windows takes eight times as long as another, the product with the
values ten times, and so do both products of the backward pass. So no score counts as further below the largest of its
row than e^-50 tells. That is 2e-22, of which a sum of ones in single precision knows nothing, and 2e-22 times a value
and a gradient is a normal number still.

Far lower masks, such as the lowest number there is, give zeros, and yet MLAS passes through denormal numbers to get
there (``core/mlas/lib/compute.cpp`` takes e to no less than -88.4): a softmax behind a causal mask takes seven times as
long as one without. A few nodes more take two and a half times as long, so they are worth it where a fair share of the
scores is masked.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.attention.fixed import Fixed, certainly, fixed_arrays
from ckplan.autodiff.builder import Builder, Gradients
from ckplan.autodiff.composites import DOMAIN, outline
from ckplan.autodiff.idioms.row_maxima import LEAST, row_maxima
from ckplan.autodiff.reading import attr_int, required_input, shape_of
from ckplan.autodiff.registry import rule
from ckplan.autodiff.rules.softmaxes.softmax import from_probabilities
from ckplan.operators.matching import is_op

_LOWEST, _HIGHEST = -150.0, -60.0
"""Masks between these make probabilities denormal numbers: e^-87 is the smallest normal one, e^-104 the smallest of
all, and scores differ by some tens themselves."""
_ON_THE_WAY = frozenset({"Add", "Expand", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze", "Where"})
_MOST_STEPS = 8
"""Nodes between a mask and a Softmax, at most."""
_FAIR_SHARE = 0.2
"""Of the scores, masked so low that nothing is left of them: below, exponentials cost less than the nodes that go
around them."""
_LONG_ROW = 32
"""Scores of a row from which on such nodes are put before a mask that lets nothing through: a plan that makes scores
again may keep the largest of each row, which then takes a thirtieth of what they take, or less."""
_DEPTH = 50.0
"""How far below the largest of its row a score counts, at most."""


def outline_masked_softmaxes(op: Builder, held: Container[ir.Value] = ()) -> None:
    """Put composites without denormal numbers in the place of each Softmax behind such a mask, in single precision.

    Args:
        op: builder of the forward graph.
        held: values that gradients are asked for, or that are differentiated; they stay what they are.
    """
    fixed = fixed_arrays(op, held)
    for softmax in list(op.graph):
        if not is_op(softmax, "Softmax"):
            continue
        x, y = softmax.inputs[0], softmax.outputs[0]
        if y in held or y.is_graph_output() or y.dtype != ir.DataType.FLOAT or x is None:
            continue
        axis = attr_int(softmax, "axis", -1)
        moderate = any(_is_moderate(mask) for mask in _constants(fixed, x, _MOST_STEPS))
        long = shape_of(x)[axis] >= _LONG_ROW
        if not moderate and not (long and _lowest_share(fixed, x, _MOST_STEPS) >= _FAIR_SHARE):
            continue
        with op.scope(str(softmax.name), "forward", before=softmax), op.recording() as nodes:
            lifted = op.Max(x, _floors(op, x, axis))
        softmax.replace_input_with(0, lifted)
        outline(op, "MaskedSoftmax", [*nodes, softmax], [x], [y], {"axis": axis})


def _floors(op: Builder, x: ir.Value, axis: int) -> ir.Value:
    """The lowest score of each row that counts; that of a row of -inf, whose probabilities are not numbers, is -inf."""
    if axis not in (-1, len(shape_of(x)) - 1):
        return op.Sub(op.ReduceMax(x, np.asarray([axis]), keepdims=1), _DEPTH)
    largest = row_maxima(op, x)
    floors = op.Sub(largest, _DEPTH)
    return op.Where(op.Equal(largest, LEAST), np.float32(-np.inf), floors)


def _constants(fixed: Fixed, value: ir.Value, steps: int) -> Iterator[np.ndarray]:
    """Tensors fixed in the file that are added to a value, or chosen for it."""
    known = fixed(value)
    if known is not None:
        yield known
    node = value.producer()
    if not is_op(node, _ON_THE_WAY) or not steps:
        return
    for read in node.inputs:
        if read is not None and read.dtype == ir.DataType.FLOAT:
            yield from _constants(fixed, read, steps - 1)


def _is_moderate(mask: np.ndarray) -> bool:
    return bool(np.any((mask > _LOWEST) & (mask < _HIGHEST)))


def _lowest_share(fixed: Fixed, value: ir.Value | None, steps: int) -> float:
    """The share of scores that a mask takes to less than `_LOWEST` whatever is fed; the largest of several masks.

    It tells what exponentials will cost, and may be wrong by a mask that is overlooked; what nobody needs to compute
    has to be certain (`ckplan.autodiff.attention.hidden`).
    """
    known = fixed(value)
    if known is not None:
        return float(np.mean(known < _LOWEST)) if known.size else 0.0
    node = None if value is None else value.producer()
    if not is_op(node, _ON_THE_WAY) or not steps:
        return 0.0
    read = [v for v in node.inputs if v is not None and v.dtype == ir.DataType.FLOAT]
    shares = [_lowest_share(fixed, v, steps - 1) for v in read]
    if node.op_type != "Where" or len(shares) < 2:
        return max(shares, default=0.0)
    chosen = certainly(required_input(node, 0), fixed)
    return sum(share * float(np.mean(there)) for share, there in zip(shares, chosen, strict=True))


@rule("MaskedSoftmax", domain=DOMAIN, leading=1)
def masked_softmax(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """As that of Softmax."""
    return [from_probabilities(op, node.outputs[0], dy[0], attr_int(node, "axis", -1))]
