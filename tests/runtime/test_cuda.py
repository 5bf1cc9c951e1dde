"""Plans for CUDA's kernels, of which fewer work in place. No GPU is needed to make them."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

import ckplan
from ckplan.operators.table import STANDARD

KEYS = ("in_place", "in_place_on_cuda")
ROWS, WIDTH, WORDS = 64, 16, 512
LOGITS = 4 * ROWS * WORDS


@pytest.fixture
def head(tmp_path: Path) -> Path:
    """A loss head: its logits are by far the largest tensor."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["logits"])],
        "head",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [ROWS, WIDTH])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [ROWS, WORDS])],
        [helper.make_tensor("w", TensorProto.FLOAT, [WIDTH, WORDS], [0.01] * (WIDTH * WORDS))],
    )
    path = tmp_path / "head.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


def test_a_softmax_has_a_buffer_of_its_own(head: Path) -> None:
    """As a GPT-2 on an H100 takes its logits once more than on a CPU."""
    cpu, cuda = (ckplan.open_model(head, loss=("cross-entropy",), device=device) for device in ("cpu", "cuda"))
    more = cuda.baseline.peak_activations - cpu.baseline.peak_activations
    assert LOGITS <= more < 1.1 * LOGITS
    assert ckplan.open_model(head, loss=("cross-entropy",)).baseline == cpu.baseline, "plans are for the CPU by default"


def test_what_works_in_place_on_cuda_does_so_on_a_cpu() -> None:
    on_cpu, on_cuda = ({name for name, known in STANDARD.items() if getattr(known, key)} for key in KEYS)
    assert {"Relu", "Tanh"} <= on_cuda < on_cpu
    assert {"Softmax", "Cast", "ScatterElements"} <= on_cpu - on_cuda


def test_a_step_that_is_there_stays_the_same(head: Path) -> None:
    step = ckplan.open_model(head, loss=("cross-entropy",), device="cuda")
    assert ckplan.open_model(step) is step


def test_a_budget_is_kept_by_those_kernels() -> None:
    model = Path(__file__).resolve().parents[2] / "sample_models" / "gpt_tiny.onnx"
    cpu, cuda = (ckplan.rewrite(model, dims={"batch": 4}, budget="40%", device=device) for device in ("cpu", "cuda"))
    assert cuda.before.peak_activations > cpu.before.peak_activations
    assert cuda.budget is not None
    assert cuda.after.peak_activations <= cuda.budget
    found = ckplan.verify(cpu.step.ordered, cuda, device="cpu")
    assert not found.problems
    assert found.new.prediction.peak_activations == cuda.after.peak_activations
    assert (found.new.peak_activations or 0) <= cuda.after.peak_activations
