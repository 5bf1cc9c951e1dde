"""The largest batch that fits, its plan, and that it runs within the memory that it was made for."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import nullcontext, suppress
from pathlib import Path

import onnx
import pytest

import ckplan
from ckplan.answers import fit as fit_module
from ckplan.answers.fit import Fit
from ckplan.errors import InfeasibleError, UsageError
from ckplan.pipeline import Goal, Planned, Step
from ckplan.planner.strategies import Strategy
from tests.cli.test_commands import failure, run

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "sample_models" / "mlp.onnx"
MEMORY = 20 << 20


@pytest.fixture(scope="module")
def found() -> Fit:
    return ckplan.fit(MODEL, MEMORY, strategy="evict", optimizer="sgd")


def test_the_largest_size_fits_and_one_more_does_not(found: Fit) -> None:
    assert found.dimension == "batch"
    sizes = {one.size: one for one in found.sizes}
    largest = found.largest
    assert largest.footprint is not None
    assert largest.footprint.total <= MEMORY < largest.plain
    assert not sizes[largest.size + 1].fits
    assert sizes[largest.size + 1].reason
    assert found.planned.footprint == largest.footprint
    fed = {value.name: value for value in found.planned.model.graph.inputs}
    assert fed["x"].shape[0] == largest.size
    # Where no plan is needed none is made.
    assert all(one.overhead < 0.001 for one in found.sizes if one.fits and one.plain <= MEMORY)


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is of VmRSS, which /proc/self/status tells on Linux")
def test_it_runs_within_that_memory(found: Fit, tmp_path: Path) -> None:
    ckplan.save(found.planned.model, tmp_path / "step.onnx")
    command = [sys.executable, "-m", "benchmarks.hard_limit", str(tmp_path / "step.onnx")]
    done = subprocess.run([*command, str(MEMORY)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    tight = subprocess.run([*command, str(MEMORY // 4)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert tight.returncode == 1, tight.stdout + tight.stderr


def test_time_is_a_second_bound(found: Fit) -> None:
    bounded = ckplan.fit(MODEL, MEMORY, overhead="0%", optimizer="sgd")
    assert bounded.largest.overhead <= 1e-9
    assert bounded.largest.size <= found.largest.size


def test_a_larger_size_may_fit_where_a_smaller_one_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    planned, ample = fit_module._planned, 1 << 40

    def uneven(step: Step, strategy: Strategy, goal: Goal) -> Planned:
        size = {value.name: value for value in step.model.graph.inputs}["x"].shape[0]
        if size < 137 or 150 <= size <= 155:
            return planned(step, strategy, Goal(ample, scope=goal.scope))
        hope = 162 if size > 200 else 155 if size > 155 else 136
        raise InfeasibleError("gaps", least=MEMORY * size // hope + 1)

    monkeypatch.setattr(fit_module, "_planned", uneven)
    monkeypatch.setattr(fit_module, "_growth", lambda total: (0, MEMORY // 125))
    found = ckplan.fit(MODEL, MEMORY, strategy="evict", optimizer="sgd")
    assert found.largest.size == 155
    assert {one.size for one in found.sizes if not one.fits} >= {137, 156}


@pytest.mark.parametrize("caught", [False, True])
def test_an_interruption_takes_the_largest_size_until_then(monkeypatch: pytest.MonkeyPatch, caught: bool) -> None:
    planned, sizes = fit_module._planned, []

    def interrupted(step: Step, strategy: Strategy, goal: Goal) -> Planned:
        sizes.append(step)
        if len(sizes) == 2:
            with suppress(KeyboardInterrupt) if caught else nullcontext():  # as a search that keeps what it has
                signal.raise_signal(signal.SIGINT)
            raise InfeasibleError("nothing was found until then")
        return planned(step, strategy, goal)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    watched = signal.set_wakeup_fd(-1)  # a command that ran in this process would take it for stuck
    monkeypatch.setattr(fit_module, "_planned", interrupted)
    try:
        found = ckplan.fit(MODEL, MEMORY, strategy="evict", optimizer="sgd")
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
        signal.set_wakeup_fd(watched, warn_on_full_buffer=False)
    assert found.interrupted
    assert len(sizes) == 2
    assert [one.size for one in found.sizes] == [found.largest.size]
    assert found.remarks == ["the search was interrupted; this is the largest size that fits until then"]


def test_the_time_limit_is_for_all_sizes_together(monkeypatch: pytest.MonkeyPatch) -> None:
    planned, now, goals = fit_module._planned, [0.0], []

    def slow(step: Step, strategy: Strategy, goal: Goal) -> Planned:
        goals.append(goal.seconds)
        now[0] += 40  # seconds for each size, whatever the time that its search is given
        if len(goals) < 3:
            raise InfeasibleError("it takes more")
        return planned(step, strategy, Goal(goal.budget, scope=goal.scope))

    monkeypatch.setattr(fit_module, "_planned", slow)
    monkeypatch.setattr("ckplan.answers.fit.time.monotonic", lambda: now[0])
    found = ckplan.fit(MODEL, MEMORY, strategy="auto", optimizer="sgd", seconds=60)
    # The first two sizes are looked at in time, and do not fit; what is late is taken as it is found.
    assert goals == [15.0, 15.0, 1e-9]
    assert [one.fits for one in found.sizes] == [True, False, False]
    assert found.remarks == ["the search came to its time limit; this is the largest size that fits until then"]


def test_what_cannot_fit_is_refused() -> None:
    with pytest.raises(InfeasibleError, match=r"not even batch=1 fits into 1\.0 KiB"):
        ckplan.fit(MODEL, "1KiB", optimizer="adamw")
    with pytest.raises(UsageError, match="no input has a free dimension `rows`; there are `batch`"):
        ckplan.fit(MODEL, "1MiB", dim="rows")
    with pytest.raises(UsageError, match=r"is given a size; say which to find: --dim batch=\?"):
        ckplan.fit(MODEL, "1MiB", dims={"batch": 4})
    fixed = onnx.load(MODEL)
    for value in fixed.graph.input:
        value.type.tensor_type.shape.dim[0].dim_value = 4
    with pytest.raises(UsageError, match="the model has no free dimension"):
        ckplan.fit(fixed, "1MiB")


def test_a_refusal_names_memory_with_which_it_fits() -> None:
    with pytest.raises(InfeasibleError) as refused:
        ckplan.fit(MODEL, 12_000_000, optimizer="sgd", strategy="evict")
    assert refused.value.least is not None
    assert f"{refused.value.least} bytes or more" in refused.value.hint
    assert ckplan.fit(MODEL, refused.value.least, optimizer="sgd", strategy="evict").largest.size >= 1


def test_the_command(tmp_path: Path) -> None:
    output = tmp_path / "step.onnx"
    options = ("--memory", "14MiB", "--optimizer", "sgd", "--strategy", "evict", "--dim", "batch=?")
    result = run("fit", MODEL, *options, "-o", output, "--json")
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    assert data["command"] == "fit"
    fitting = [one for one in data["sizes"] if one["fits"]]
    assert data["size"] == max(one["size"] for one in fitting)
    assert all(one["footprint"]["total"] <= 14 << 20 for one in fitting)
    assert output.exists()
    assert run("fit", MODEL, *options, "-o", output).exit_code == 2
    page = run("fit", MODEL, *options, "-q")
    assert f"batch={data['size']} fits into 14.0 MiB" in " ".join(page.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Missing option '--memory'"),
        (["--memory", "lots"], "`lots` is not a size"),
        (["--memory", "1MiB", "--dim", "batch=x"], "'x' is not a whole number"),
        (["--memory", "1MiB", "--dim", "batch=?", "--dim", "rows=?"], "leaves batch and rows open"),
        (["--memory", "1GiB", "--strategy", "auto:overhead=0.2", "--overhead", "10%"], "says something else than"),
    ],
)
def test_bad_options(arguments: list[str], said: str) -> None:
    result = run("fit", MODEL, *arguments)
    assert result.exit_code == 2
    assert said in failure(result)
