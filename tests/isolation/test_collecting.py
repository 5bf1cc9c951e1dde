"""Garbage is looked for less often while a graph is worked at, and as often as before afterwards."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

import ckplan
from ckplan.isolation.collecting import ALLOCATIONS, fewer_collections

CHAIN = Path(__file__).parents[2] / "sample_models" / "tanh_chain.onnx"


@pytest.fixture(autouse=True)
def threshold() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(500, 9, 8)
    yield
    gc.set_threshold(*before)


def test_the_last_one_to_leave_restores_what_was() -> None:
    with fewer_collections():
        with fewer_collections():
            assert gc.get_threshold() == (ALLOCATIONS, 9, 8)
        assert gc.get_threshold() == (ALLOCATIONS, 9, 8)
    assert gc.get_threshold() == (500, 9, 8)


def test_an_error_restores_it_too() -> None:
    with pytest.raises(ckplan.CkplanError):
        ckplan.open_model("nowhere.onnx")
    assert gc.get_threshold() == (500, 9, 8)


@pytest.mark.parametrize("asked", [0, 2 * ALLOCATIONS])
def test_who_looks_less_often_goes_on_so(asked: int) -> None:
    gc.set_threshold(asked)
    with fewer_collections():
        assert gc.get_threshold()[0] == asked
    assert gc.get_threshold()[0] == asked


def test_what_python_is_asked_for_runs_within_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    strategy = ckplan.parse_strategy("memory")
    solve = type(strategy).solve
    monkeypatch.setattr(type(strategy), "solve", lambda *given: (seen.append(gc.get_threshold()[0]), solve(*given))[1])
    ckplan.rewrite(CHAIN, strategy=strategy)
    assert seen == [ALLOCATIONS]
