"""Commands on a model with an operator whose kernel is in a library of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result

from ckplan.autodiff.registry import collect
from ckplan.cli import cli
from ckplan.errors import EnvironmentUnavailableError
from ckplan.operators import gradients, sessions

LAYERS = 6


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler, cc, to build a library of custom operators")
    target = tmp_path_factory.mktemp("library") / "libfancy.so"
    source = Path(__file__).parent.parent / "operators" / "fancy.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", target, source, "-lm"], check=True, timeout=60)
    return target


@pytest.fixture(autouse=True)
def extended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule for the operator; it and the libraries are forgotten after each test."""
    collect()
    monkeypatch.setattr(sessions, "_LIBRARIES", [])
    monkeypatch.setattr(gradients, "_RULES", {key: list(found) for key, found in gradients._RULES.items()})

    @gradients.rule("Fancy", domain="my.ops")
    def fancy(op, node, dy):
        """The derivative of a tanh times alpha, from its result."""
        alpha = node.attributes["alpha"].as_float()
        t = op.Mul(node.outputs[0], 1 / alpha)
        return [op.Mul(dy[0], op.Mul(alpha, op.Sub(1.0, op.Mul(t, t))))]


def write(folder: Path, shapes: bool = True) -> Path:
    """A chain of products and Fancy nodes, 64 rows of 32."""
    rng = np.random.default_rng(0)
    nodes, weights, declared = [], [], []
    for layer in range(LAYERS):
        last = "x" if layer == 0 else f"a{layer - 1}"
        nodes.append(onnx.helper.make_node("MatMul", [last, f"w{layer}"], [f"h{layer}"], f"matmul{layer}"))
        nodes.append(
            onnx.helper.make_node("Fancy", [f"h{layer}"], [f"a{layer}"], f"fancy{layer}", domain="my.ops", alpha=2.0)
        )
        weights.append(onnx.numpy_helper.from_array(rng.normal(size=(32, 32)).astype(np.float32) / 8, f"w{layer}"))
        declared.append(onnx.helper.make_tensor_value_info(f"a{layer}", onnx.TensorProto.FLOAT, ["batch", 32]))
    last = f"a{LAYERS - 1}"
    graph = onnx.helper.make_graph(
        nodes,
        "fancy",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", 32])],
        [
            declared[-1]
            if shapes
            else onnx.helper.make_tensor_value_info(f"a{LAYERS - 1}", onnx.TensorProto.FLOAT, None)
        ],
        weights,
        value_info=declared[:-1] if shapes else [],
    )
    imports = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("my.ops", 1)]
    path = folder / "fancy.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=imports, ir_version=10), path)
    return path


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments], prog_name="ckplan")


def test_a_plan_is_written_and_kept_with_the_library(tmp_path: Path, library: Path) -> None:
    model, plain, planned = write(tmp_path), tmp_path / "plain.onnx", tmp_path / "planned.onnx"
    sizes = ("--dim", "batch=512", "--loss", "sum-of-squares")
    assert run("grad", model, "-o", plain, *sizes).exit_code == 0
    written = run("rewrite", model, "-o", planned, *sizes, "--strategy", "memory", "--custom-ops", library)
    assert written.exit_code == 0, written.stderr
    repeated = [node.op_type for node in onnx.load(planned).graph.node if "recompute" in str(node.metadata_props)]
    assert "Fancy" in repeated
    proof = run("verify", plain, planned, "--custom-ops", library, "--json")
    assert proof.exit_code == 0, proof.stderr
    found = json.loads(proof.stdout)
    assert found["numerics"]["bitwise_equal"]
    assert found["new"]["peak_activations"] == found["new"]["prediction"]["peak_activations"]
    assert found["activation_ratio"] < 0.9


def test_shapes_are_learnt_with_the_library(tmp_path: Path, library: Path) -> None:
    model = write(tmp_path, shapes=False)
    failed = run("grad", model, "-o", tmp_path / "out.onnx", "--dim", "batch=4")
    assert failed.exit_code == 3
    assert "--custom-ops" in failed.stderr
    done = run("grad", model, "-o", tmp_path / "out.onnx", "--dim", "batch=4", "--custom-ops", library)
    assert done.exit_code == 0, done.stderr
    assert "come from a run in onnxruntime" in done.stderr


def test_a_session_without_the_library_says_which_operator_lacks_a_kernel(tmp_path: Path) -> None:
    failed = run("rewrite", write(tmp_path), "-o", tmp_path / "out.onnx", "--dim", "batch=4", "--strategy", "memory")
    assert failed.exit_code == 3
    assert "give the library of the kernels of my.ops::Fancy with --custom-ops" in failed.stderr
    assert not (tmp_path / "out.onnx").exists()


def test_a_child_process_without_the_library_says_it_too(tmp_path: Path) -> None:
    failed = run("measure", write(tmp_path), "--dim", "batch=4")
    assert failed.exit_code == 3
    assert "give the library of the kernels of my.ops::Fancy with --custom-ops" in failed.stderr


def test_a_library_that_is_not_there(tmp_path: Path) -> None:
    failed = run("measure", write(tmp_path), "--custom-ops", tmp_path / "gone.so")
    assert failed.exit_code == 3
    assert "there is no library" in failed.stderr


def test_a_library_that_is_none(tmp_path: Path) -> None:
    wrong = tmp_path / "text.so"
    wrong.write_text("no library", encoding="utf-8")
    failed = run("measure", write(tmp_path), "--dim", "batch=4", "--custom-ops", wrong)
    assert failed.exit_code == 5
    assert "text.so as a library of custom operators" in failed.stderr
    assert "RegisterCustomOps" in failed.stderr


def test_a_session_after_a_library_that_is_none_goes_without_it(tmp_path: Path) -> None:
    """In Python: every later call of the process failed of it."""
    wrong = tmp_path / "text.so"
    wrong.write_text("no library", encoding="utf-8")
    with pytest.raises(EnvironmentUnavailableError, match=r"text\.so as a library of custom operators"):
        sessions.use_custom_ops(wrong)
    assert sessions.custom_ops() == ()
