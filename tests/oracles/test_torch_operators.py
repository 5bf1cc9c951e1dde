"""The oracle's operators against the conformance cases that the onnx package carries for each operator."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

pytest.importorskip("torch", reason="the torch oracle needs torch; install ckplan[oracle]")

from onnx.backend.test.case.node import collect_testcases

from tests.oracles.torch_oracle import SUPPORTED, torch_values

LEFT_OUT = (
    "*uint*",  # torch has no arithmetic of most unsigned types
    "test_cast*",  # all floating-point types are one to the oracle, others round
    "test_resize_*cubic*",
    "test_resize_*antialias*",
    "test_resize_*crop*",
    "test_resize_*axes*",
    "test_resize_*not_*er",
    "test_resize_*pytorch_half_pixel",
    "test_resize_*half_pixel_symmetric",
    "test_resize_*nearest_*",
    "test_resize_*sample_scales_nearest",
    "test_resize_*sample_sizes_nearest",
    "test_resize_downsample_scales_linear*",
    "test_convtranspose_output_shape",
    "test_convtranspose_kernel_shape",
    "test_convtranspose_autopad_same",
    "test_maxpool_with_argmax*",
    "test_argmax*select_last_index",
    "test_lstm_with_peepholes",
    "test_training_dropout*",  # draws its own mask
    "test_col2im_5d",
    "test_dft*opset19",  # the axis was an attribute
    "test_maxunpool_export_with_output_shape",
    "test_top_k_same_values*",  # torch chooses otherwise
    "test_reduce_*empty_set*",  # torch has no maximum of nothing
)
"""What the oracle does not do, by name of the case; it says so with NotImplementedError or torch does."""


@dataclass(frozen=True)
class Case:
    """One model with its inputs and the outputs that it should have."""

    name: str
    model: onnx.ModelProto
    inputs: Sequence[NDArray[Any]]
    outputs: Sequence[NDArray[Any]]


def _cases() -> list[Case]:
    """Every case that the oracle should pass: supported operators, numpy's own types, semantics as in opset 21."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some cases overflow on purpose while they are computed
        found = collect_testcases(None)
    cases = [Case(item.name, item.model, *item.data_sets[0]) for item in found if item.model and item.data_sets]
    return [case for case in cases if _is_for_the_oracle(case)]


def _is_for_the_oracle(case: Case) -> bool:
    types = {node.op_type for node in case.model.graph.node}
    opset = case.model.opset_import[0].version
    if not types <= SUPPORTED or case.model.functions or any(entry.domain for entry in case.model.opset_import):
        return False
    if opset < 13 or (opset < 18 and any(name.startswith("Reduce") for name in types)):
        return False  # axes were attributes
    kinds = {np.asarray(array).dtype.kind for array in (*case.inputs, *case.outputs)}
    return kinds <= set("fib") and not any(fnmatch(case.name, pattern) for pattern in LEFT_OUT)


CASES = _cases()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case_of_the_onnx_package(case: Case) -> None:
    names = [value.name for value in case.model.graph.input]
    results = torch_values(case.model, dict(zip(names, case.inputs, strict=True)))
    for result, wanted in zip(results.values(), case.outputs, strict=True):
        array = np.asarray(wanted)
        assert result.shape == array.shape
        half = array.dtype == np.float16
        np.testing.assert_allclose(result.astype(float), array.astype(float), rtol=2e-3 if half else 1e-3, atol=1e-5)


def test_most_supported_operators_have_a_case() -> None:
    covered = {node.op_type for case in CASES for node in case.model.graph.node}
    assert SUPPORTED - covered <= {"And", "Not", "Or", "Cast", "CastLike"}


@pytest.mark.parametrize(
    ("reduction", "wanted"), [("SumSquare", 9), ("L1", 3), ("L2", 3), ("Sum", -3), ("LogSumExp", -3), ("Prod", -3)]
)
def test_what_is_reduced_may_be_a_scalar(reduction: str, wanted: float) -> None:
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21]> g (float x) => (float y) {{ y = Reduce{reduction}<keepdims=0>(x) }}'
    )
    (result,) = torch_values(model, {"x": np.array(-3, np.float32)}).values()
    assert result.shape == ()
    np.testing.assert_allclose(result, wanted)
