"""The line that a waiting user sees: what is done, how long, and what Ctrl-C would leave."""

from __future__ import annotations

import logging

import pytest

from ckplan.cli.terminal import waiting
from ckplan.cli.terminal.waiting import Waiting, listening, shown


def test_the_line_tells_the_time_and_the_best_plan() -> None:
    now = [100.0]
    line = Waiting("planning", clock=lambda: now[0])
    assert line.line() == "planning … 0 s"
    with listening(line.hear, logging.DEBUG):
        logging.getLogger("ckplan.planner.frontier").info("eviction: 7 within 1 MiB")
        logging.getLogger("ckplan.planner.frontier").debug("best so far", extra={"best": "1.0 MiB, +3.0 % of compute"})
    now[0] += 125
    best = "best so far 1.0 MiB, +3.0 % of compute; Ctrl-C takes it"
    assert line.line() == f"planning … 2:05 min · {best} · eviction: 7 within 1 MiB"
    with listening(line.hear):
        logging.getLogger("ckplan.pipeline.planning").info("writing the plan into the graph")
    assert line.line() == "planning … 2:05 min · writing the plan into the graph"
    line.go_on("laying out memory")
    assert line.line() == "laying out memory … 2:05 min"


def test_plain_lines_without_a_terminal(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(waiting, "PERIOD", 0.01)
    said = waiting.threading.Event()
    say = waiting.say

    def announced(line: str) -> None:
        say(line)
        said.set()

    monkeypatch.setattr(waiting, "say", announced)
    with shown(Waiting("planning"), colour=False):
        assert said.wait(60)
    assert capfd.readouterr().err.startswith("… planning … 0 s\n")


def test_the_search_says_what_an_interruption_leaves(caplog: pytest.LogCaptureFixture) -> None:
    from ckplan.planner.strategies import parse_strategy
    from tests.planner.problems import chain

    problem = chain(12)
    with caplog.at_level(logging.DEBUG, logger="ckplan"):
        parse_strategy("auto").solve(problem, None)
    assert [record for record in caplog.records if hasattr(record, "best")]
