"""Data files that a killed writer left go with its folder, if no model names them; nothing else does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ckplan.isolation.claims import _NOTE, claim, remove_claimed


def left(place: Path, model: str = "model.onnx") -> Path:
    """The folder of a killed writer, that claims a file that it made and one that it was to remove."""
    folder = place / ".ckplan-abcdefgh.tmp"
    folder.mkdir()
    (folder / "model.onnx.1.data").write_bytes(b"new")
    (place / "model.onnx.data").write_bytes(b"old")
    claim(folder, model, [folder / "model.onnx.1.data", place / "model.onnx.data"])
    (folder / "model.onnx.1.data").rename(place / "model.onnx.1.data")
    return folder


@pytest.mark.parametrize("model", ["model.onnx", "model.bin"])
@pytest.mark.parametrize("named", ["model.onnx.data", "model.onnx.1.data"])
def test_what_no_model_names_is_removed(tmp_path: Path, named: str, model: str) -> None:
    folder = left(tmp_path, model)
    (tmp_path / model).write_bytes(b"\x0a" + named.encode() + b"\x12")
    remove_claimed(folder)
    assert {file.name for file in tmp_path.iterdir() if file != folder} == {model, named}


def test_what_another_model_names_stays(tmp_path: Path) -> None:
    folder = left(tmp_path)
    (tmp_path / "other.onnx").write_bytes(b"model.onnx.data and model.onnx.1.data")
    remove_claimed(folder)
    assert len(list(tmp_path.iterdir())) == 4


def test_a_file_of_the_same_name_that_came_later_stays(tmp_path: Path) -> None:
    folder = left(tmp_path)
    for name in ("model.onnx.data", "model.onnx.1.data"):
        (tmp_path / "later").write_bytes(b"precious")
        (tmp_path / "later").replace(tmp_path / name)
    remove_claimed(folder)
    assert len(list(tmp_path.iterdir())) == 3


def test_a_note_reaches_no_other_folder_and_no_link(tmp_path: Path) -> None:
    place, precious = tmp_path / "place", tmp_path / "precious"
    place.mkdir()
    precious.write_bytes(b"precious")
    folder = left(place)
    (place / "link").symlink_to(precious)
    told = precious.stat()
    names = ["../precious", str(precious), "link", "..", ""]
    note = {"model": "../../x", "files": [[name, told.st_dev, told.st_ino] for name in names]}
    (folder / _NOTE).write_text(json.dumps(note))
    remove_claimed(folder)
    assert precious.exists()


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"model": 1, "files": [[1, 2, 3]]}', '{"files": "abc"}', "[" * 100_000]
)
def test_a_damaged_note_does_nothing(tmp_path: Path, text: str) -> None:
    folder = left(tmp_path)
    (folder / _NOTE).write_text(text)
    remove_claimed(folder)
    assert len(list(tmp_path.iterdir())) == 3
