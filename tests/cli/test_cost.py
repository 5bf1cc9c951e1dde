"""``--cost measured`` on the commands that plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ckplan.meter.seconds import costs
from tests.cli.test_commands import run


@pytest.mark.parametrize("command", ["plan", "rewrite", "pareto"])
def test_plans_follow_what_was_measured(
    command: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tanh at many times its price: what recomputes Tanh costs more of the step than by the shapes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    runs = [{"op": ["Tanh", "MatMul"], "name": ["act0", "matmul0"], "seconds": [1.0, 1e-9]}]
    monkeypatch.setattr(costs, "run_job", lambda job, request: [{"runs": runs}])
    found = []
    for number, cost in enumerate(("flops", "measured")):
        target = ["--strategy", "sqrt"] if command == "pareto" else ["-o", tmp_path / f"{number}", "--strategy", "sqrt"]
        result = run(command, model, *target, "--cost", cost, "--json", "--dim", "batch=64")
        assert result.exit_code == 0, result.stderr
        data = json.loads(result.stdout)
        if command == "pareto":
            found.append(data["strategies"][0]["overhead"])
        else:
            found.append((data["plan"] if command == "rewrite" else data)["overhead"])
    assert found[0] != pytest.approx(found[1], rel=0.01)
