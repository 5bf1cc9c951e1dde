"""Models are written whole or not at all, and never over data that is mapped."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ckplan.errors import EnvironmentUnavailableError, UsageError
from ckplan.model import load, save
from ckplan.model.files import saving, weights
from tests.model.models import normal, parse, run, write

TEXT = '<ir_version: 10, opset_import: ["" : 21]> g (float[2, 30] x) => (float[2, 40] y) { y = MatMul(x, w) }'
FEEDS = {"x": normal(5, 2, 30)}


def model(seed: int = 0) -> ir.Model:
    return ir.from_proto(parse(TEXT, {"w": normal(seed, 30, 40)}))


def external(folder: Path, seed: int = 0) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "m.onnx"
    onnx.save(
        parse(TEXT, {"w": normal(seed, 30, 40)}),
        path,
        save_as_external_data=True,
        location="m.onnx.data",
        size_threshold=0,
    )
    return path


def answer(path: Path) -> np.ndarray:
    return run(onnx.load(path), FEEDS)[0]


def answer_in_place(path: Path) -> np.ndarray:
    """As onnxruntime reads it: unlike onnx, it reads hard links."""
    import onnxruntime

    return np.asarray(onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, FEEDS)[0])


def expected(seed: int) -> np.ndarray:
    return run(model(seed), FEEDS)[0]


def files(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def test_round_trip_leaves_one_file(tmp_path: Path) -> None:
    save(model(), tmp_path / "a.onnx")
    assert files(tmp_path) == ["a.onnx"]
    np.testing.assert_array_equal(answer(tmp_path / "a.onnx"), expected(0))


def test_nothing_is_overwritten_without_force(tmp_path: Path) -> None:
    path = tmp_path / "a.onnx"
    save(model(0), path)
    with pytest.raises(UsageError, match="--force"):
        save(model(1), path)
    np.testing.assert_array_equal(answer(path), expected(0))
    save(model(1), path, force=True)
    np.testing.assert_array_equal(answer(path), expected(1))


def test_external_data_is_written_anew(tmp_path: Path) -> None:
    forward = load(external(tmp_path / "in"))
    (tmp_path / "out").mkdir()
    save(forward.model, tmp_path / "out" / "n.onnx")
    assert files(tmp_path / "out") == ["n.onnx", "n.onnx.data"]
    np.testing.assert_array_equal(answer(tmp_path / "out" / "n.onnx"), expected(0))


def test_weights_in_the_same_folder_are_referred_to(tmp_path: Path) -> None:
    path = external(tmp_path)
    (note,) = save(load(path).model, tmp_path / "n.onnx")
    assert note == "the weights stay in m.onnx.data, which n.onnx reads as well"
    assert files(tmp_path) == ["m.onnx", "m.onnx.data", "n.onnx"]
    np.testing.assert_array_equal(answer(tmp_path / "n.onnx"), expected(0))
    (note,) = save(load(path).model, tmp_path / "copy.onnx", copy_weights=True)
    assert "copy.onnx.data" in note
    (tmp_path / "m.onnx.data").unlink()
    np.testing.assert_array_equal(answer(tmp_path / "copy.onnx"), expected(0))


def test_the_weights_of_a_model_are_never_overwritten_by_it(tmp_path: Path) -> None:
    path = external(tmp_path)
    with pytest.raises(UsageError, match=r"m\.onnx\.data holds weights that the model reads; write to another file"):
        save(load(path).model, tmp_path / "m.onnx.data", force=True)
    np.testing.assert_array_equal(answer(path), expected(0))


def test_large_weights_elsewhere_share_their_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "WORTH_SHARING", 100)
    forward = load(external(tmp_path / "in"))
    (tmp_path / "out").mkdir()
    (note,) = save(forward.model, tmp_path / "out" / "n.onnx")
    assert files(tmp_path / "out") == ["n.onnx", "n.onnx.data"]
    assert "n.onnx.data shares the bytes of" in note
    np.testing.assert_array_equal(answer_in_place(tmp_path / "out" / "n.onnx"), expected(0))


def test_where_bytes_cannot_be_shared_used_weights_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, "another file system")

    monkeypatch.setattr(weights, "WORTH_SHARING", 100)
    monkeypatch.setattr(weights, "_FICLONE", 0)
    monkeypatch.setattr(os, "link", refuse)
    source = external(tmp_path / "in")
    data = source.with_name("m.onnx.data")
    data.write_bytes(data.read_bytes() + bytes(100_000))
    (tmp_path / "out").mkdir()
    seen: list[tuple[int, int]] = []
    save(load(source).model, tmp_path / "out" / "n.onnx", progress=lambda done, of: seen.append((done, of)))
    assert (tmp_path / "out" / "n.onnx.data").stat().st_size == 30 * 40 * 4
    assert seen[-1] == (4800, 4800)
    np.testing.assert_array_equal(answer(tmp_path / "out" / "n.onnx"), expected(0))


def test_a_disk_that_is_too_full_for_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = load(external(tmp_path / "in")).model
    (tmp_path / "out").mkdir()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=4799))
    with pytest.raises(EnvironmentUnavailableError, match=r"weights take 4\.7 KiB"):
        save(source, tmp_path / "out" / "n.onnx")
    assert files(tmp_path / "out") == []


def test_a_disk_that_fills_up_in_the_middle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = external(tmp_path / "out", seed=1)
    source = load(external(tmp_path / "in")).model
    before = {name: (tmp_path / "out" / name).read_bytes() for name in files(tmp_path / "out")}

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "as if")

    monkeypatch.setattr(weights, "_write", full)
    with pytest.raises(EnvironmentUnavailableError, match="no space left"):
        save(source, path, force=True)
    assert {name: (tmp_path / "out" / name).read_bytes() for name in files(tmp_path / "out")} == before


def test_data_that_another_model_reads_is_kept(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    first, second = tmp_path / "out" / "first.onnx", tmp_path / "out" / "second.onnx"
    save(load(external(tmp_path / "in")).model, first)
    save(load(first).model, second)
    assert files(tmp_path / "out") == ["first.onnx", "first.onnx.data", "second.onnx"]
    save(model(2), first, force=True)
    np.testing.assert_array_equal(answer(second), expected(0))


def test_saving_over_the_file_that_is_mapped(tmp_path: Path) -> None:
    path = external(tmp_path / "in")
    forward = load(path)
    save(forward.model, path, force=True, copy_weights=True)
    np.testing.assert_array_equal(answer(path), expected(0))
    # The model in memory still reads the old data file, which is therefore still there.
    tensor = forward.model.graph.initializers["w"].const_value
    assert tensor is not None
    np.testing.assert_array_equal(tensor.numpy(), normal(0, 30, 40))
    assert files(tmp_path / "in") == ["m.onnx", "m.onnx.1.data", "m.onnx.data"]


def test_the_data_of_an_overwritten_model_is_removed(tmp_path: Path) -> None:
    path = external(tmp_path / "out", seed=1)
    save(load(external(tmp_path / "in")).model, path, force=True)
    assert files(tmp_path / "out") == ["m.onnx", "m.onnx.1.data"]
    np.testing.assert_array_equal(answer(path), expected(0))
    save(model(2), path, force=True)
    assert files(tmp_path / "out") == ["m.onnx"]


def test_data_of_others_is_left_alone(tmp_path: Path) -> None:
    source = load(external(tmp_path / "in"))
    (tmp_path / "n.onnx.data").write_bytes(b"precious")
    save(source.model, tmp_path / "n.onnx")
    assert (tmp_path / "n.onnx.data").read_bytes() == b"precious"
    np.testing.assert_array_equal(answer(tmp_path / "n.onnx"), expected(0))


def test_large_models_go_external(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "MAX_INLINE_BYTES", 1000)
    save(model(), tmp_path / "a.onnx")
    assert files(tmp_path) == ["a.onnx", "a.onnx.data"]
    np.testing.assert_array_equal(answer(tmp_path / "a.onnx"), expected(0))


@pytest.mark.parametrize(
    ("code", "words"), [(errno.ENOSPC, "no space left"), (errno.EACCES, "permissions")], ids=["full", "denied"]
)
@pytest.mark.parametrize("step", ["_sync", "ir"])
def test_failure_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, words: str, step: str
) -> None:
    path = external(tmp_path / "out", seed=1)
    source = load(external(tmp_path / "in")).model
    before = {name: (tmp_path / "out" / name).read_bytes() for name in files(tmp_path / "out")}

    def fail(*_: object, **__: object) -> None:
        raise OSError(code, "as if")

    if step == "ir":
        monkeypatch.setattr(ir, "save", fail)
    else:
        monkeypatch.setattr(saving, "_sync", fail)
    with pytest.raises(EnvironmentUnavailableError, match=words):
        save(source, path, force=True)
    assert {name: (tmp_path / "out" / name).read_bytes() for name in files(tmp_path / "out")} == before


def test_failure_of_the_last_step_takes_the_data_file_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = load(external(tmp_path / "in")).model

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "as if")

    (tmp_path / "out").mkdir()
    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(EnvironmentUnavailableError):
        save(source, tmp_path / "out" / "n.onnx", force=True)
    assert files(tmp_path / "out") == []


@pytest.mark.parametrize("name", ["n.onnx", "n.onnx.data"])
def test_what_another_process_makes_in_the_meantime_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A second model over the data of the first would be one with the weights of another."""
    source = load(external(tmp_path / "in")).model
    (tmp_path / "out").mkdir()
    sync = saving._sync

    def meanwhile(file: Path) -> None:
        sync(file)
        (tmp_path / "out" / name).write_bytes(b"of another process")

    monkeypatch.setattr(saving, "_sync", meanwhile)
    with pytest.raises(UsageError, match=rf"another process has made .*{name} in the meantime"):
        save(source, tmp_path / "out" / "n.onnx")
    assert files(tmp_path / "out") == [name]
    assert (tmp_path / "out" / name).read_bytes() == b"of another process"


def test_a_text_that_another_process_writes_in_the_meantime_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, write = tmp_path / "plan.json", Path.write_text

    def meanwhile(file: Path, text: str, **how: str) -> int:
        write(target, "of another process")
        return write(file, text, **how)

    monkeypatch.setattr(Path, "write_text", meanwhile)
    with pytest.raises(UsageError, match=r"another process has made .*plan\.json in the meantime"):
        saving.write_text("ours", target)
    assert target.read_text() == "of another process"


def test_where_there_are_no_hard_links_files_are_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EPERM, "as if")

    monkeypatch.setattr(os, "link", fail)
    save(model(), tmp_path / "a.onnx")
    assert files(tmp_path) == ["a.onnx"]
    np.testing.assert_array_equal(answer(tmp_path / "a.onnx"), expected(0))


def test_devices_are_not_replaced() -> None:
    with pytest.raises(UsageError, match="not a regular file"):
        save(model(), Path(os.devnull), force=True)
    assert not Path(os.devnull).is_file()


def test_what_leads_to_a_pipe_is_no_file() -> None:
    reading, writing = os.pipe()
    try:
        with pytest.raises(UsageError, match=rf"/dev/fd/{writing} is not a regular file; name a file"):
            save(model(), f"/dev/fd/{writing}", force=True)
    finally:
        os.close(reading)
        os.close(writing)


def test_paths_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a directory"):
        save(model(), tmp_path)
    with pytest.raises(UsageError, match="nowhere does not exist"):
        save(model(), tmp_path / "nowhere" / "a.onnx")


def test_a_link_is_followed(tmp_path: Path) -> None:
    real = write(parse(TEXT, {"w": normal(1, 30, 40)}), tmp_path, "real.onnx")
    link = tmp_path / "link.onnx"
    link.symlink_to(real)
    save(model(0), link, force=True)
    assert link.is_symlink()
    np.testing.assert_array_equal(answer(real), expected(0))


def test_text_goes_to_regular_files_only(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="pipe is not a regular file"):
        saving.write_text("text", tmp_path / "pipe", force=True)
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to(tmp_path / "real.txt")
    saving.write_text("new", tmp_path / "link.txt", force=True)
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text() == "new"
