"""Temporary folders go with their process, at the latest when the next one is made."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ckplan.errors import EnvironmentUnavailableError
from ckplan.isolation.folders import is_temporary, take_place_of_parent, temporary_folder

HOLDING = """
import sys, time
from pathlib import Path
from ckplan.isolation.folders import temporary_folder
with temporary_folder(Path(sys.argv[1])) as folder:
    (folder / "weights").write_bytes(bytes(1 << 20))
    print(folder, flush=True)
    time.sleep(600)
"""


def holding(place: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process that has a folder, and the folder."""
    process = subprocess.Popen([sys.executable, "-c", HOLDING, str(place)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        return process, Path(process.stdout.readline().strip())


def test_a_folder_is_gone_after_its_block(tmp_path: Path) -> None:
    def fail_inside() -> None:
        with temporary_folder(tmp_path) as folder:
            (folder / "inner").mkdir()
            (folder / "inner" / "file").touch()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_inside()
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.name == "nt", reason="needs locks of folders")
def test_what_a_killed_process_left_is_removed_and_what_a_living_one_has_is_not(tmp_path: Path) -> None:
    others = [tmp_path / ".ckplan-mine", tmp_path / "ckplan-notes", tmp_path / ".ckplan-abcdefgh.tmp.onnx"]
    for other in others:
        other.mkdir()
    dead, left = holding(tmp_path)
    living, kept = holding(tmp_path)
    try:
        dead.send_signal(signal.SIGKILL)
        dead.wait()
        assert (left / "weights").exists()
        with temporary_folder(tmp_path) as folder:
            assert set(tmp_path.iterdir()) == {folder, kept, *others}
    finally:
        living.kill()
        living.wait()


def test_links_are_not_followed(tmp_path: Path) -> None:
    precious, place = tmp_path / "precious", tmp_path / "place"
    precious.mkdir()
    place.mkdir()
    (precious / "file").touch()
    (place / ".ckplan-abcdefgh.tmp").symlink_to(precious)
    with temporary_folder(place):
        pass
    assert (precious / "file").exists()


def test_no_temporary_directory_is_an_error_of_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(EnvironmentUnavailableError, match="set TMPDIR to another folder"), temporary_folder():
        pass


def test_what_lies_in_a_folder_of_ours_is_temporary_and_a_result_beside_it_is_not() -> None:
    with temporary_folder() as folder:
        assert is_temporary(folder / "deeper" / "training.onnx")
        assert not is_temporary(folder.parent / "training.onnx")
        assert not is_temporary(folder.parent / "mine" / folder.name / "training.onnx")


@pytest.mark.skipif(os.name == "nt", reason="folders are not locked there")
def test_a_folder_that_another_process_is_about_to_remove_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    make, held = tempfile.mkdtemp, []

    def taken_at_once(**options: object) -> str:
        folder = make(**options)
        if not held:
            held.append((folder, descriptor := os.open(folder, os.O_RDONLY)))
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return folder

    monkeypatch.setattr(tempfile, "mkdtemp", taken_at_once)
    with temporary_folder(tmp_path) as folder:
        ((first, descriptor),) = held
        assert folder != Path(first)
        assert folder.is_dir()
    os.close(descriptor)


def test_a_child_does_not_try_the_place_that_its_parent_has_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python tries it with a file of a random name, which a signal could leave behind."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.delattr(tempfile, "_get_default_tempdir")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    take_place_of_parent()
    assert tempfile.gettempdir() == str(tmp_path)


def test_what_is_left_at_the_end_goes(tmp_path: Path) -> None:
    """A signal can come between the making of a folder and the block that would remove it."""
    code = "from ckplan.isolation import folders; print(folders.temporary_folder().__enter__())"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    told = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert Path(told.stdout.strip()).parent == tmp_path
    assert Path(told.stdout.strip()).name.startswith("ckplan-")
    assert list(tmp_path.iterdir()) == []
