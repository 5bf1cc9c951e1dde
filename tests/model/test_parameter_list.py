"""Files that name parameters."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ckplan.errors import ModelError
from ckplan.model.files.parameter_list import read_names

NAMES = ("layers.0.weight", "layers.0.bias", "head")


def as_lines(path: Path) -> None:
    path.write_text("# what is trained\n\nlayers.0.weight\nlayers.0.bias  # of zeros\nhead\n", encoding="utf-8")


def as_json(path: Path) -> None:
    path.write_text(json.dumps({name: [1, 2] for name in NAMES}), encoding="utf-8")


def as_windows_writes_them(path: Path) -> None:
    path.write_text("\r\n".join(NAMES), encoding="utf-8-sig", newline="")


def as_safetensors(path: Path) -> None:
    entries = {name: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} for name in NAMES}
    header = json.dumps({"__metadata__": {"format": "pt"}, **entries}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))


def as_arrays(path: Path) -> None:
    np.savez(path, **dict.fromkeys(NAMES, np.zeros(1)))


def as_state_dict(path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({name: torch.zeros(1) for name in NAMES}, path)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("list.txt", as_lines), ("list", as_lines), ("marked.txt", as_windows_writes_them),
        ("keys.json", as_json), ("model.safetensors", as_safetensors),
        ("model.npz", as_arrays), ("model.pth", as_state_dict),
    ],
)  # fmt: skip
def test_names_are_read(tmp_path: Path, name: str, make: Callable[[Path], None]) -> None:
    make(tmp_path / name)
    assert read_names(tmp_path / name) == NAMES


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("empty.txt", b"# nothing\n", "names nothing"),
        ("list.json", b"[1, 2]", "damaged or of another format"),
        ("list.json", b"[", "damaged or of another format"),
        ("list.json", b"[" * 100_000, "damaged or of another format"),
        ("model.safetensors", (2).to_bytes(8, "little") + b"[]", "damaged or of another format"),
        ("model.safetensors", b"", "damaged or of another format"),
        ("model.safetensors", b"\xff" * 20, "damaged or of another format"),
        ("model.npz", b"no archive", "damaged or of another format"),
        ("list.txt", b"\xff\xfe\x00", "damaged or of another format"),
    ],
)
def test_what_is_no_list(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelError, match=said):
        read_names(tmp_path / name)


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such file"):
        read_names(tmp_path / "model.safetensors")


def test_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        read_names(tmp_path)
