"""What control flow in control flow takes, beside what onnxruntime's counters say: each body has a frame of its own."""

from __future__ import annotations

import random
import re
from pathlib import Path

import numpy as np
import onnx
import pytest

import ckplan

CHUNK = 256
"""Bytes to which onnxruntime rounds up what it hands out."""


class Nested:
    """The lines of a random model whose control flow holds control flow.

    Both branches of an If have the same nodes: which one is taken makes no difference to memory.
    """

    def __init__(self, seed: int, batch: int, width: int, trips: int) -> None:
        self.source = random.Random(seed)
        self.names = 0
        self.loops = 0
        self.shape = f"{batch},{width}"
        self.trips, self.width = trips, width

    def name(self) -> str:
        self.names += 1
        return f"v{self.names}"

    def tensor(self, name: str) -> str:
        return f"float[{self.shape}] {name}"

    def chain(self, x: str, depth: int) -> tuple[str, str]:
        """One to three nodes, one after the other: their lines, and the last result."""
        lines = []
        for _ in range(self.source.randint(1, 3)):
            kind = self.source.choice(["Tanh", "Sin", "MatMul", "Add", *["nested"] * (2 * (depth > 0))])
            if kind == "nested":
                more, x = self.nested(x, depth - 1)
                lines.append(more)
                continue
            y, other = self.name(), self.name()
            made = {
                "MatMul": f"{y} = MatMul ({x}, r)",
                "Add": f"{other} = Cos ({x}) {y} = Add ({x}, {other})",
            }
            lines.append(made.get(kind, f"{y} = {kind} ({x})"))
            x = y
        return " ".join(lines), x

    def nested(self, x: str, depth: int) -> tuple[str, str]:
        """A node of control flow: its lines, and its result."""
        return getattr(self, self.source.choice(["conditional", "loop", "scan"]))(x, depth)

    def conditional(self, x: str, depth: int) -> tuple[str, str]:
        y, state = self.name(), self.source.getstate()
        then, first = self.chain(x, depth)
        self.source.setstate(state)
        other, second = self.chain(x, depth)
        return (
            f"""{y}q = ReduceSum <keepdims = 0> ({x}) {y}c = Less ({y}q, large) {y} = If ({y}c) <
            then_branch = {y}t () => ({self.tensor(first)}) {{ {then} }},
            else_branch = {y}e () => ({self.tensor(second)}) {{ {other} }}>""",
            y,
        )

    def loop(self, x: str, depth: int) -> tuple[str, str]:
        y, z = self.name(), self.name()
        body, end = self.chain(z, depth)
        self.loops += 1
        return (
            f"""{y} = Loop (n, yes, {x}) <body = {y}b (int64 {y}i, bool {y}k, {self.tensor(z)}) =>
            (bool {y}m, {self.tensor(end)}) {{ {y}m = Identity ({y}k) {body} }}>""",
            y,
        )

    def scan(self, x: str, depth: int) -> tuple[str, str]:
        y, z = self.name(), self.name()
        body, end = self.chain(f"{y}a", depth)
        return (
            f"""{y}s, {y}r = Scan <num_scan_inputs = 1, body = {y}b ({self.tensor(z)}, {self.tensor(y + "x")}) =>
            ({self.tensor(end)}, {self.tensor(y + "o")}) {{ {y}a = Add ({z}, {y}x) {body} {y}o = Sin ({end}) }}
            > ({x}, rows) {y}u = ReduceSum <keepdims = 0> ({y}r, first) {y} = Add ({y}s, {y}u)""",
            y,
        )

    def model(self, outermost: str = "nested") -> onnx.ModelProto:
        body, end = getattr(self, outermost)("h", 2)
        text = f"""<ir_version: 8, opset_import: ["": 21]>
            g (float[{self.shape}] x, float[{self.trips},{self.shape}] rows) => (float loss) {{
            h = MatMul (x, w) {body} loss = ReduceSumSquare <keepdims = 0> ({end}) }}"""
        model = onnx.parser.parse_model(text)
        weight = np.random.default_rng(0).standard_normal((self.width, self.width)).astype(np.float32) / 8
        arrays = {"w": weight, "r": weight[::-1], "n": np.array(self.trips), "yes": np.array(True)}
        arrays |= {"large": np.float32(1e9), "first": np.array([0])}
        read = set(re.findall(r"\w+", text))
        kept = {name: np.asarray(array) for name, array in arrays.items() if name in read}
        model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in kept.items())
        return model


def promised_and_measured(model: onnx.ModelProto, path: Path, inference: bool) -> tuple[int, int]:
    onnx.save(model, path)
    step = ckplan.open_model(path, inference=inference)
    measured = ckplan.measure(step.ordered, runs=1, heap=False).peak_activations
    assert measured is not None
    return step.baseline.peak_activations, measured


@pytest.mark.parametrize("inference", [True, False], ids=["forward", "training"])
@pytest.mark.parametrize(("batch", "width", "trips"), [(32, 96, 3), (16, 64, 1)])
@pytest.mark.parametrize("seed", [3, 5, 28])
def test_is_what_the_counters_show(seed: int, batch: int, width: int, trips: int, inference: bool, tmp_path: Path):
    drawn = Nested(seed, batch, width, trips)
    promised, measured = promised_and_measured(drawn.model(), tmp_path / "model.onnx", inference)
    # What a Loop has at its end, clocks and conditions among it, is told in whole chunks where it is told at all.
    assert measured <= promised <= measured + (3 + 2) * CHUNK * max(1, drawn.loops)


@pytest.mark.parametrize("inference", [True, False], ids=["forward", "training"])
@pytest.mark.parametrize(("outermost", "trips"), [("scan", 3), ("conditional", 3), ("loop", 3), ("loop", 1)])
@pytest.mark.parametrize("seed", [3, 5])
def test_what_is_in_use_in_later_runs(seed: int, outermost: str, trips: int, inference: bool, tmp_path: Path) -> None:
    """A kernel asks for its outputs, its states, and what its bodies make; in use is what is there when nodes end."""
    drawn = Nested(seed, 32, 96, trips)
    onnx.save(drawn.model(outermost), tmp_path / "model.onnx")
    step = ckplan.open_model(tmp_path / "model.onnx", inference=inference)
    found = ckplan.measure(step.ordered, runs=1, heap=False, inside=True)
    assert found.inside is not None
    assert found.counters is not None
    assert found.counters.steady is not None
    expected, measured = found.inside.arena.steady, found.counters.steady
    assert measured.held == expected.held
    # A condition that a Loop's body hands on is asked for only if it is computed.
    assert measured.in_use <= expected.in_use <= measured.in_use + 3 * CHUNK * drawn.loops


class Repeated(Nested):
    """A Loop whose body is an If of a few nodes."""

    def chain(self, x: str, depth: int) -> tuple[str, str]:
        if depth == 2:
            return self.conditional(x, 0)
        a, b, c, d = (self.name() for _ in range(4))
        return f"{a} = Tanh ({x}) {b} = MatMul ({a}, r) {c} = Sin ({b}) {d} = MatMul ({c}, r)", d


@pytest.mark.parametrize("inference", [True, False], ids=["forward", "training"])
@pytest.mark.parametrize(("batch", "width"), [(3, 4), (3, 65)])
def test_a_branch_that_runs_again_has_a_block_of_its_own(batch: int, width: int, inference: bool, tmp_path: Path):
    model = Repeated(0, batch, width, 4).model("loop")
    promised, measured = promised_and_measured(model, tmp_path / "model.onnx", inference)
    assert measured <= promised <= measured + 3 * CHUNK
