"""Models that never end are given up, and a process is given as long as it shows progress."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from onnx import helper

from ckplan.errors import UsageError
from ckplan.isolation.folders import temporary_folder
from ckplan.meter import RunFailedError, RunTooLongError, measure, run_limit, smallest_arena, verify
from ckplan.meter.running.time_limit import allowed, watched
from tests.cli.test_commands import failure, run
from tests.meter.models import endless_loop, floats, save


def endless(path: Path) -> Path:
    node, trips = endless_loop()
    return save(path, [node], [floats("x", 4)], [floats("y", 4)], trips)


def test_a_model_that_never_ends_is_given_up(tmp_path: Path) -> None:
    model = endless(tmp_path / "m.onnx")
    with run_limit(1.0), pytest.raises(RunTooLongError, match=r"of `.*m\.onnx` takes more than 1 s") as error:
        measure(model, device="cpu", runs=1)
    assert error.value.exit_code == 5
    assert "--run-limit" in error.value.hint
    with run_limit(1.0), pytest.raises(RunTooLongError, match="takes more than 1 s"):
        verify(model, model, device="cpu")


def test_files_of_ours_are_called_by_their_names() -> None:
    with temporary_folder() as folder, run_limit(1.0), pytest.raises(RunTooLongError, match=r"of `plain\.onnx`"):
        measure(endless(folder / "plain.onnx"), device="cpu", runs=1)


def test_too_long_is_not_taken_for_too_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = save(tmp_path / "m.onnx", [helper.make_node("Neg", ["x"], ["y"])], [floats("x", 4)], [floats("y", 4)])
    tried = []

    def told(job: str, request: dict[str, object]) -> object:
        if job == "ckplan.meter.memory.arena_limit":
            tried.append(job)
            raise RunTooLongError("too long")
        return run_job(job, request)

    from ckplan.meter import bisect

    run_job = bisect.run_job
    monkeypatch.setattr(bisect, "run_job", told)
    with pytest.raises(RunTooLongError):
        smallest_arena(model, device="cpu")
    assert len(tried) == 1


@pytest.mark.parametrize("command", [("measure", "m.onnx"), ("verify", "m.onnx", "m.onnx")])
def test_the_option_is_named_and_heeded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    endless(tmp_path / "m.onnx")
    result = run(*command, "--device", "cpu", "--run-limit", "1")
    assert result.exit_code == 5
    said = failure(result)
    assert "takes more than 1 s" in said
    assert "--run-limit SECONDS" in said
    assert allowed() == 600  # for what comes after
    assert run(*command, "--run-limit", "0").exit_code == 2


def test_progress_counts_and_not_the_time_of_all() -> None:
    ended = []
    stop = time.monotonic() + 1.0
    with run_limit(0.3), watched(lambda: int(10 * time.monotonic()), lambda: ended.append(1)):
        while time.monotonic() < stop:
            time.sleep(0.01)
    assert not ended
    with run_limit(0.3), watched(lambda: 1, lambda: ended.append(1)):
        while not ended:
            time.sleep(0.01)
    assert ended == [1]


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan")])
def test_limits_that_cannot_be_meant(seconds: float) -> None:
    with pytest.raises(UsageError, match="positive"), run_limit(seconds):
        pass


def test_it_is_a_failed_run() -> None:
    assert issubclass(RunTooLongError, RunFailedError)
