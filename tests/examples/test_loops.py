"""The loops in all languages see the same losses, over the same files."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ckplan
from examples.digits.train import FORWARD
from examples.loops.batches import write_batches
from examples.loops.safetensors import tensors
from examples.loops.train import train
from tests.examples.csharp import compiled
from tests.examples.toolchains import compiler, headers, native_library, node, node_package

LOOPS = Path(__file__).parents[2] / "examples" / "loops"
STEPS = 50
MAX_LINES = 40
DIGITS = {"dims": {"batch": 60}, "loss": "cross-entropy", "training": True, "optimizer": "adam:learning_rate=0.002"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the digits example, with a plan, and its batches."""
    folder = tmp_path_factory.mktemp("loops")
    ckplan.artifacts(FORWARD, folder / "planned", budget="75%", **DIGITS)
    write_batches(folder / "batches.safetensors")
    return folder


@pytest.fixture(scope="module")
def losses(folder: Path) -> list[float]:
    return list(train(folder / "planned", tensors((folder / "batches.safetensors").read_bytes()), STEPS))


def run(*words: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300, check=False)


def printed(done: subprocess.CompletedProcess[str]) -> list[float]:
    assert done.returncode == 0, done.stderr
    return [float(line) for line in done.stdout.splitlines()]


def in_node(package: str, made: Path) -> subprocess.CompletedProcess[str]:
    batches = made.parent / "batches.safetensors"
    place = node_package(package).parent
    return run("node", LOOPS / "node.mjs", made, batches, str(STEPS), package, folder=place)


def test_python_learns_the_same_with_and_without_a_plan(folder: Path, losses: list[float], tmp_path: Path) -> None:
    ckplan.artifacts(FORWARD, tmp_path / "plain", **DIGITS)
    batches = tensors((folder / "batches.safetensors").read_bytes())
    np.testing.assert_allclose(list(train(tmp_path / "plain", batches, STEPS)), losses, rtol=0, atol=1e-6)
    assert len(losses) == STEPS
    assert losses[-1] < 0.5 < 2 < losses[0]


def test_python_is_a_program(folder: Path, losses: list[float]) -> None:
    words = (sys.executable, "-m", "examples.loops.train", folder / "planned", folder / "batches.safetensors", "3")
    assert printed(run(*words, folder=LOOPS.parents[1])) == pytest.approx(losses[:3], rel=0, abs=1e-6)


@pytest.mark.parametrize("package", ["onnxruntime-node", "onnxruntime-web"])
def test_node(folder: Path, losses: list[float], package: str) -> None:
    """onnxruntime-web is the engine of browsers, WebAssembly, in node."""
    np.testing.assert_allclose(printed(in_node(package, folder / "planned")), losses, rtol=0, atol=1e-5)


@pytest.mark.parametrize("gpu", [True, False])
def test_a_browser_with_webgpu_uses_it(gpu: bool) -> None:
    script = f"""
        Object.defineProperty(globalThis, "navigator", {{ value: {json.dumps({"gpu": {}} if gpu else {})} }});
        const {{ train }} = await import("{(LOOPS / "train.mjs").as_uri()}");
        const read = async (name) => new TextEncoder().encode(name === "manifest.json" ? MANIFEST : "").buffer;
        const MANIFEST = JSON.stringify({{ files: {{ training: {{ sha256: "{hashlib.sha256().hexdigest()}" }} }} }});
        const create = async (file, options) => {{ throw new Error(JSON.stringify(options)); }};
        const losses = train({{ InferenceSession: {{ create }} }}, read, null, 1);
        await losses.next().catch((error) => console.log(error.message));
    """
    done = run(node(), "--input-type=module", "--eval", script, folder=LOOPS)
    assert json.loads(done.stdout) == ({"executionProviders": ["webgpu", "wasm"]} if gpu else {}), done.stderr


def test_cpp(folder: Path, losses: list[float], tmp_path: Path) -> None:
    program, linked = tmp_path / "train", native_library(tmp_path, "libonnxruntime.so.1")
    words = ("-std=c++17", f"-I{headers()}", LOOPS / "train.cpp", linked, f"-Wl,-rpath,{tmp_path}", "-o", program)
    done = run(compiler(), *words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    arguments = folder / "planned", folder / "batches.safetensors", str(STEPS)
    np.testing.assert_allclose(printed(run(program, *arguments, folder=tmp_path)), losses, rtol=0, atol=1e-5)
    missing = run(program, tmp_path / "none", *arguments[1:], folder=tmp_path)
    assert (missing.returncode, missing.stdout) == (1, "")
    assert missing.stderr == f"cannot read {tmp_path / 'none'}/checkpoint.safetensors\n"


def test_csharp(folder: Path, losses: list[float], tmp_path: Path) -> None:
    program = ["env", f"LD_LIBRARY_PATH={tmp_path}", *compiled([LOOPS / "Train.cs", LOOPS / "Tensors.cs"], tmp_path)]
    arguments = folder / "planned", folder / "batches.safetensors", str(STEPS)
    np.testing.assert_allclose(printed(run(*program, *arguments, folder=tmp_path)), losses, rtol=0, atol=1e-5)
    missing = run(*program, tmp_path / "none", *arguments[1:], folder=tmp_path)
    assert (missing.returncode, missing.stdout) == (1, "")
    assert len(missing.stderr.splitlines()) == 1
    assert "checkpoint.safetensors" in missing.stderr


@pytest.mark.parametrize("damage", ["other", "missing"])
@pytest.mark.parametrize("language", ["python", "node"])
def test_files_that_do_not_belong_together(folder: Path, tmp_path: Path, damage: str, language: str) -> None:
    made = Path(shutil.copytree(folder / "planned", tmp_path / "made"))
    if damage == "other":
        manifest = json.loads((made / "manifest.json").read_text())
        manifest["files"]["training"]["sha256"] = "0" * 64
        (made / "manifest.json").write_text(json.dumps(manifest))
    else:
        (made / "training.onnx").unlink()
    shutil.copy(folder / "batches.safetensors", tmp_path)
    if language == "python":
        words = (sys.executable, "-m", "examples.loops.train", made, tmp_path / "batches.safetensors", "3")
        done = run(*words, folder=LOOPS.parents[1])
    else:
        done = in_node("onnxruntime-node", made)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert "training.onnx" in line


@pytest.mark.parametrize("name", ["train.py", "train.mjs", "train.cpp", "Train.cs"])
def test_a_loop_is_short(name: str) -> None:
    assert len((LOOPS / name).read_text(encoding="utf-8").splitlines()) <= MAX_LINES
