"""A sweep on Dask is complete and equal to the one that was made here, also when a worker is killed in the middle."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from examples.sweep.sweep import Cell, Row, here, on, plan, sweep
from tests.cli.conftest import write_model

BUDGETS = ("1%", "70%", "85%", "95%", "100%")


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> list[Cell]:
    folder = tmp_path_factory.mktemp("models")
    models = [
        write_model(folder / f"{activation}{layers}.onnx", activation=activation, layers=layers)
        for activation in ("Tanh", "Softplus")
        for layers in (4, 6, 8)
    ]
    return [(str(model), budget) for model in models for budget in BUDGETS]


@pytest.fixture(scope="module")
def serial(cells: list[Cell], tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    return sweep(cells, tmp_path_factory.mktemp("serial") / "table")


def test_a_table_has_a_row_for_each_cell(cells: list[Cell], serial: list[Row]) -> None:
    assert [(row["model"], row["budget"]) for row in serial] == cells
    assert len(cells) == 6 * 5
    for row in serial:
        if row["budget"] in ("1%", "100%"):
            assert ("error" in row) == (row["budget"] == "1%"), row
    assert any(row.get("overhead", 0) > 0 for row in serial), "nothing was recomputed"


def test_a_sweep_goes_on_where_it_was_cut_off(cells: list[Cell], serial: list[Row], tmp_path: Path) -> None:
    asked: list[Cell] = []

    def cut(missing: Sequence[Cell]) -> Iterator[Row]:
        asked.extend(missing)
        return here(missing)

    sweep(cells[:3], tmp_path / "table")
    with (tmp_path / "table").open("a") as file:
        file.write('{"model": "half a li')
    assert sweep(cells[:6], tmp_path / "table", cut) == serial[:6]
    assert asked == cells[3:6]
    assert sweep(cells[:6], tmp_path / "table", cut) == serial[:6]
    assert asked == cells[3:6]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of another package
def test_a_worker_is_killed_in_the_middle(cells: list[Cell], serial: list[Row], tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed", reason="distributed, which the example sweeps with, is missing")
    killed: list[int] = []
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        processes = client.run(os.getpid)

        def interrupted(missing: Sequence[Cell]) -> Iterator[Row]:
            for row in on(client)(missing):
                at_work = [address for address, tasks in client.processing().items() if tasks]
                if not killed and at_work:
                    killed.append(processes[at_work[0]])
                    os.kill(killed[0], signal.SIGKILL)
                yield row

        assert sweep(cells, tmp_path / "table", interrupted) == serial
    assert killed
    assert plan(cells[1]) == serial[1]
