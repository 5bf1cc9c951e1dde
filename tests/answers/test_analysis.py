"""The step without a plan has one peak, whoever tells it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckplan.answers.analysis import Offer, analyze
from ckplan.answers.pareto import pareto
from ckplan.pipeline import Step, open_step
from ckplan.planner.strategies.keep_all import KeepAll

MODEL = Path(__file__).parents[2] / "sample_models" / "mobilenet_tiny.onnx"


@pytest.fixture(scope="module")
def step() -> Step:
    return open_step(MODEL)


def peaks(offers: tuple[Offer, ...]) -> list[int]:
    return [offer.plan.predicted.peak_activations for offer in offers if offer.plan is not None]


def test_none_takes_what_the_step_takes_without_a_plan(step: Step) -> None:
    assert step.kept.predicted.peak_activations != step.baseline.peak_activations  # what a plan counts is an estimate
    expected = [step.baseline.peak_activations]
    assert peaks(analyze(step, [KeepAll()]).offers) == expected
    assert peaks(pareto(step, [KeepAll()]).offers) == expected
