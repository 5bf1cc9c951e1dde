"""Plans for CUDA's kernels, of which fewer work in place. No GPU is needed to make them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

import ckplan
from ckplan.cli import cli
from ckplan.meter.facts import file_facts, read_model
from ckplan.operators.table import STANDARD
from ckplan.runtime.cuda import CUDA

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


def convolution(op_type: str, shape: list[int], filters: list[int], result: list[int], stride: int) -> ir.Node:
    """A convolution of these sizes; its paddings are left out."""
    read, weight, made = (
        ir.Value(name=name, shape=ir.Shape(dims), type=ir.TensorType(ir.DataType.FLOAT))
        for name, dims in (("x", shape), ("w", filters), ("y", result))
    )
    return ir.Node("", op_type, [read, weight], [ir.AttrInt64s("strides", [stride, stride])], outputs=[made])


@pytest.mark.parametrize(
    ("op_type", "shape", "filters", "result", "stride", "measured"),
    [
        ("Conv", [64, 3, 224, 224], [64, 3, 7, 7], [64, 64, 112, 112], 2, 244_093_952),
        ("Conv", [16, 64, 256, 256], [32, 64, 3, 3], [16, 32, 256, 256], 1, 402_727_168),
        ("ConvTranspose", [16, 64, 128, 128], [64, 32, 2, 2], [16, 32, 256, 256], 2, 201_359_616),
        ("Conv", [64, 64, 56, 56], [64, 64, 1, 1], [64, 64, 56, 56], 1, 512),
        ("ConvTranspose", [64, 512, 28, 28], [512, 256, 1, 1], [64, 256, 56, 56], 2, 308_281_344),
    ],
)
def test_cudnn_turns_what_a_convolution_reads_and_makes(
    op_type: str, shape: list[int], filters: list[int], result: list[int], stride: int, measured: int
) -> None:
    """Workspaces as an H100 had them, of a ResNet-50 and a U-Net."""
    found = CUDA.workspace(convolution(op_type, shape, filters, result, stride), 1)
    assert abs(found - measured) < 2**20


def test_a_training_graph_is_ordered_for_those_kernels(head: Path, tmp_path: Path) -> None:
    words = ["grad", str(head), "--loss", "cross-entropy", "--json"]
    found = []
    for device in ("cpu", "cuda"):
        out = tmp_path / f"{device}.onnx"
        done = CliRunner().invoke(cli, [*words, "-o", str(out), "--device", device])
        assert done.exit_code == 0, done.output
        found.append(file_facts(read_model(out)).prediction.peak_activations)
    assert LOGITS <= found[1] - found[0] < 1.1 * LOGITS


def test_gradients_are_written_for_those_kernels() -> None:
    """A Pad along the second of four axes is one of the last two axes of a view."""
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
    g (float[2, 64, 8, 64] x) => (float[2, 64, 8, 64] y) <int64[1] start = {8}, int64[1] end = {40},
    int64[1] axis = {1}> {
        a = Mul(x, w)
        b = Slice(a, start, end, axis)
        c = ReduceSum<keepdims = 1>(b)
        y = Add(a, c)
    }""")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.linspace(0, 1, 64, dtype=np.float32), "w"))
    steps = [ckplan.open_model(model, loss="mse", device=device) for device in ("cpu", "cuda", "auto")]
    ranks = [
        [len(node.inputs[0].shape) for node in step.model.graph if node.op_type == "Pad" and node.inputs[0]]
        for step in steps
    ]
    assert ranks == [[4], [2], [4]]


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
