"""The commands on a small model, through the same entry that the shell uses."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from click.testing import CliRunner, Result

from ckplan.cli import cli
from ckplan.errors import EnvironmentUnavailableError
from ckplan.planner.strategies.auto import Auto
from tests.cli.conftest import write_model


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments], prog_name="ckplan")


def failure(result: Result) -> str:
    """The one line that a failure says, after the notes."""
    lines = [line for line in result.stderr.splitlines() if not line.startswith("note: ")]
    assert len(lines) == 1
    assert lines[0].startswith("ckplan: error: ")
    assert "this is a bug" not in lines[0]
    return lines[0]


def outputs(path: Path) -> Sequence[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    required = sorted((node.name, node.shape) for node in session.get_inputs())
    return session.run(None, {name: rng.normal(size=shape).astype(np.float32) for name, shape in required})


def test_grad_writes_a_training_graph(model: Path, tmp_path: Path) -> None:
    output = tmp_path / "grad.onnx"
    result = run("grad", model, "-o", output)
    assert result.exit_code == 0, result.stderr
    assert result.stdout == f"{output}: loss '{onnx.load(output).graph.output[0].name}' and 6 gradients\n"
    assert "note: dimension 'batch' is 8 by default" in result.stderr
    names = [value.name for value in onnx.load(output).graph.output]
    assert names[1:] == [f"layer{layer}.weight_grad" for layer in range(6)]


def test_grad_as_json(model: Path, tmp_path: Path) -> None:
    data = json.loads(run("grad", model, "-o", tmp_path / "grad.onnx", "--json", "--wrt", "layer5*").stdout)
    assert data["schema"] == 1
    assert data["gradients"] == {"layer5.weight": "layer5.weight_grad"}
    assert any("batch" in note for note in data["notes"])


def test_rewrite_saves_memory_and_keeps_the_numbers(model: Path, tmp_path: Path) -> None:
    plain, planned = tmp_path / "plain.onnx", tmp_path / "planned.onnx"
    assert run("grad", model, "-o", plain, "--dim", "batch=256").exit_code == 0
    result = run("rewrite", model, "-o", planned, "--json", "--dim", "batch=256")
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    assert data["planned"]["peak_activations"] < data["base"]["peak_activations"]
    assert data["verification"] is None
    for one, other in zip(outputs(plain), outputs(planned), strict=True):
        np.testing.assert_array_equal(one, other)


def test_rewrite_with_proof(model: Path, tmp_path: Path) -> None:
    result = run("rewrite", model, "-o", tmp_path / "out.onnx", "--verify", "--device", "cpu", "--dim", "batch=64")
    assert result.exit_code == 0, result.stderr
    assert "out.onnx: predicted activations" in result.stdout
    assert "outputs equal to the bit" in result.stdout
    assert "note: ran on cpu" in result.stderr


def test_the_plan_is_shown_before_the_proof(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ckplan.cli.commands.rewrite.prove", interrupted)
    result = run("rewrite", model, "-o", tmp_path / "out.onnx", "--verify", "--dim", "batch=64")
    assert result.exit_code == 130
    assert "out.onnx: predicted activations" in result.stdout


@pytest.mark.parametrize(("command", "name"), [("rewrite", "out.onnx"), ("report", "out.html")])
def test_inputs_of_a_proof_are_checked_before_anything_is_written(
    command: str, name: str, model: Path, tmp_path: Path
) -> None:
    np.savez(tmp_path / "inputs.npz", other=np.zeros(3))
    result = run(command, model, "-o", tmp_path / name, "--verify", "--inputs", tmp_path / "inputs.npz")
    assert result.exit_code == 2
    assert "has no array for input `x`" in failure(result)
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize(("command", "name"), [("rewrite", "out.onnx"), ("report", "out.html")])
def test_inputs_are_for_what_is_run(command: str, name: str, model: Path, tmp_path: Path) -> None:
    result = run(command, model, "-o", tmp_path / name, "--inputs", tmp_path / "inputs.npz")
    assert result.exit_code == 2
    assert failure(result).endswith(
        "`--inputs` is what the files run on, and none is run; add --verify, or leave it out"
    )
    assert not (tmp_path / name).exists()
    result = run(command, model, "-o", tmp_path / name, "--seed", "3")
    assert result.exit_code == 2
    assert "`--seed` is that of what the files run on, and none is run" in failure(result)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fit", "MODEL", "--memory", "1GiB", "--force"], "`--force` is about what is written, and nothing is; add -o"),
        (["fit", "MODEL", "--memory", "1GiB", "--copy-weights"], "`--copy-weights` is about what is written"),
        (["pareto", "MODEL", "--force"], "`--force` is about what is written, and nothing is; add -o"),
        (["analyze", "MODEL", "--force"], "`--force` is about what is written, and nothing is; add --html"),
        (["verify", "MODEL", "MODEL", "--force"], "nothing is; add --html or --report, or leave it out"),
        (["measure", "MODEL", "--force"], "nothing is; add --trace, --csv or --report, or leave it out"),
        (["compare", "MODEL", "MODEL", "--force"], "nothing is; add --html or --report, or leave it out"),
        (["rewrite", "MODEL", "-o", "OUT", "--run-limit", "9"], "nothing is run; add --verify, or leave it out"),
        (["report", "MODEL", "-o", "OUT", "--run-limit", "9"], "nothing is run; add --verify, or leave it out"),
        (["plan", "MODEL", "-o", "OUT", "--run-limit", "9"], "nothing is run; add --cost measured"),
        (["pareto", "MODEL", "--run-limit", "9"], "nothing is run; add --cost measured"),
        (["explain", "MODEL", "y0", "--run-limit", "9"], "nothing is run; add --cost measured"),
        (["compare", "MODEL", "MODEL", "--run-limit", "9"], "nothing is run; add --measure"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_options_with_nothing_to_do_are_refused(arguments: list[str], said: str, model: Path, tmp_path: Path) -> None:
    named = {"MODEL": model, "OUT": tmp_path / ("out.html" if arguments[0] == "report" else "out")}
    result = run(*[named.get(word, word) for word in arguments])
    assert result.exit_code == 2
    assert said in failure(result)
    assert not named["OUT"].exists()


def test_runs_are_limited_where_costs_are_measured(model: Path, tmp_path: Path) -> None:
    limited = ["--cost", "measured", "--run-limit", "300"]
    assert run("plan", model, "-o", tmp_path / "plan.json", *limited).exit_code == 0


def test_verify_fails_where_outputs_differ(model: Path, tmp_path: Path) -> None:
    one, other = tmp_path / "one.onnx", tmp_path / "other.onnx"
    run("grad", model, "-o", one, "--loss", "sum")
    run("grad", model, "-o", other, "--loss", "mean")
    result = run("verify", one, other, "--json")
    assert result.exit_code == 1
    assert "differs in" in failure(result)
    data = json.loads(result.stdout)
    assert data["command"] == "verify"
    assert data["problems"]


def test_analyze_for_people_and_programs(model: Path) -> None:
    page = run("analyze", model, "--dim", "batch=32")
    assert page.exit_code == 0, page.stderr
    for heading in ("What a process holds", "peak at step", "Alive at the peak", "Bottlenecks", "What a plan"):
        assert heading in page.stdout
    assert max(map(len, page.stdout.splitlines())) <= 80
    data = json.loads(run("analyze", model, "--dim", "batch=32", "--json").stdout)
    assert data["trained"] == {"parameters": 6, "values": 6 * 16 * 16}
    assert {"none", "memory", "sqrt"} <= {offer["strategy"] for offer in data["strategies"]}


def test_analyze_tries_what_it_is_told(model: Path) -> None:
    arguments = ("analyze", model, "--json", "--strategy", "sqrt:segments=2", "--strategy", "none")
    data = json.loads(run(*arguments).stdout)
    assert [offer["strategy"] for offer in data["strategies"]] == ["sqrt:segments=2", "none"]


@pytest.mark.parametrize("order", [("--quiet", "--verbose"), ("--verbose", "--quiet")], ids=" ".join)
def test_quiet_and_verbose_do_not_go_together(model: Path, order: tuple[str, str]) -> None:
    result = run("plan", model, "-o", "plan.json", *order)
    assert result.exit_code == 2
    assert result.stderr == "ckplan: error: `--quiet` leaves out what `--verbose` asks for; give one of them\n"


def test_quiet_is_quiet(model: Path) -> None:
    assert run("analyze", model, "--quiet").stderr == ""


def test_listings() -> None:
    assert "memory" in run("strategies").stdout
    assert "Tanh" in run("ops").stdout
    for command in ("strategies", "ops"):
        assert json.loads(run(command, "--json").stdout)["schema"] == 1


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--strategy", "memroy"], 2, "there is no strategy `memroy`; did you mean `memory`?"),
        (["--strategy", "memory:nope=1"], 2, "has no option"),
        (["--strategy", "memory:min_bytes=x"], 2, "option `min_bytes` of strategy `memory`: `x` is not a size"),
        (["--loss", "nope"], 2, "neither a loss nor an output"),
        (["--wrt", "nope*"], 2, "nope*"),
        (["--dim", "nope=3"], 2, "nope"),
        (["--budget", "16"], 4, "within the budget of 16 B"),
        (["--budget", "lots"], 2, "is not a size"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_bad_options_leave_no_file(arguments: list[str], code: int, said: str, model: Path, tmp_path: Path) -> None:
    result = run("rewrite", model, "-o", tmp_path / "out.onnx", *arguments)
    assert result.exit_code == code
    assert said in failure(result)
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == [model]


@pytest.mark.parametrize("command", ["grad", "rewrite"])
def test_bad_models_leave_no_file(command: str, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(b"no protobuf at all")
    for source in (damaged, tmp_path / "missing.onnx"):
        result = run(command, source, "-o", tmp_path / "out.onnx")
        assert result.exit_code == 3
        assert source.name in failure(result)
    assert list(tmp_path.iterdir()) == [damaged]


@pytest.mark.parametrize(
    "arguments",
    [
        ("grad", "MODEL", "-o", "OUT", "--params", "FILE.npz"),
        ("grad", "MODEL", "-o", "OUT", "--params", "FILE.txt"),
        ("measure", "MODEL", "--inputs", "FILE.npz"),
        ("rewrite", "MODEL", "-o", "OUT", "--plan", "FILE.json"),
        ("plan", "FILE.json", "-o", "OUT"),
        ("train", "STEP", "--data", "FILE.npz", "--checkpoints", "OUT"),
        ("export-weights", "FILE.safetensors", "MODEL", "-o", "OUT"),
        ("compare", "FILE.json", "MODEL"),
        ("compare", "--config", "FILE.toml"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("state", ["missing", "damaged", "a folder", "locked"])
def test_files_that_cannot_be_read_have_one_exit_code(
    arguments: Sequence[str], state: str, model: Path, tmp_path: Path
) -> None:
    step, output = tmp_path / "step.onnx", tmp_path / "out"
    assert run("grad", model, "-o", step, "--optimizer", "sgd").exit_code == 0
    named = next(name for name in arguments if name.startswith("FILE"))
    file = tmp_path / named
    if state == "damaged":
        file.write_bytes(b"\xff\xfe no such format")
    elif state == "a folder":
        file.mkdir()
    elif state == "locked":
        file.touch(mode=0)
        if os.access(file, os.R_OK):
            pytest.skip("this user reads everything")
    places = {"MODEL": model, "STEP": step, "OUT": output, named: file}
    result = run(*(places.get(name, name) for name in arguments))
    assert result.exit_code == 3
    assert named in failure(result)
    assert not output.exists()


def test_operators_without_a_gradient_are_named(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model.onnx", activation="Hardmax", layers=2)
    result = run("grad", model, "-o", tmp_path / "out.onnx")
    assert result.exit_code == 3
    assert "Hardmax 'act0'" in failure(result)
    assert list(tmp_path.iterdir()) == [model]


@pytest.mark.parametrize("command", ["grad", "rewrite"])
def test_no_file_is_overwritten_unasked(command: str, model: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.onnx"
    output.write_text("precious")
    result = run(command, model, "-o", output)
    assert result.exit_code == 2
    assert "--force" in failure(result)
    assert output.read_text() == "precious"
    assert run(command, model, "-o", output, "--force").exit_code == 0
    assert onnx.load(output).graph.output


def test_a_device_that_is_not_there(model: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain.onnx"
    run("grad", model, "-o", plain)
    ran_on = json.loads(run("verify", plain, plain, "--json").stdout)["new"]["device"]
    result = run("verify", plain, plain, "--device", "cuda")
    assert result.exit_code == (0 if ran_on == "cuda" else 5)
    assert ("CUDA" in result.stderr) == (ran_on != "cuda")


@pytest.mark.parametrize(
    "asked",
    [
        ("rewrite", "--verify"),
        ("rewrite", "--cost", "clock", "--overhead", "10%"),
        ("report", "--verify"),
        ("compare", "--measure", "--budget", "1GiB"),
    ],
    ids=" ".join,
)
def test_a_device_that_does_not_start_is_found_before_the_work(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: tuple[str, ...]
) -> None:
    def never(*given: object, **options: object) -> None:
        raise EnvironmentUnavailableError("CUDA does not start", "use --device cpu")

    def planning(*given: object, **options: object) -> None:
        raise AssertionError("planned for a device that is not there")

    monkeypatch.setattr("ckplan.meter.running.process.run_job", never)
    monkeypatch.setattr(Auto, "solve", planning)
    out = tmp_path / "out.html"
    out.write_text("before", encoding="utf-8")
    command, *options = asked
    written = ["-o", out, "--force"] if command != "compare" else ["--save-baseline", tmp_path / "baseline.json"]
    result = run(command, model, *written, "--device", "cuda", *options)
    assert result.exit_code == 5
    assert result.stderr.rstrip().endswith("ckplan: error: CUDA does not start; use --device cpu")
    assert out.read_text(encoding="utf-8") == "before"
    assert not (tmp_path / "baseline.json").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("artifacts", "MODEL", "-o", "-"),
        ("rewrite", "MODEL", "-o", "-"),
        ("analyze", "MODEL", "--html", "-"),
        ("compare", "MODEL", "--save-baseline", "-"),
        ("measure", "MODEL", "--report", "markdown=-"),
        ("train", "MODEL", "--data", "data.npz", "--checkpoints", "-"),
        ("demo", "-"),
    ],
)
def test_stdout_takes_no_files(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    """`artifacts`, `demo` and `train` made a directory of that name."""
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    result = run(*(str(model) if argument == "MODEL" else argument for argument in arguments))
    assert result.exit_code == 2
    assert "stdout" in failure(result)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("command", ["analyze", "artifacts", "rewrite"])
def test_commands_run_from_a_tree_that_is_not_installed(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    find = metadata.distribution

    def lacking(name: str) -> metadata.Distribution:
        if name == "ckplan":
            raise metadata.PackageNotFoundError(name)
        return find(name)

    monkeypatch.setattr(metadata, "distribution", lacking)
    with pytest.raises(metadata.PackageNotFoundError):
        metadata.version("ckplan")
    result = run(command, model, *([] if command == "analyze" else ["-o", tmp_path / "made"]))
    assert result.exit_code == 0, result.stderr
