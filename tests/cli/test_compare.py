"""``ckplan compare``: the memory gate, as CI calls it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from xml.etree import ElementTree

import onnx
import onnxruntime
import pytest

from ckplan import __version__
from ckplan.errors import EnvironmentUnavailableError
from ckplan.model.files import saving
from tests.cli.conftest import write_model
from tests.cli.test_commands import failure, run
from tests.cli.test_inference import write_branches

STRATEGY = ("--strategy", "list:keep=y2;y5;y8")
DROPPED = ("--strategy", "list:keep=y2;y5")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model.onnx", layers=12)


@pytest.fixture(autouse=True)
def _outside_of_ci(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The tests themselves run in CI; and a configuration of the folder would be found."""
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def baseline(model: Path, tmp_path: Path) -> Path:
    path = tmp_path / "memory.json"
    result = run("compare", model, "--save-baseline", path, "--dim", "batch=32", *STRATEGY)
    assert result.exit_code == 0, result.stderr
    return path


def test_no_change_passes(model: Path, baseline: Path) -> None:
    before = baseline.read_bytes()
    result = run("compare", baseline, model)
    assert result.exit_code == 0, result.stderr
    assert "model: passed" in result.stdout
    assert "note: settings are the baseline's: --strategy 'list:keep=y2;y5;y8' --dim batch=32" in result.stderr
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert baseline.read_bytes() == before
    run("compare", model, "--save-baseline", baseline, "--force", "--dim", "batch=32", *STRATEGY)
    assert baseline.read_bytes() == before, "a baseline is the same whenever it is made"


def test_a_larger_batch_fails_and_names_the_tensors(model: Path, baseline: Path) -> None:
    result = run("compare", baseline, model, "--dim", "batch=48", "--json")
    assert result.exit_code == 1
    assert "(+50.0 %, " in failure(result)
    assert f"--dim batch=48 --save-baseline {baseline} --force`" in failure(result)
    (check,) = json.loads(result.stdout)["checks"]
    assert check["level"] == "failed"
    grown = {entry["tensor"]: (entry["before"], entry["bytes"]) for entry in check["growth"]}
    assert grown["y2"] == (32 * 16 * 4, 48 * 16 * 4)
    assert sum(entry["change"] for entry in check["growth"]) == (
        check["head"]["peak_activations"] - check["base"]["peak_activations"]
    )
    assert run("compare", baseline, model, "--dim", "batch=48", "--max-regression", "50%").exit_code == 0
    assert run("compare", baseline, model, "--dim", "batch=48", "--max-regression", "49%").exit_code == 1


def test_a_dropped_checkpoint_fails_and_is_named(model: Path, baseline: Path) -> None:
    result = run("compare", baseline, model, *DROPPED)
    assert result.exit_code == 1
    assert "'y8' is not kept any more" in failure(result)
    assert "recomputed now, and not by the base's plan:" in result.stdout


def test_a_dropped_checkpoint_in_files_with_a_plan(model: Path, tmp_path: Path) -> None:
    base, head = tmp_path / "base.onnx", tmp_path / "head.onnx"
    run("rewrite", model, "-o", base, "--dim", "batch=32", *STRATEGY)
    run("rewrite", model, "-o", head, "--dim", "batch=32", *DROPPED)
    result = run("compare", base, head)
    assert result.exit_code == 1
    assert "'y8' is not kept any more" in failure(result)
    assert run("compare", head, base).exit_code == 0
    promised = {prop.key: prop.value for prop in onnx.load(base).metadata_props}
    data = json.loads(run("compare", base, base, "--json", "--quiet").stdout)
    side = data["checks"][0]["head"]
    assert side["recomputed_tensors"]["y1"] == 32 * 16 * 4
    assert "recomputed" not in side  # elsewhere that is a number of nodes
    found = side["peak_activations"]
    assert str(found) == promised["pkg.ckplan.predicted_peak_activations"]
    refused = run("compare", base, head, "--dim", "batch=8")
    assert refused.exit_code == 2
    assert "base.onnx was made by ckplan and is taken as it is" in failure(refused)


def test_a_training_graph_is_taken_as_it_is(model: Path, tmp_path: Path) -> None:
    files = [tmp_path / "plain.onnx", tmp_path / "larger.onnx"]
    for path, batch in zip(files, (32, 48), strict=True):
        assert run("grad", model, "-o", path, "--dim", f"batch={batch}").exit_code == 0
    result = run("compare", *files, "--json", "--quiet")
    assert result.exit_code == 1
    (check,) = json.loads(result.stdout)["checks"]
    promised = json.loads(run("analyze", model, "--dim", "batch=48", "--strategy", "none", "--json").stdout)
    assert check["head"]["peak_activations"] == promised["base"]["peak_activations"]
    assert check["head"]["settings"] is None


def test_what_grew_can_be_accepted(model: Path, baseline: Path) -> None:
    larger = ("--dim", "batch=48")
    assert run("compare", baseline, model, *larger).exit_code == 1
    assert run("compare", baseline, model, *larger, "--save-baseline", baseline).exit_code == 2, "without --force"
    assert run("compare", baseline, model, *larger, "--save-baseline", baseline, "--force").exit_code == 0
    assert run("compare", baseline, model).exit_code == 0


def test_two_models_and_two_results(model: Path, tmp_path: Path) -> None:
    deeper = write_model(tmp_path / "deeper.onnx", layers=14)
    result = run("compare", model, deeper, "--strategy", "none", "--json")
    assert result.exit_code == 1
    grown = {entry["tensor"] for entry in json.loads(result.stdout)["checks"][0]["growth"] if entry["change"] > 0}
    assert "y12" in grown
    assert run("compare", deeper, model, "--strategy", "none").exit_code == 0
    results = []
    for source in (model, deeper):
        results.append(tmp_path / f"{source.stem}.json")
        arguments = ("analyze", source, "--json", "--quiet", "--strategy", "none")
        results[-1].write_text(run(*arguments).stdout, encoding="utf-8")
    assert run("compare", *results).exit_code == 1
    assert run("compare", *reversed(results)).exit_code == 0
    assert run("compare", *results, "--dim", "batch=3").exit_code == 2
    head = tmp_path / "head.json"
    head.write_text(result.stdout, encoding="utf-8")
    assert run("compare", head, deeper, "--quiet").exit_code == 0, "a comparison is read as its newer sides"


def test_a_budget_alone(model: Path) -> None:
    assert run("compare", model, "--budget", "1MiB").exit_code == 0
    result = run("compare", model, "--budget", "1KiB", "--strategy", "none")
    assert result.exit_code == 1
    assert "exceeds the budget of 1.0 KiB" in failure(result)
    assert run("compare", model, "--budget", "200%").exit_code == 0
    nothing = run("compare", model)
    assert nothing.exit_code == 2
    assert "there is nothing to compare" in failure(nothing)


def test_inference_models_are_taken_as_they_are(tmp_path: Path) -> None:
    model = write_branches(tmp_path / "model.onnx")
    larger = write_branches(tmp_path / "larger.onnx", rows=320)
    assert run("compare", model, larger, "--inference").exit_code == 1
    assert run("compare", model, model, "--inference").exit_code == 0
    refused = run("compare", model, larger, "--inference", "--strategy", "memory")
    assert refused.exit_code == 2
    assert "`strategy`" in failure(refused)


def test_the_measured_peak_is_reported_or_decides(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "memory.json"
    assert run("compare", model, "--save-baseline", path, "--measure", "--device", "cpu", *STRATEGY).exit_code == 0
    data = json.loads(path.read_text(encoding="utf-8"))
    measured = data["models"]["model"]["measured"]
    assert measured["device"] == "cpu"
    measured["peak_activations"] //= 2
    path.write_text(json.dumps(data), encoding="utf-8")
    assert run("compare", path, model).exit_code == 0
    result = run("compare", path, model, "--measured", "--device", "cpu")
    assert result.exit_code == 1
    assert "measured peak of activations" in failure(result)


def changed(path: Path, **changes: str) -> None:
    data = json.loads(path.read_text(encoding="utf-8"))
    data["models"]["model"].update(changes)
    path.write_text(json.dumps(data), encoding="utf-8")


def test_a_baseline_of_another_model_is_refused(model: Path, baseline: Path, tmp_path: Path) -> None:
    other = write_branches(tmp_path / "other.onnx")
    result = run("compare", baseline, other)
    assert result.exit_code == 3
    assert "of model 'chain' (x: FLOAT -> y11)" in failure(result)
    assert "of model 'branches' (x: FLOAT -> y)" in failure(result)


def test_a_baseline_of_other_versions_is_compared_and_noted(model: Path, baseline: Path) -> None:
    newer = baseline.with_name("newer.json")
    shutil.copy(baseline, newer)
    changed(baseline, ckplan="9.9", onnxruntime="1.99.0")
    for head in (model, newer):
        result = run("compare", baseline, head)
        assert result.exit_code == 0, result.stderr
        this = "this is" if head is model else f"'{newer}' with"
        assert f"was made with ckplan 9.9, {this} ckplan {__version__}; what differs" in result.stderr
        assert f"onnxruntime 1.99.0, {this} onnxruntime {onnxruntime.__version__}; what differs" in result.stderr
    larger = run("compare", baseline, model, "--dim", "batch=48")
    assert larger.exit_code == 1
    assert "onnxruntime 1.99.0" in larger.stderr
    assert run("compare", baseline, model, "--save-baseline", baseline, "--force").exit_code == 0
    assert "was made with" not in run("compare", baseline, model).stderr


CONFIGURATION = """
baseline = "memory.json"
strategy = "sqrt"
dims = { batch = 32 }
[models.one]
path = "model.onnx"
[models.two]
path = "model.onnx"
strategy = "none"
budget = "1MiB"
"""


def test_a_configuration_is_run_without_arguments(model: Path, tmp_path: Path) -> None:
    (tmp_path / "ckplan.toml").write_text(CONFIGURATION, encoding="utf-8")
    missing = run("compare")
    assert missing.exit_code == 3
    assert "no file 'memory.json'; make the baseline: `ckplan compare --save-baseline memory.json`" in failure(missing)
    assert run("compare", "--save-baseline", "memory.json").exit_code == 0
    result = run("compare")
    assert result.exit_code == 0, result.stderr
    assert "2 checks: 2 passed" in result.stdout
    write_model(model, layers=7)
    result = run("compare")
    assert result.exit_code == 3, "another output: another model"
    larger = CONFIGURATION.replace("batch = 32", "batch = 64")
    write_model(model, layers=12)
    (tmp_path / "ckplan.toml").write_text(larger, encoding="utf-8")
    result = run("compare")
    assert result.exit_code == 1
    assert failure(result).startswith("ckplan: error: one: peak of activations")
    assert "(and 1 more)" in failure(result)
    assert "`ckplan compare --save-baseline memory.json --force`" in failure(result)
    (tmp_path / "my checks.toml").write_text(larger, encoding="utf-8")
    result = run("compare", "--config", "my checks.toml")
    assert "`ckplan compare --config 'my checks.toml' --save-baseline memory.json --force`" in failure(result)
    assert run("compare", "--save-baseline", "memory.json", "--force").exit_code == 0
    assert run("compare").exit_code == 0
    elsewhere = run("compare", "--dim", "batch=2", "--max-regression", "3%")
    assert elsewhere.exit_code == 2
    assert "`--dim`, `--max-regression`" in failure(elsewhere)


def test_without_a_baseline_no_command_is_named_that_writes_one(model: Path, tmp_path: Path) -> None:
    text = CONFIGURATION.replace('baseline = "memory.json"', "").replace("1MiB", "1KiB")
    (tmp_path / "ckplan.toml").write_text(text, encoding="utf-8")
    result = run("compare", "--json")
    assert result.exit_code == 1
    assert "save memory, or raise the budget" in failure(result)
    assert json.loads(result.stdout)["accept"] == ""


def test_one_bad_model_does_not_hide_the_others(model: Path, tmp_path: Path) -> None:
    text = CONFIGURATION.replace('baseline = "memory.json"', "") + "[models.three]\npath = 'missing.onnx'\n"
    (tmp_path / "pyproject.toml").write_text(
        text.replace("[models", "[tool.ckplan.models").replace("strategy", "[tool.ckplan]\nstrategy", 1),
        encoding="utf-8",
    )
    result = run("compare", "--junit", "out.xml")
    assert result.exit_code == 3
    assert "three: no such file" in failure(result)
    assert "3 checks: 2 passed, 1 error" in result.stdout
    cases = ElementTree.parse(tmp_path / "out.xml").getroot()[0]
    assert [[child.tag for child in case] for case in cases] == [["system-out"], ["system-out"], ["error"]]
    assert run("compare", "--save-baseline", "memory.json").exit_code == 3
    assert not (tmp_path / "memory.json").exists()


def test_ci_is_told(model: Path, baseline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    summary = tmp_path / "summary.md"
    summary.write_text("before\n", encoding="utf-8")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    result = run("compare", baseline, model, *DROPPED, "--markdown", "out.md", "--junit", "out.xml", "--quiet")
    assert result.exit_code == 1
    lines = result.stderr.splitlines()
    assert [line[:8] for line in lines] == ["::error ", "ckplan: "]
    assert "%0A" in lines[0]
    page = (tmp_path / "out.md").read_text(encoding="utf-8")
    assert summary.read_text(encoding="utf-8") == "before\n" + page
    assert "<code>y8</code>" in page
    (case,) = ElementTree.parse(tmp_path / "out.xml").getroot()[0]
    assert "'y8'" in str(case.findtext("failure"))


def test_ci_is_told_why_there_is_no_comparison(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    result = run("compare", "missing\n::error.json", model)
    assert result.exit_code == 3
    first, second = result.stderr.splitlines()
    assert first.startswith("::error title=ckplan compare::there is no file 'missing")
    assert second.startswith("ckplan: error: there is no file")


def test_odd_names_are_text_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    path = write_model(tmp_path / "model.onnx")
    model = onnx.load(path)
    renamed = {"y1": "<script>x</script>\n::error::owned|", "y3": "y\x07`3`"}
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [renamed.get(name, name) for name in names]
        node.name = f"{node.name}\n::error file=a::{node.name}|"
    onnx.save(model, path)
    names = ("--markdown", "out.md", "--junit", "out.xml", "--json", "--strategy", "none")
    result = run("compare", path, "--budget", "1", *names)
    assert result.exit_code == 1
    assert sum(line.startswith("::") for line in result.stderr.splitlines()) == 1
    json.loads(result.stdout)
    ElementTree.parse(tmp_path / "out.xml")
    assert "<script" not in (tmp_path / "out.md").read_text(encoding="utf-8")
    base = tmp_path / "base.onnx"
    shutil.copy(write_model(tmp_path / "small.onnx", layers=6), base)
    result = run("compare", base, path, "--strategy", "none", "--markdown", "two.md", "--quiet")
    assert [line for line in result.stdout.splitlines() if line.strip().startswith("::")] == []
    assert "<script" not in (tmp_path / "two.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["missing.json", "model.onnx"], 3, "there is no file 'missing.json'"),
        (["model.onnx", "missing.onnx"], 3, "no such file: missing.onnx"),
        (["broken.json", "model.onnx"], 3, "'broken.json' is not JSON"),
        (["memory.json"], 2, "there is nothing to compare"),
        (["memory.json", "--budget", "1MiB"], 2, "is not a model, and there is nothing to compare it with"),
        (["model.onnx", "--save-baseline", "model.onnx", "-f"], 2, "is a file that this command reads"),
        (["model.onnx", "model.onnx", "--save-baseline", "model.onnx", "-f"], 2, "is a file that this command reads"),
        (["memory.json", "model.onnx", "--markdown", "model.onnx"], 2, "is a file that this command reads"),
        (["memory.json", "model.onnx", "--junit", "memory.json"], 2, "is a file that this command reads"),
        (["memory.json", "model.onnx", "--junit", "there.txt"], 2, "there.txt exists"),
        (["memory.json", "model.onnx", "--junit", "nowhere/out.xml"], 2, "directory nowhere does not exist"),
        (["memory.json", "model.onnx", "--junit", "a", "--markdown", "./a"], 2, "two outputs are a"),
        (["memory.json", "model.onnx", "--junit", "a", "--report", "junit=./a"], 2, "two outputs are a"),
        (["memory.json", "model.onnx", "--strategy", "memroy"], 2, "did you mean `memory`?"),
        (["memory.json", "model.onnx", "--max-regression", "3"], 2, "is not a percentage"),
        (["memory.json", "model.onnx", "--config", "ckplan.toml"], 2, "leave out one or the other"),
        (["--config", "missing.toml"], 3, "there is no file 'missing.toml'"),
        (["--config", "broken.json"], 3, "'broken.json' is not TOML"),
        ([], 2, "there is no ckplan.toml"),
        (["memory.json", "model.onnx", "--clip-norm", "1"], 2, "there is no optimizer"),
        (["memory.json", "model.onnx", "--tolerance", "3%"], 2, "none decides; add --measured, or leave it out"),
        (["memory.json", "model.onnx", "--device", "cuda"], 2, "none is run; add --measure, or leave it out"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_bad_input_is_one_line_and_leaves_files_alone(
    arguments: list[str], code: int, said: str, model: Path, baseline: Path, tmp_path: Path
) -> None:
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "there.txt").write_text("precious")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    result = run("compare", *arguments)
    assert result.exit_code == code
    assert said in failure(result)
    assert result.stdout == ""
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_outputs_without_permission_are_found_out_first(
    model: Path, baseline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Asked of the system, because a test run as root may write everywhere.
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    monkeypatch.setattr(os, "access", lambda path, mode: not (mode == os.W_OK and Path(path) == summary.parent))
    result = run("compare", baseline, model)
    assert result.exit_code == 5
    assert "no permission to write" in failure(result)
    assert not summary.exists()


def test_a_disk_that_fills_up_does_not_hide_what_grew(
    model: Path, baseline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(text: str, path: Path, *, force: bool) -> None:
        raise EnvironmentUnavailableError(f"no space left to write {path}")

    monkeypatch.setattr(saving, "write_text", full)
    result = run("compare", baseline, model, "--dim", "batch=48", "--markdown", tmp_path / "m.md")
    assert result.exit_code == 5
    assert "exceeds the limit" in result.stdout
    assert "no space left to write" in failure(result)


def test_an_input_can_be_set(tmp_path: Path) -> None:
    """The branch that the number rules out is not there: what it would have needed is not compared."""
    path = tmp_path / "rates.onnx"
    text = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[4096] x, bool fast) => (float[4096] y) {
        y = If (fast) <then_branch = a () => (float[4096] u) { u = Tanh(x) },
                       else_branch = b () => (float[4096] v) { v1 = Tanh(x) v2 = Exp(v1) v3 = Mul(v1, v2) v = Neg(v3) }>
    }"""
    onnx.save(onnx.parser.parse_model(text), path)
    sizes = {}
    for number in ("true", "false"):
        result = run("compare", path, path, "--inference", "--set", f"fast={number}", "--json")
        assert result.exit_code == 0, result.stderr
        (check,) = json.loads(result.stdout)["checks"]
        sizes[number] = check["limit"]
    assert sizes["true"] < sizes["false"]
