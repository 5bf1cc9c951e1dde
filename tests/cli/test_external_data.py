"""Every command on a model whose tensors lie in a data file, constants too, as exporters leave it."""

from __future__ import annotations

from pathlib import Path

import onnxruntime
import pytest
from click.testing import CliRunner, Result

from ckplan.cli import cli
from tests.model.external_models import write_external, write_hub_cache

COMMANDS = {
    "analyze": ["analyze", "MODEL", "--strategy", "memory"],
    "analyze --inference": ["analyze", "MODEL", "--inference", "--strategy", "memory"],
    "plan": ["plan", "MODEL", "-o", "OUT/plan.json", "--strategy", "memory"],
    "pareto": ["pareto", "MODEL", "--strategy", "memory"],
    "explain": ["explain", "MODEL", "a"],
    "compare": ["compare", "MODEL", "MODEL"],
    "compare --measured": ["compare", "MODEL", "MODEL", "--measured"],
    "rewrite": ["rewrite", "MODEL", "-o", "OUT/new.onnx", "--strategy", "memory", "--cost", "measured", "--verify"],
    "rewrite --inference": ["rewrite", "MODEL", "-o", "OUT/run.onnx", "--inference", "--strategy", "memory"],
    "report": ["report", "MODEL", "-o", "OUT/page.html", "--strategy", "memory", "--verify"],
}


@pytest.fixture(params=["beside", "hub cache"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    return write_external(folder) if request.param == "beside" else write_hub_cache(folder)


def invoke(arguments: list[str], model: Path) -> Result:
    out = model.parent
    given = [argument.replace("MODEL", str(model)).replace("OUT", str(out)) for argument in arguments]
    result = CliRunner().invoke(cli, given)
    assert result.exit_code == 0, result.output
    return result


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
def test_a_command(arguments: list[str], model: Path) -> None:
    result = invoke(arguments, model)
    if arguments[0] == "rewrite":
        written = arguments[arguments.index("-o") + 1].replace("OUT", str(model.parent))
        onnxruntime.InferenceSession(written, providers=["CPUExecutionProvider"])
        assert "the weights" in result.stderr or "of weights are in" in result.stderr


def test_verify_and_measure(model: Path) -> None:
    invoke(["grad", "MODEL", "-o", "OUT/base.onnx"], model)
    invoke(["rewrite", "MODEL", "-o", "OUT/new.onnx", "--strategy", "memory"], model)
    result = invoke(["verify", "OUT/base.onnx", "OUT/new.onnx"], model)
    assert "outputs equal to the bit" in result.stdout
    invoke(["measure", "OUT/new.onnx", "--runs", "1"], model)


def test_weights_are_copied_when_asked_for(tmp_path: Path) -> None:
    model = write_external(tmp_path)
    invoke(["grad", "MODEL", "-o", "OUT/own.onnx", "--copy-weights"], model)
    assert (tmp_path / "own.onnx.data").is_file()


def test_reasons_tell_of_copied_weights_once(tmp_path: Path) -> None:
    model = write_external(tmp_path)
    said = invoke(["rewrite", "MODEL", "-o", "OUT/own.onnx", "--copy-weights", "--verbose"], model).stderr
    (line,) = (line for line in said.splitlines() if "of weights" in line and line.startswith("detail"))
    assert line.startswith("detail: copied ")


@pytest.mark.parametrize("command", ["analyze", "measure", "grad"])
def test_a_missing_data_file_is_one_line(command: str, tmp_path: Path) -> None:
    model = write_external(tmp_path)
    (tmp_path / "model.onnx.data").unlink()
    result = CliRunner().invoke(cli, [command, str(model), *(["-o", str(tmp_path / "o.onnx")] * (command == "grad"))])
    assert result.exit_code == 3
    (line,) = result.stderr.splitlines()
    assert "model.onnx.data, which does not exist; put the data file beside the model" in line
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]
