from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

from ckplan.arguments import path_of
from ckplan.cli import cli
from ckplan.cli.output import check_output
from ckplan.errors import EnvironmentUnavailableError, UsageError
from tests.cli.conftest import write_model


def test_a_new_file_in_a_directory_is_fine(tmp_path: Path) -> None:
    check_output(tmp_path / "out.onnx", False, tmp_path / "in.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_overwritten_only_by_force(tmp_path: Path) -> None:
    output = tmp_path / "out.onnx"
    output.write_text("precious")
    with pytest.raises(UsageError, match=r"exists; pass --force to overwrite it"):
        check_output(output, False)
    check_output(output, True)
    assert output.read_text() == "precious"


def test_the_source_is_never_overwritten(tmp_path: Path) -> None:
    source = tmp_path / "model.onnx"
    source.write_text("")
    (tmp_path / "link.onnx").symlink_to(source)
    for output in (source, tmp_path / "link.onnx", tmp_path / "." / "model.onnx"):
        with pytest.raises(UsageError, match="is a file that this command reads"):
            check_output(output, True, source)


def test_weights_of_the_source_are_never_overwritten(tmp_path: Path) -> None:
    source, weights = tmp_path / "model.onnx", tmp_path / "weights.bin"
    tensor = onnx.numpy_helper.from_array(np.ones(4, np.float32), "w")
    graph = onnx.helper.make_graph([], "g", [], [], [tensor])
    onnx.save(
        onnx.helper.make_model(graph), source, save_as_external_data=True, location=weights.name, size_threshold=0
    )
    (tmp_path / "link.bin").symlink_to(weights)
    for output in (weights, tmp_path / "link.bin"):
        with pytest.raises(UsageError, match="holds weights that this command reads; write to another file"):
            check_output(output, True, source)
    (tmp_path / "other.bin").touch()
    check_output(tmp_path / "other.bin", True, source, None)


@pytest.mark.parametrize("force", [True, False])
def test_a_device_is_refused_before_any_work(force: bool) -> None:
    with pytest.raises(UsageError, match=f"{os.devnull} is not a regular file; name a file"):
        check_output(Path(os.devnull), force)


def test_an_empty_path_is_not_the_current_directory() -> None:
    with pytest.raises(UsageError, match=r"the file to write is ''; give a path"):
        path_of("the file to write", "")
    for arguments in (
        ["grad", "model.onnx", "-o", ""],
        ["measure", ""],
        ["compare", "a.json", "b.onnx", "--junit", ""],
    ):
        result = CliRunner().invoke(cli, arguments, prog_name="ckplan")
        assert result.exit_code == 2
        assert "it is empty, as a variable of the shell that is not set leaves it" in result.stderr


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a directory"):
        check_output(tmp_path, True)


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"directory .*nowhere does not exist; create it first"):
        check_output(tmp_path / "nowhere" / "out.onnx", False)


def test_a_file_in_the_place_of_a_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"")
    with pytest.raises(UsageError, match=r"model.onnx is not a directory; write to another place"):
        check_output(tmp_path / "model.onnx" / "out.onnx", False)


def test_a_directory_without_permission_is_found_out_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Asked of the system, because a test run as root may write everywhere.
    monkeypatch.setattr(os, "access", lambda path, mode: not (mode == os.W_OK and Path(path) == tmp_path))
    with pytest.raises(EnvironmentUnavailableError, match="no permission to write"):
        check_output(tmp_path / "out.onnx", False)


@pytest.mark.parametrize("force", [True, False])
def test_a_link_that_leads_back_to_itself_is_refused(tmp_path: Path, force: bool) -> None:
    for one, other in (("a.onnx", "b.onnx"), ("b.onnx", "a.onnx")):
        (tmp_path / one).symlink_to(other)
    with pytest.raises(UsageError, match=r"a.onnx is a link that leads back to itself; name another file"):
        check_output(tmp_path / "a.onnx", force)


def test_a_link_into_a_missing_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.onnx").symlink_to("nowhere/a.onnx")
    with pytest.raises(UsageError, match=r"directory .*nowhere does not exist; create it first"):
        check_output(tmp_path / "a.onnx", False)


IS_ROOT = getattr(os, "getuid", lambda: 1)() == 0
UNPRIVILEGED = ["setpriv", "--inh-caps=-all", "--bounding-set=-all"] if IS_ROOT else ["env"]
"""Root is refused nothing, but for what it has privileges for."""
CAN = shutil.which(UNPRIVILEGED[0]) and not subprocess.run([*UNPRIVILEGED, "true"], capture_output=True).returncode


@pytest.mark.skipif(not CAN, reason="a user who may read everything")
@pytest.mark.parametrize(
    "asked",
    [
        "analyze {closed}/m.onnx",
        "verify {model} {closed}/m.onnx",
        "grad {model} -o {closed}/out.onnx",
        "analyze {model} --html {closed}/page.html",
        "rewrite {model} -o {open}/out.onnx --plan {closed}/plan.json",
        "export-weights {closed}/run {model} -o {open}/out.onnx",
        "demo {closed}/demo",
    ],
)
def test_a_folder_that_nobody_may_look_into_is_told_of(tmp_path: Path, asked: str) -> None:
    """Python's own message came out, with the number of the error and no remedy."""
    model, closed = write_model(tmp_path / "model.onnx"), tmp_path / "closed"
    closed.mkdir()
    words = asked.format(model=model, closed=closed, open=tmp_path).split()
    if IS_ROOT:
        os.chown(closed, 65534, 65534)
    closed.chmod(0o700 if IS_ROOT else 0)
    command = [*UNPRIVILEGED, sys.executable, "-m", "ckplan", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    closed.chmod(0o755)
    assert done.returncode == 5
    said = r"ckplan: error: (no permission to look for|Permission denied:) \S+; check the permissions of .*folders.*\n"
    assert re.fullmatch(said, done.stderr), done.stderr
