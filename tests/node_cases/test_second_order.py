"""Second derivatives of single operators: the training graph is differentiated again, along a fixed direction.

The product of Hessian and vector is compared with differences of the first gradients. Where no gradient of a gradient
exists, the first gradients must not change along the direction.
"""

from __future__ import annotations

import glob
import zlib
from collections.abc import Mapping

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ckplan.autodiff import TrainingGraph, build_training_graph
from ckplan.errors import CkplanError, UnsupportedOperatorsError
from ckplan.model.loading import normalise
from tests.node_cases.cases import Case
from tests.node_cases.functions import by_onnxruntime, by_reference
from tests.node_cases.prepare import LOSS, Prepared, Unusable, prepare
from tests.node_cases.test_node_cases import chosen

_STEP = {np.dtype(np.float64): 1e-5, np.dtype(np.float32): 1e-2}
_NEAR = {np.dtype(np.float64): 1e-4, np.dtype(np.float32): 3e-2}
_EDGE = {"test_acosh_example", "test_operator_pow", "test_operator_sqrt"}
"""Cases with an input at the edge of the operator's domain, where a step leads outside."""

Arrays = dict[str, np.ndarray]


def first_order(prepared: Prepared) -> TrainingGraph:
    forward = normalise(ir.from_proto(prepared.model)).model
    present = {str(value.name) for value in forward.graph.initializers.values()}
    wrt = [glob.escape(name) for name in prepared.parameters if name in present]
    if not wrt:
        pytest.skip("no first derivative: no parameter is floating-point")
    return build_training_graph(forward, loss=LOSS, wrt=wrt)


def second_order(training: TrainingGraph) -> TrainingGraph | None:
    """The training graph of the training graph; None where its gradients depend on no parameter."""
    try:
        return build_training_graph(training.model, grad_ys=list(training.gradients.values()), unused="zero")
    except UnsupportedOperatorsError:
        raise
    except CkplanError as error:
        if "no parameter" in str(error) or "no node of the model reads" in str(error):
            return None
        raise


def run(training: TrainingGraph, feeds: Mapping[str, np.ndarray]) -> Arrays:
    """The gradients by parameter."""
    proto = ir.to_proto(training.model)
    kinds = {value.name: value.type.tensor_type.elem_type for value in proto.graph.input}
    typed = {
        name: np.asarray(feeds[name]).astype(onnx.helper.tensor_dtype_to_np_dtype(kind))
        for name, kind in kinds.items()
        if name in feeds
    }
    try:
        found = by_reference(proto)(typed)
    except Exception as error:  # the evaluator knows no Scan that runs backwards, for example
        try:
            found = by_onnxruntime(proto)(typed)
        except Exception:
            pytest.skip(f"neither evaluator runs the graph: {' '.join(str(error).split())[:100]}")
    by_name = dict(zip([output.name for output in proto.graph.output], found, strict=True))
    return {name: np.asarray(by_name[gradient], np.float64) for name, gradient in training.gradients.items()}


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in chosen() if case.name not in _EDGE], ids=lambda case: case.name)
def test_second_derivatives(case: Case) -> None:
    try:
        prepared = prepare(case)
        training = first_order(prepared)
    except (Unusable, CkplanError) as error:
        pytest.skip(f"no first derivative: {error}")
    second = second_order(training)
    rng = np.random.default_rng(zlib.crc32(case.name.encode()))
    start = {name: prepared.parameters[name] + 1e-3 * rng.uniform(-1, 1, prepared.parameters[name].shape)
             for name in training.gradients}  # fmt: skip
    along = {name: rng.uniform(-1, 1, array.shape) for name, array in start.items()}
    double = all(training.model.graph.initializers[name].dtype == ir.DataType.DOUBLE for name in start)
    double &= not any(value.dtype == ir.DataType.FLOAT for node in training.model.graph for value in node.outputs)
    kind = np.dtype(np.float64 if double else np.float32)
    step = _STEP[kind]
    ends = [run(training, {name: start[name] + sign * step * along[name] for name in start}) for sign in (1, -1)]
    slopes = {name: (ends[0][name] - ends[1][name]) / (2 * step) for name in start}
    found = {name: np.zeros(array.shape) for name, array in start.items()}
    if second is not None:
        given = {f"{training.gradients[name]}_given_grad": array for name, array in along.items()}
        found |= run(second, {**start, **given})
    size = max(float(np.abs(array).max(initial=0)) for array in (*slopes.values(), *ends[0].values()))
    for name, array in slopes.items():
        np.testing.assert_allclose(found[name], array, rtol=0, atol=_NEAR[kind] * (size + 1e-3), err_msg=name)
