"""A runtime is one value: another one gives another problem of the same graph."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import ckplan
from ckplan.runtime import problem_of
from ckplan.runtime.cpu import CPU

MODEL = Path(__file__).resolve().parents[2] / "sample_models" / "resnet_tiny.onnx"


def test_another_runtime_gives_another_problem_of_the_same_graph() -> None:
    model = ckplan.build_training_graph(ckplan.load(MODEL, dims={"batch": 4}).model).model
    single = replace(CPU, name="one thread", threads=1)
    copying = replace(CPU, name="copies", view=lambda node: None, overwritten=lambda node: None)
    usual, fewer, more = (problem_of(model, runtime) for runtime in (CPU, single, copying))
    assert sum(op.workspace for op in fewer.ops) < sum(op.workspace for op in usual.ops)
    assert any(op.views for op in usual.ops)
    assert not any(op.views or op.inplace for op in more.ops)
    assert problem_of(model).ops == usual.ops
