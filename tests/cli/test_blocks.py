"""What a plan keeps and recomputes is told by the blocks of the network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.test_commands import run

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def gpt() -> Path:
    return ROOT / "sample_models" / "gpt_tiny.onnx"


def test_layers_and_groups_of_a_rewritten_file(gpt: Path, tmp_path: Path) -> None:
    result = run("rewrite", gpt, "-o", tmp_path / "out.onnx", "--strategy", "memory", "--json")
    blocks = json.loads(result.stdout)["blocks"]
    assert blocks["strategy"] == "memory"
    (layer,) = blocks["layers"]
    assert (layer["name"], layer["count"]) == ("LayerNormalization+Gemm+FusedMatMul+Where+…", 6)
    assert layer["recomputed"] > 0
    assert layer["extra_seconds"] > 0
    softmax = next(group for group in blocks["groups"] if group["name"] == "FusedMatMul+Where+Softmax")
    assert softmax["count"] == 6
    # 8 x 4 heads x 64 x 64 floats in each of six layers, kept or recomputed, and nothing else of the block.
    assert softmax["kept"] + softmax["recomputed"] >= 6 * 8 * 4 * 64 * 64 * 4
    assert any("Softmax" in name for name in softmax["tensors"]["recomputed"] + softmax["tensors"]["kept"])


def test_without_recomputation_all_is_kept(gpt: Path, tmp_path: Path) -> None:
    result = run("plan", gpt, "-o", tmp_path / "plan.json", "--strategy", "none", "--json")
    blocks = json.loads(result.stdout)["blocks"]
    assert not any(group["recomputed"] or group["extra_seconds"] for group in blocks["groups"])
    assert sum(group["kept"] for group in blocks["groups"]) > 10 * 2**20
    assert "blocks" not in json.loads((tmp_path / "plan.json").read_text())


@pytest.mark.parametrize("command", ["plan", "rewrite", "analyze"])
def test_people_get_tables(command: str, gpt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the name of the file is told in full, however long
    output = [] if command == "analyze" else ["-o", "out"]
    result = run(command, gpt, *output, "--strategy", "memory")
    assert result.exit_code == 0, result.stderr
    heading, *_ = [line for line in result.stdout.splitlines() if line.startswith("Repeated layers")]
    assert heading == "Repeated layers: kept for the backward pass and recomputed by `memory`"
    assert "FusedMatMul+Where+Softmax" in result.stdout
    # The result in one line is never folded, so that it can be searched.
    tables = [line for line in result.stdout.splitlines() if not line.startswith("out: predicted")]
    assert max(map(len, tables)) <= 80


def test_a_model_without_layers_has_groups_only(model: Path, tmp_path: Path) -> None:
    result = run("rewrite", model, "-o", tmp_path / "out.onnx", "--strategy", "none")
    assert "Repeated layers" not in result.stdout
    assert "MatMul+Tanh" in result.stdout
