"""With --json, a failure is an object on stdout as well; and what cannot be meant is refused before any work."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from ckplan.errors import UsageError
from ckplan.units import parse_budget
from tests.cli.conftest import write_model
from tests.cli.test_commands import run


@pytest.mark.parametrize(
    ("arguments", "code", "kind", "said"),
    [
        (["analyze", "none.onnx", "--json"], 3, "ModelError", "no such file"),
        (["analyze", "m.onnx", "--json", "--loss", "nothing"], 2, "UsageError", "nothing"),
        (["analyze", "m.onnx", "--json", "--nope"], 2, "NoSuchOption", "No such option"),
        (["rewrite", "m.onnx", "-o", "m.onnx", "--json"], 2, "UsageError", "a file that this command reads"),
    ],
)
def test_a_failure_is_an_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, kind: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "m.onnx")
    result = run(*arguments)
    assert result.exit_code == code
    error = json.loads(result.stdout)["error"]
    assert error["kind"] == kind
    assert error["exit_code"] == code
    assert said in error["message"]
    assert f"ckplan: error: {error['message']}\n" in result.stderr


def test_a_failed_check_prints_its_answer_and_no_second_object(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.onnx")
    result = run("compare", model, "--budget", "1", "--json")
    assert result.exit_code == 1
    assert "error" not in json.loads(result.stdout)


def test_without_json_stdout_stays_empty() -> None:
    assert run("analyze", "none.onnx").stdout == ""


@pytest.mark.parametrize("text", ["9" * 400, f"{'9' * 400}%", "99999999TiB"])
def test_budgets_that_cannot_be_meant(text: str) -> None:
    with pytest.raises(UsageError, match="digits is too large"):
        parse_budget(text)


def test_stdout_is_no_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "m.onnx")
    result = run("rewrite", "m.onnx", "-o", "-")
    assert result.exit_code == 2
    assert "files are not written to stdout" in result.stderr
    assert not (tmp_path / "-").exists()


def test_segments_without_end(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.onnx")
    result = run("rewrite", model, "-o", tmp_path / "out.onnx", "--strategy", "sqrt:segments=100000000000")
    assert result.exit_code == 0, result.stderr


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a file system in which nobody can make a file")
def test_where_nothing_can_be_written_is_found_out_before_the_work(tmp_path: Path) -> None:
    result = run("rewrite", tmp_path / "none.onnx", "-o", "/proc/out.onnx")
    assert result.exit_code == 5  # not 3: the model has not been looked for
    assert "/proc/out.onnx" in result.stderr


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schedule": [["a"]]}, "names node"),
        ({"schedule": [None, 3]}, "names node"),
        ({"schedule": {}}, "no schedule"),
        ({"schedule": ["x" * 100_000]}, "names node"),
        ({"schedule": []}, "cannot be run"),
        ({"schema": [1]}, "schema"),
        ({"strategy": {"a": 1}}, ""),
    ],
)
def test_forged_plans(tmp_path: Path, change: dict[str, object], said: str) -> None:
    model, plan = write_model(tmp_path / "m.onnx"), tmp_path / "plan.json"
    assert run("plan", model, "-o", plan, "--strategy", "sqrt").exit_code == 0
    plan.write_text(json.dumps({**json.loads(plan.read_text()), **change}))
    result = run("rewrite", model, "-o", tmp_path / "out.onnx", "--plan", plan)
    assert result.exit_code == (3 if said else 0), result.stderr
    assert said in result.stderr
    assert len(result.stderr) < 2000


def test_a_plan_that_draws_again_is_refused(tmp_path: Path) -> None:
    """Forward and backward pass would see two masks, and the gradient be wrong without a word."""
    model, plan = tmp_path / "m.onnx", tmp_path / "plan.json"
    text = """<ir_version: 10, opset_import: ["" : 21]> m (float[4, 2] x) => (float[4, 2] y)
    <float[2, 2] w = {1, 2, 3, 4}> { h = MatMul(x, w) noise = RandomNormalLike(h) n = Mul(h, noise) y = Tanh(n) }"""
    onnx.save(onnx.parser.parse_model(text), model)
    assert run("plan", model, "-o", plan, "--strategy", "none").exit_code == 0
    data = json.loads(plan.read_text())
    place = next(place for place, name in enumerate(data["schedule"]) if "/grad/" in name)
    drawing = data["schedule"][1]
    data["schedule"].insert(place, drawing)
    plan.write_text(json.dumps(data))
    result = run("rewrite", model, "-o", tmp_path / "out.onnx", "--plan", plan)
    assert result.exit_code == 3
    assert f"op '{drawing}' stands there twice, and may run only once" in result.stderr
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize("option", [("--strategy", "memory"), ("--budget", "40%"), ("--cost", "flops")])
@pytest.mark.parametrize("command", [("rewrite",), ("explain", "y")])
def test_a_plan_goes_with_no_option_that_says_how_to_plan(
    command: tuple[str, ...], option: tuple[str, str], tmp_path: Path
) -> None:
    model, plan = write_model(tmp_path / "m.onnx"), tmp_path / "plan.json"
    assert run("plan", model, "-o", plan, "--strategy", "memory").exit_code == 0
    name, *rest = command
    output = ("-o", tmp_path / "out.onnx") if name == "rewrite" else ()
    result = run(name, model, *rest, *output, "--plan", plan, *option)
    assert result.exit_code == 2
    assert f"does not go with `{option[0]}`" in result.stderr
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize("option", [[], ["--budget", "50%"]])
def test_a_plan_that_cannot_be_taken_is_refused_before_the_model_is_read(option: list[str], tmp_path: Path) -> None:
    """Reading and differentiating a large model takes a minute, and neither the file nor the options depend on it."""
    model = write_model(tmp_path / "m.onnx")
    result = run("rewrite", model, "-o", tmp_path / "out.onnx", "--plan", tmp_path / "none.json", *option)
    (line,) = result.stderr.splitlines()
    assert "does not go with `--budget`" in line if option else "there is no file" in line


@pytest.mark.parametrize(
    "command", [("rewrite", "-o", "OUT"), ("plan", "-o", "OUT"), ("explain", "y"), ("report", "-o", "OUT")]
)
def test_a_strategy_that_says_something_else_than_an_option_is_refused(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    name, *rest = (str(tmp_path / "out") if word == "OUT" else word for word in command)
    asked = ("--strategy", "auto:overhead=0.05", "--overhead", "20%")
    result = run(name, tmp_path / "none.onnx", *rest, *asked)  # before the model is read
    assert result.exit_code == 2
    assert "strategy `auto:overhead=0.05` says something else than `--overhead`; give one of them" in result.stderr
