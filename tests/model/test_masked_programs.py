"""Random programs over what masks choose compute with all elements what they computed with those that are chosen."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ckplan.model.loading import normalise
from tests.model.models import normal, parse, run

_HOW = ("rows of a mask", "elements of a mask", "slots beside", "slots across", "pairs")
"""What is chosen of four tokens: by a mask [4] or [4, 3], by who asked for an expert, or which tokens are alike."""


class _Program:
    """A program that is written node by node; what is chosen is [n, 3], a row, or [n], a number for each."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.how = self.draw.choice(_HOW)
        self.nodes: list[str] = []
        self.rows: list[str] = []
        self.numbers: list[str] = []
        self.terms: list[str] = []

    def node(self, op_type: str, *inputs: str, **attributes: object) -> str:
        """Write a node; return the name of its result."""
        name = f"v{len(self.nodes)}"
        told = ", ".join(f"{key} = {value}" for key, value in attributes.items())
        self.nodes.append(f"{name} = {op_type}{f'<{told}>' if told else ''}({', '.join(inputs)})")
        return name

    def choose(self) -> str:
        """Write what is read at places of a mask; return the column of tokens, [n, 1]."""
        if self.how == "rows of a mask":
            mask = self.node("Squeeze", self.node("Gather", "mask", "one", axis=1), "one")
        elif self.how == "elements of a mask":
            mask = "mask"
        elif self.how == "pairs":
            mask = self.node("Greater", self.node("MatMul", "x", self.node("Transpose", "x")), "half")
        else:
            self.nodes.append("asked, experts = TopK<axis = -1>(q, two)")
            mask = self.node("Equal", "experts", "expert")
            mask = mask if self.how == "slots beside" else self.node("Transpose", mask)
        places = self.node("Transpose", self.node("NonZero", mask))
        if self.how == "rows of a mask":
            self.rows += [self.node("GatherND", "p", places), self.node("Compress", "p", mask, axis=0)]
            return places
        cut = [self.node("Slice", places, f"from{at}", f"to{at}", "one", "one") for at in (0, 1)]
        flat = [self.node("Squeeze", one, "one") for one in cut]
        token, other = (1, 0) if self.how == "slots across" else (0, 1)
        self.rows += [self.node("GatherND", "p", cut[token]), self.node("Gather", "x", flat[token])]
        if self.how == "elements of a mask":
            self.numbers.append(self.node("GatherND", "p", places))
        elif self.how == "pairs":
            self.rows.append(self.node("Gather", "p", flat[1]))
        else:
            self.numbers.append(self.node("GatherND", "asked", self.node("Concat", cut[token], cut[other], axis=1)))
            number = self.node("Add", self.node("Mul", flat[token], "two"), flat[other])
            self.numbers.append(self.node("Gather", self.node("Reshape", "asked", "minus_one"), number))
        return cut[token]

    def work(self) -> None:
        """Write a node, or several, that read what is chosen."""
        kind = self.draw.choice([kind for kind in (self.rows, self.numbers) if kind])
        value, like = self.draw.choice(kind), self.draw.choice(kind)
        size = self.node("Cast", self.node(self.draw.choice(["Shape", "Size"]), value), to=1)
        size = self.node("ReduceMax", size, keepdims=0)
        makers = [
            lambda: self.node(self.draw.choice(["Erf", "Neg", "Sigmoid", "Softplus", "Tanh"]), value),
            lambda: self.node(self.draw.choice(["Add", "Mul", "Sub"]), value, like),
            lambda: self.node(self.draw.choice(["LogSoftmax", "Softmax"]), value, axis=0),
            lambda: self.node("CumSum", value, "first", exclusive=self.draw.randint(0, 1)),
            lambda: self.node("Sub", value, self.node("ReduceMean", value, "from0", keepdims=1)),
            lambda: self.node("Div", value, self.node("Add", size, "half")),
        ]
        if kind is self.rows:
            makers += [
                lambda: self.node("MatMul", value, "square"),
                lambda: self.node("MatMul", value, self.node("MatMul", self.node("Transpose", value), like)),
                lambda: self.node("Reshape", self.node("Tanh", self.node("Reshape", value, "minus_one")), "threes"),
            ]
        kind.append(self.draw.choice(makers)())
        if kind is self.rows and self.numbers:
            self.rows.append(self.node("Mul", kind[-1], self.node("Unsqueeze", self.numbers[-1], "minus_one")))
        if self.draw.random() < 0.3:
            reductions = ["L2", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare"]
            self.terms.append(self.node(f"Reduce{self.draw.choice(reductions)}", kind[-1], keepdims=0))

    def text(self) -> str:
        """Write the whole program."""
        tokens = self.choose()
        for _ in range(self.draw.randint(2, 6)):
            self.work()
        one_each = self.how not in ("elements of a mask", "pairs")
        how = self.draw.choice(['"add"', '"none"']) if one_each else '"add"'
        written = self.node("ScatterND", "p", tokens, self.rows[-1], reduction=how)
        loss = self.node("ReduceSumSquare", written, keepdims=0)
        for term in self.terms:
            loss = self.node("Add", loss, term)
        return " ".join([*self.nodes, f"loss = Identity({loss})"])


def _model(text: str) -> onnx.ModelProto:
    integers: dict[str, Sequence[int] | int] = {"minus_one": [-1], "one": [1], "two": [2], "threes": [-1, 3]}
    integers |= {"from0": [0], "to0": [1], "from1": [1], "to1": [2], "first": 0, "expert": 1}
    arrays = {name: np.asarray(numbers, np.int64) for name, numbers in integers.items()}
    arrays |= {"w": normal(0, 3), "square": normal(1, 3, 3), "gate": normal(3, 3, 3)}
    arrays |= {"half": np.asarray(0.5, np.float32)}
    head = '<ir_version: 10, opset_import: ["": 21]> g (float[4,3] x, bool[4,3] mask) => (float loss)'
    return parse(f"{head} {{ p = Mul(x, w) q = MatMul(x, gate) {text} }}", arrays)


@pytest.mark.parametrize("seed", range(60))
def test_what_is_chosen_is_computed_of_all_elements(seed: int) -> None:
    program = _Program(seed)
    model = _model(program.text())
    forward = normalise(ir.from_proto(model))
    if not any("not chosen left out" in note for note in forward.notes):
        # running sums go by the order of the slots, which is not that of tokens
        assert program.how == "slots across"
        assert any("CumSum" in node for node in program.nodes)
    fed_to = {value.name for value in forward.model.graph.inputs}
    for other in range(4):
        fed = {"x": normal(100 * seed + other, 4, 3), "mask": np.random.default_rng(other).random((4, 3)) < 0.6}
        expected = run(model, fed)[0]
        found = run(forward.model, {name: array for name, array in fed.items() if name in fed_to})[0]
        if np.isfinite(expected) and not np.isnan(found):  # of nothing a mean is no number, which onnxruntime calls 0
            np.testing.assert_allclose(found, expected, rtol=2e-4, atol=1e-4)
