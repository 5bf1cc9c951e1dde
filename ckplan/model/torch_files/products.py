"""What a layer made of a state that is learnt, computed in the graph again: the first step of a recurrent cell.

Of a file with a fixed batch, the optimiser of torch's default exporter computes ``W h + b`` of the state ``h`` that a
cell begins with, and later steps read ``W`` and ``b`` themselves. Where nothing else reads ``h``, it is gone, and is
found as what solves these equations. In a GRU and an LSTM there are more of them than ``h`` has numbers. In a plain
cell there are as many, so that any product has a state, and only the later readers of ``W`` tell which way it lies.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ckplan.model.inference.infer import static_shape
from ckplan.model.torch_files.exporter_metadata import is_product_name
from ckplan.model.torch_files.functions import Array, add_parameter, array_of, make_instead
from ckplan.model.torch_files.repeats import ROW
from ckplan.operators.matching import is_op

_ULPS = 256
"""How far a product may lie from one of another library, in units of the last place of its largest number."""

_WORST = 1e4
"""The condition of a square weight up to which the state that it was multiplied by is found from the product."""

_LARGEST = 1 << 22
"""Of how many numbers a weight may be for its equations to be solved."""


def put_product(graph: ir.Graph, value: ir.Value, sources: Sequence[ir.Value], state_is_gone: bool) -> bool:
    """Put a product of a state and a weight, plus a bias, in the place of an initializer, if it holds that.

    Args:
        graph: in whose initializers it is.
        value: ``[samples, results]``, computed of the sources, perhaps of a state that is gone.
        sources: those that are in the file: a weight, perhaps a bias, and perhaps the state, ``[samples, size]``.
        state_is_gone: whether one parameter that it was computed of is not.

    Returns:
        Whether it does. Not if what the state was cannot be known.
    """
    if not is_product_name(str(value.name).removesuffix(ROW)):
        return False
    result = static_shape(value) or ()
    by_rank = {rank: [one for one in sources if len(static_shape(one) or ()) == rank] for rank in (1, 2)}
    if len(result) != 2 or len(by_rank[1]) > 1 or len(sources) != len(by_rank[1]) + len(by_rank[2]):
        return False
    bias = by_rank[1][0] if by_rank[1] else None
    wanted = _numbers(value) - (0 if bias is None else _numbers(bias))
    for weight in by_rank[2]:
        states = [one for one in by_rank[2] if one is not weight]
        for turned in (False, True):
            matrix = _numbers(weight) if turned else _numbers(weight).T  # [size, results]
            if matrix.shape[1] != result[1] or len(states) > 1:
                continue
            state = states[0] if states else None
            if state is None and state_is_gone and (matrix.shape[0] < result[1] or turned is _is_read_turned(weight)):
                state = _solved(graph, value, matrix, wanted)
            if state is not None and _gives(_numbers(state), matrix, wanted):
                _put(graph, value, [state, weight, *([] if bias is None else [bias])], turned)
                return True
    return False


def _numbers(value: ir.Value) -> Array:
    return array_of(value).astype(np.float64)


def _gives(state: Array, matrix: Array, wanted: Array) -> bool:
    if state.shape != (len(wanted), len(matrix)):
        return False
    nearest = _ULPS * float(np.finfo(np.float32).eps) * float(np.abs(wanted).max(initial=0))
    return bool((np.abs(state @ matrix - wanted) <= nearest).all())


def _is_read_turned(weight: ir.Value) -> bool | None:
    """Whether products read a weight as ``[size, results]``, and not as torch has it; None where they do not agree."""
    found = {
        not use.node.attributes.get_int("transB", 0)
        for use in weight.uses()
        if is_op(use.node, ("Gemm", "MatMul")) and use.idx == 1
    }
    return found.pop() if len(found) == 1 else None


def _solved(graph: ir.Graph, value: ir.Value, matrix: Array, wanted: Array) -> ir.Value | None:
    """The state that gives a product, as a parameter; None where several do, or none, or it cannot be told well."""
    size, results = matrix.shape
    if matrix.size > _LARGEST:
        return None
    found, _, rank, sizes = np.linalg.lstsq(matrix.T, wanted.T, rcond=None)
    if size > results or rank < size or value.dtype is None or not _gives(found.T, matrix, wanted):
        return None
    if size == results and sizes[0] > _WORST * sizes[-1]:
        return None
    return add_parameter(graph, value, "state", found.T.astype(value.dtype.numpy()))


def _put(graph: ir.Graph, value: ir.Value, operands: list[ir.Value], turned: bool) -> None:
    make_instead(graph, value, ir.node("Gemm", operands, {"transB": int(not turned)}))
