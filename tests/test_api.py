"""The commands as functions: any form of a model, and the figures of the command line."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from click.testing import CliRunner, Result

import ckplan
from ckplan.cli import cli
from ckplan.errors import InfeasibleError, ModelError, UsageError
from tests.cli.conftest import write_model


def command(*words: object) -> Result:
    """Run a command, which has to succeed."""
    result = CliRunner().invoke(cli, [str(word) for word in words])
    assert result.exit_code == 0, result.stderr
    return result


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("api") / "model.onnx", activation="Sigmoid", layers=8)


def test_every_form_of_a_model_is_the_same_model(path: Path) -> None:
    forms = (path, str(path), onnx.load(path), ir.load(path), ckplan.open_model(path, dims={"batch": 64}))
    peaks = set()
    for form in forms:
        sizes = {} if isinstance(form, ckplan.Step) else {"dims": {"batch": 64}}
        peaks.add(ckplan.analyze(form, strategies=[], **sizes).base.peak_activations)
    assert len(peaks) == 1


def test_one_number_whoever_is_asked(path: Path, tmp_path: Path) -> None:
    options = ("--dim", "batch=64")
    figures = {
        "analyze": json.loads(command("analyze", path, *options, "--strategy", "none", "--json").stdout)["base"],
        "rewrite": json.loads(command("rewrite", path, "-o", tmp_path / "a.onnx", *options, "--json").stdout)["base"],
        "report": json.loads(command("report", path, "-o", tmp_path / "a.html", *options, "--json").stdout)["base"],
        "pareto": json.loads(command("pareto", path, *options, "--strategy", "none", "--json").stdout)["base"],
    }
    peaks = {name: found["peak_activations"] for name, found in figures.items()}
    command("grad", path, "-o", tmp_path / "grad.onnx", *options)
    peaks["grad"] = int(onnx_metadata(tmp_path / "grad.onnx")["pkg.ckplan.predicted_peak_activations"])
    command("compare", path, *options, "--save-baseline", tmp_path / "base.json")
    stored = json.loads((tmp_path / "base.json").read_text(encoding="utf-8"))
    peaks["compare"] = next(iter(stored["models"].values()))["unplanned"]
    peaks["measure"] = ckplan.measure(tmp_path / "grad.onnx", runs=1, heap=False).counters.peak_activations
    assert set(peaks.values()) == {peaks["analyze"]}, peaks


def onnx_metadata(path: Path) -> dict[str, str]:
    return {entry.key: entry.value for entry in onnx.load(path).metadata_props}


def test_budgets_are_kept_as_the_command_keeps_them(path: Path, tmp_path: Path) -> None:
    planned = ckplan.rewrite(path, dims={"batch": 64}, budget="60%", output=tmp_path / "planned.onnx")
    assert planned.after.peak_activations <= 0.6 * planned.before.peak_activations
    found = ckplan.measure(planned, runs=1, heap=False)
    assert found.counters.peak_activations == planned.after.peak_activations
    data = json.loads(
        command("plan", path, "-o", tmp_path / "p.json", "--dim", "batch=64", "--budget", "60%", "--json").stdout
    )
    assert data["schedule"] == planned.plan.to_json()["schedule"]
    assert ckplan.plan(path, dims={"batch": 64}, budget="60%").schedule == planned.plan.schedule
    with pytest.raises(InfeasibleError):
        ckplan.rewrite(path, dims={"batch": 64}, budget=1)


def test_compare_plans_as_rewrite_does(path: Path) -> None:
    found = ckplan.compare_files(None, path, {"dims": {"batch": 64}}, ckplan.Limits(budget=0.6))
    planned = ckplan.rewrite(path, dims={"batch": 64}, budget=0.6)
    assert found.checks[0].head is not None
    assert found.checks[0].head.peak_activations == planned.after.peak_activations
    assert found.failure is None


def test_a_model_in_memory_without_its_data_is_refused(path: Path, tmp_path: Path) -> None:
    (tmp_path / "apart").mkdir()
    file = tmp_path / "apart" / "model.onnx"
    onnx.save(onnx.load(path), file, save_as_external_data=True, location="weights.bin", size_threshold=0)
    proto, model = onnx.load(file, load_external_data=False), ir.load(file)
    for given in (proto, model):
        with pytest.raises(ModelError, match=r"keeps its weights in .*weights.bin, which does not exist; give"):
            ckplan.open_model(given)
        (tmp_path / "apart" / "weights.bin").unlink(missing_ok=True)


def test_a_protobuf_is_differentiated(path: Path) -> None:
    made = ckplan.build_training_graph(onnx.load(path))
    assert made.gradients
    names = [value.name for value in made.model.graph.inputs]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("options", [{"nonsense": 1}, {"dims": {"batch": 4}, "cost": "guessed"}])
def test_an_option_that_there_is_not_is_named(path: Path, options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        ckplan.open_model(path, **options)


def test_what_holds_a_model_is_told_apart(path: Path) -> None:
    with pytest.raises(UsageError, match="a value of type ForwardModel is no model; give its attribute `model`"):
        ckplan.build_training_graph(ckplan.load(path))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "options", "said"),
    [
        (3, {}, "a value of type int is no model; give a path"),
        (b"model", {}, "a value of type bytes is no model"),
        ("m.onnx", {"budget": -1}, "the budget is -1"),
        ("m.onnx", {"budget": float("nan")}, "the budget is nan"),
        ("m.onnx", {"overhead": -0.1}, "the overhead is -0.1"),
        ("m.onnx", {"seconds": -1}, "the time limit is -1"),
        ("m.onnx", {"budget": float("inf")}, "the budget is inf"),
        ("m.onnx", {"budget": [1]}, "the budget is [1]; give a number"),
        ("m.onnx", {"budget": 512e6}, "the budget is 512000000 times the peak without a plan; bytes are whole"),
        ("m.onnx", {"budget": np.float32(2**20)}, "the budget is 1048576 times the peak without a plan"),
        ("m.onnx", {"overhead": 10}, "the overhead is 10, which is 1000 %; give less, such as 10% (a ratio of 0.1)"),
        ("m.onnx", {"overhead": float("inf")}, "the overhead is inf"),
        ("m.onnx", {"strategy": 3}, "3 is no strategy; write it as text"),
        ("m.onnx", {"dims": 3}, "`dims` cannot be 3; give a table"),
        ("m.onnx", {"device": "tpu"}, "the device is 'tpu'; choose one of auto, cpu, cuda"),
        ("m.onnx", {"device": np.zeros(9)}, "the device is array([0., 0.,"),
        ("m.onnx", {"cost": np.zeros(9)}, "the cost is array([0., 0.,"),
        ("m.onnx", {"of": np.zeros(9)}, "what the budget is of is array([0., 0.,"),
        ("m.onnx", {"training": "no"}, "`training` cannot be 'no'; give true or false"),
        ("m.onnx", {"params": 5}, "`params` cannot be 5; give a path"),
        ("m.onnx", {"loss_scale": []}, "`loss_scale` cannot be []; give a number, or 'input'"),
        ("m.onnx", {"unused": np.zeros((9, 9))}, "`unused` cannot be array([[0., 0., 0.,"),
        ("m.onnx", {"loss": 3}, "`loss` cannot be 3; give a string or a list of strings"),
        ("m.onnx", {"optimizer": "sgd", "clip_norm": "1"}, "`clip_norm` cannot be '1'; give a number"),
    ],
)
def test_what_makes_no_sense_is_refused(model: object, options: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        ckplan.rewrite(model, **options)
    assert said in str(caught.value)


ASKED_WRONGLY: dict[str, Callable[[Path], object]] = {
    "strategy `auto:overhead=0.05` says something else than `--overhead`; give one": lambda path: ckplan.rewrite(
        path, strategy="auto:overhead=0.05", overhead="20%"
    ),
    "strategy `memory` takes no `--time-limit`": lambda path: ckplan.artifacts(
        path, "out", strategy="memory", seconds=3
    ),
    "the file to write is 5; give a path": lambda path: ckplan.rewrite(path, strategy="none", output=5),
    "the tensor is 5; give a string": lambda path: ckplan.explain(path, 5),
    "5 is no strategy": lambda path: ckplan.analyze(path, strategies=5),
    "the folder is 5; give a path": lambda path: ckplan.artifacts(path, 5),
    "the model is 5; give a path": lambda path: ckplan.load(5),
    "the checkpoint is 5; give a path": lambda path: ckplan.read_checkpoint(5),
    "the head is 5; give a path": lambda path: ckplan.compare_files(path, 5),
    "limit `budget` is '40%'; give a number": lambda path: ckplan.Limits(budget="40%"),
    "limit `budget` is 512000000 times the peak": lambda path: ckplan.Limits(budget=512e6),
    "limit `max_regression` is 30, which is 3000 %": lambda path: ckplan.Limits(max_regression=30),
    "the library of custom operators is 5": lambda path: ckplan.use_custom_ops(5),
    "the table of weights is 5": lambda path: ckplan.export_weights(path, 5, "out.onnx"),
    "the file of inputs is 5; give a path": lambda path: ckplan.measure(path, inputs=5),
    "`dims` is 5; give a table": lambda path: ckplan.measure(path, dims=5),
    "`shapes` is 5; give a table": lambda path: ckplan.load(path, shapes=5),
    "a value of type Step is no onnx_ir.Model": lambda path: ckplan.save(ckplan.open_model(path), "out.onnx"),
    "`wrt` cannot be 5; give a string": lambda path: ckplan.build_training_graph(path, wrt=5),
    "`params` is 'w1'; give a list of names": lambda path: ckplan.build_training_graph(path, params="w1"),
    "the optimizer is 'adamw'; make": lambda path: ckplan.add_optimizer(ckplan.build_training_graph(path), "adamw"),
    "the training graph is 5; make": lambda path: ckplan.add_optimizer(5, ckplan.parse_optimizer("sgd")),
    "the problem is 5; make one with `ckplan.problem_of`": lambda path: ckplan.simulate(5, [0]),
    "the schedule is 5; give op ids": lambda path: ckplan.simulate(ckplan.open_model(path).problem, 5),
    "the problem is 6; make one": lambda path: ckplan.bottlenecks(6),
    "the least size of a tensor is '1MiB'; give a number": lambda path: ckplan.bottlenecks(
        ckplan.open_model(path).problem, "1MiB"
    ),
    "the model is TrainingGraph(": lambda path: ckplan.problem_of(ckplan.build_training_graph(path)),
    "the plan is 5; make one with `ckplan.plan`": lambda path: ckplan.emit(ckplan.open_model(path).fused, 5),
    "`options` is 5; give a table": lambda path: ckplan.compare_files(path, path, 5),
    "`limits` is 5; make them with `ckplan.Limits`": lambda path: ckplan.compare_files(path, path, limits=5),
    "`how` is 'cpu'; make it with": lambda path: ckplan.compare_files(path, path, how="cpu"),
    "the strategy is 5; give a subclass of": lambda path: ckplan.register_strategy(5),
    "the meter is 5; give a `ckplan.meter.meter.Meter`": lambda path: ckplan.register_meter(5),
    "the record is 5; give a `ckplan.Operator`": lambda path: ckplan.register_operator(5),
    "the name of the format is 5; give a string": lambda path: ckplan.register_reporter(5),
    "the operator's name is <built-in function len>": lambda path: ckplan.rule(len),
}


@pytest.mark.parametrize("said", ASKED_WRONGLY)
def test_arguments_of_another_kind_are_named(path: Path, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        ASKED_WRONGLY[said](path)
    assert str(caught.value).startswith(said)


def test_paths_may_be_text(path: Path, tmp_path: Path) -> None:
    assert ckplan.compare_files(str(path), str(path)).failure is None
    np.savez(tmp_path / "inputs.npz", x=np.ones((4, 16), np.float32))
    assert ckplan.measure(path, inputs=str(tmp_path / "inputs.npz"), runs=1, heap=False, inside=False).device == "cpu"


def test_one_pattern_needs_no_list(path: Path) -> None:
    assert list(ckplan.build_training_graph(path, wrt="layer0.*").gradients) == ["layer0.weight"]


def test_less_memory_than_none_is_refused(path: Path) -> None:
    with pytest.raises(UsageError, match="the memory is -3; give a number of at least 0"):
        ckplan.fit(path, -3)


def test_a_refusal_tells_what_else_limits_the_plan(path: Path) -> None:
    with pytest.raises(InfeasibleError) as refused:
        ckplan.rewrite(path, budget="40%", overhead="1%", cost="flops")
    assert "has no plan with an overhead of at most 1 % whose file stays within the budget" in str(refused.value)
    assert "or allow more overhead" in refused.value.hint
    # What no plan can do without: which node holds it, and in which tensors.
    assert re.search(
        r"no schedule takes less than [\d.]+ \wi?B, which '.+' holds while it runs \('.+' [\d.]+ ", str(refused.value)
    )


def test_numbers_of_numpy_are_numbers(path: Path) -> None:
    plan = ckplan.plan(path, strategy="memory", budget=np.float32(0.75))
    assert plan.schedule == ckplan.plan(path, strategy="memory", budget=0.75).schedule
    peak = plan.predicted.peak_activations
    assert ckplan.plan(path, strategy="memory", budget=np.int64(peak)).schedule == plan.schedule
    one = np.int64(1)
    assert ckplan.measure(path, runs=one, threads=one, seed=one, dims={"batch": one}, heap=False).threads == 1


def test_a_strategy_may_be_an_object(path: Path) -> None:
    planned = ckplan.rewrite(path, strategy=ckplan.parse_strategy("sqrt:segments=2"))
    assert planned.plan.strategy == "sqrt:segments=2"


def test_one_strategy_needs_no_list(path: Path) -> None:
    step = ckplan.open_model(path)
    assert ckplan.analyze(step, strategies="memory") == ckplan.analyze(step, strategies=["memory"])


def test_sizes_are_whole_numbers(path: Path) -> None:
    for size in ("x", 1.5, -2):
        with pytest.raises(UsageError, match=f"dimension 'batch' is {size!r}"):
            ckplan.analyze(path, dims={"batch": size}, strategies=[])


@pytest.mark.parametrize("given", [np.array([True, False]), "no", 1, None])
def test_switches_are_true_or_false(path: Path, tmp_path: Path, given: Any) -> None:
    """The text "no" was taken for yes, and a file overwritten; of an array, numpy's error came out, or onnx's name."""
    output = tmp_path / "out.onnx"
    output.write_text("precious")
    step = ckplan.open_model(path)
    calls: list[Callable[[], object]] = [
        lambda: ckplan.rewrite(step, strategy="none", output=output, force=given),
        lambda: ckplan.save(step.training.model, output, force=given),
        lambda: ckplan.save(step.training.model, tmp_path / "new.onnx", copy_weights=given),
        lambda: ckplan.artifacts(path, tmp_path / "folder", force=given),
        lambda: ckplan.load(path, training=given),
        lambda: ckplan.measure(path, heap=given),
        lambda: ckplan.measure(path, inside=given),
        lambda: ckplan.verify(path, path, heap=given),
    ]
    for call in calls:
        with pytest.raises(UsageError, match=r"^`\w+` is .*; give True or False$"):
            call()
    assert output.read_text() == "precious"
    assert [file.name for file in tmp_path.iterdir()] == ["out.onnx"]


def test_what_is_registered_or_planned_for_is_of_its_kind(path: Path) -> None:
    anything: Any = 5
    with pytest.raises(UsageError, match="the operator's domain is 5; give a string"):
        ckplan.rule("Odd", domain=anything)
    with pytest.raises(UsageError, match="the version that a rule is since is 'x'; give a whole number of at least 1"):
        ckplan.rule("Odd", since="x", domain="my.odd")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="the rule is 5; give a function of the builder, a node and gradients"):
        ckplan.rule("Odd", domain="my.odd")(anything)
    with pytest.raises(UsageError, match="the operator's name is 5; give a string"):
        ckplan.register_operator(ckplan.Operator(anything, domain="my.odd"))
    with pytest.raises(UsageError, match="the runtime is None; leave it out, or give"):
        ckplan.problem_of(ckplan.open_model(path).model, runtime=None)  # type: ignore[arg-type]


def test_an_open_step_takes_no_options(path: Path) -> None:
    with pytest.raises(UsageError, match="dims"):
        ckplan.analyze(ckplan.open_model(path), dims={"batch": 2})


def test_a_wrong_name_is_found_before_a_plan_is_looked_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(*_: object) -> None:
        pytest.fail("it was planned")

    monkeypatch.setattr("ckplan.pipeline.choosing.rewrite", plan)
    with pytest.raises(UsageError, match="there is no tensor 'nothing'"):
        ckplan.explain(path, "nothing", budget="50%", dims={"batch": 4})


def test_results_are_short_in_a_shell_and_tables_in_a_notebook(path: Path) -> None:
    step = ckplan.open_model(path)
    planned = ckplan.rewrite(step, strategy="memory")
    found = ckplan.analyze(step, strategies=["none"])
    measured = ckplan.measure(path, runs=1, heap=False, inside=False)
    results = (step, planned, planned.plan, planned.before, found, ckplan.pareto(step, strategies=[]), measured)
    results += (ckplan.explain(step, "y0"), ckplan.compare_files(path, path))
    for result in results:
        assert len(repr(result)) < 200
    for result in (planned, found):
        assert result._repr_html_().startswith("<b>")


def test_public_names_stand_in_both_lists() -> None:
    tree = ast.parse(Path(ckplan.__file__).read_text(encoding="utf-8"))
    typed = next(node for node in tree.body if isinstance(node, ast.If))
    imported = {alias.name for node in typed.body for alias in node.names if isinstance(node, ast.ImportFrom)}
    assert imported == set(ckplan.__all__)
    assert all(getattr(ckplan, name) is not None for name in ckplan.__all__)
