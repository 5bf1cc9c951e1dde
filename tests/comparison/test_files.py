from __future__ import annotations

import json
from pathlib import Path

import pytest

from ckplan import __version__
from ckplan.comparison import Settings, Snapshot, is_json, read_snapshots, write_baseline
from ckplan.errors import ModelError, UsageError
from tests.comparison.examples import measured, snapshot

FULL = snapshot(
    ("a", 4),
    ("b", 2),
    recomputed={"c": 3},
    measured=measured(7),
    settings=Settings.of(dims={"n": 2}, shapes={"x": (1, 2)}, strategy="none", loss=("mse",), time_checkpoints="sqrt"),
)


def test_a_baseline_reads_as_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "memory.json"
    sides = {"one": FULL, "two": snapshot(settings=None, fingerprint=None, unplanned=None, overhead=None)}
    write_baseline(sides, path)
    assert read_snapshots(path) == sides
    assert list(read_snapshots(path)) == ["one", "two"]
    lines = path.read_text(encoding="utf-8").splitlines()
    assert sum('"tensor"' in line for line in lines) == 2, "a line for each buffer"
    with pytest.raises(UsageError, match="exists"):
        write_baseline(sides, path)


def test_settings_are_spelled_as_options() -> None:
    assert str(FULL.settings) == "--strategy none --dim n=2 --shape x=1,2 --loss mse --time-checkpoints sqrt"
    assert str(Settings()) == "--strategy auto"
    assert str(Settings.of(inference=True)) == "--inference"
    assert str(Settings.of(dims={"a b": 2}, training=True)) == "--strategy auto --dim 'a b=2' --training"


def test_json_is_told_from_models(tmp_path: Path) -> None:
    model, odd = tmp_path / "model.onnx", tmp_path / "result"
    model.write_bytes(b"\x08\x0a")
    odd.write_text('\n {"schema": 1}')
    assert not is_json(model)
    assert is_json(odd)
    assert is_json(tmp_path / "missing.json")
    assert not is_json(tmp_path / "missing.onnx")


def damaged(**changes: object) -> str:
    data = {"schema": 1, "kind": "ckplan baseline", "models": {"one": FULL.to_json()}}
    return json.dumps({**data, **changes})


def entry(**changes: object) -> str:
    return damaged(models={"one": {**FULL.to_json(), **changes}})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON: "),
        ("[1]", "is neither a baseline nor a result of ckplan"),
        ("{}", "is neither a baseline nor a result of `ckplan compare`, `analyze`"),
        (damaged(schema=7), f"has schema 7, ckplan {__version__} reads 1; save it again with this version"),
        (damaged(models={}), "holds no model"),
        (damaged(models=3), "is damaged: "),
        (damaged(models={"one": {}}), "is damaged: it has no 'fingerprint'"),
        (entry(peak_activations="many"), "is damaged: "),
        (entry(at_peak=[{"tensor": "a"}]), "is damaged: it has no 'bytes'"),
        (entry(at_peak=[{"bytes": 1, "nope": 2}]), "is damaged: "),
        (entry(settings={"nope": 1}), "is damaged: "),
        (entry(fingerprint=3), "is damaged: "),
        ("[" * 100_000, "is not JSON: "),
    ],
)
def test_damaged_files_are_one_line(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "memory.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ModelError) as error:
        read_snapshots(path)
    assert said in str(error.value)
    assert "memory.json" in str(error.value)


def test_a_missing_baseline_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(
        ModelError, match=r"; make a baseline with `ckplan compare MODEL --save-baseline '.*/my memory\.json'"
    ):
        read_snapshots(tmp_path / "my memory.json")
    with pytest.raises(ModelError, match="cannot read"):
        read_snapshots(tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [("tensor", ["a"]), ("bytes", "8"), ("bytes", 1e999), ("node", None), ("role", {}), ("shape", 3)],
)
def test_a_forged_buffer_is_named(tmp_path: Path, key: str, value: object) -> None:
    path = tmp_path / "baseline.json"
    write_baseline({"m": FULL}, path)
    data = json.loads(path.read_text())
    data["models"]["m"]["at_peak"][0][key] = value
    path.write_text(json.dumps(data))
    with pytest.raises(ModelError, match=rf"is damaged: `{key}` is"):
        read_snapshots(path)


def test_a_baseline_of_before_calls_what_is_recomputed_by_another_name() -> None:
    data = FULL.to_json()
    before = {**data, "recomputed": data.pop("recomputed_tensors")}
    assert Snapshot.from_json(before) == FULL
