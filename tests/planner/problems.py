"""Problems for the tests: hand-made chains and random DAGs with a backward pass."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from hypothesis import strategies as st

from ckplan.planner import Kind, Op, Problem, Tensor


@dataclass
class ProblemBuilder:
    """Collects ops and tensors in order."""

    ops: list[Op] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)

    def tensor(self, size: int, kind: Kind = Kind.ACTIVATION, name: str = "") -> int:
        self.tensors.append(Tensor(name or f"t{len(self.tensors)}", size, kind))
        return len(self.tensors) - 1

    def op(self, inputs: list[int], outputs: list[int], *, name: str = "", **fields: object) -> None:
        self.ops.append(Op(name or f"op{len(self.ops)}", tuple(inputs), tuple(outputs), **fields))  # type: ignore[arg-type]

    def build(self) -> Problem:
        return Problem(tuple(self.ops), tuple(self.tensors))


def chain(layers: int, size: int = 100, weight: int = 10) -> Problem:
    """A chain of MatMul and Tanh with its backward pass, as the rewriter sees it; Tanh overwrites its input."""
    build = ProblemBuilder()
    activations = [build.tensor(size, Kind.INPUT, "x")]
    for layer in range(layers):
        product = build.tensor(size, name=f"z{layer}")
        build.op([activations[-1]], [product], name=f"matmul{layer}", cost=10.0, heavy=True)
        activation = build.tensor(size, name=f"a{layer}")
        build.op([product], [activation], name=f"tanh{layer}", inplace={activation: (product,)})
        activations.append(activation)
    build.op([activations[-1]], [build.tensor(1, Kind.OUTPUT, "loss")], name="loss")
    gradient = build.tensor(size, name="seed")
    build.op([], [gradient], name="grad_loss", backward=True)
    for layer in reversed(range(layers)):
        local = build.tensor(size)
        build.op([activations[layer + 1]] * 2, [local], name=f"dtanh{layer}", backward=True)
        product = build.tensor(size)
        build.op([gradient, local], [product], name=f"gz{layer}", backward=True)
        build.op(
            [activations[layer], product],
            [build.tensor(weight, Kind.OUTPUT, f"gw{layer}")],
            name=f"dw{layer}",
            cost=10.0,
            backward=True,
        )
        if layer:
            gradient = build.tensor(size)
            build.op([product], [gradient], name=f"dx{layer}", cost=10.0, backward=True)
    return build.build()


def uneven_chain(layers: int, seed: int) -> Problem:
    """A chain of ops of random sizes and costs; the gradient of each reads what the op reads."""
    rng, build = random.Random(seed), ProblemBuilder()
    values = [build.tensor(rng.randrange(1, 65), Kind.INPUT)]
    for _ in range(layers):
        values.append(build.tensor(rng.randrange(1, 65)))
        build.op(values[-2:-1], values[-1:], cost=rng.uniform(0.2, 8))
    gradient = build.tensor(1)
    build.op(values[-1:], [gradient], backward=True)
    for value in values[-2::-1]:
        arriving, gradient = gradient, build.tensor(build.tensors[value].bytes)
        build.op([arriving, value], [gradient], backward=True)
    return build.build()


@st.composite
def problems(draw: st.DrawFn, max_forward: int = 12) -> Problem:
    """Random DAGs: forward ops of one or two outputs, views, in-place ops, and a backward op for each forward op.

    Some backward ops stand within the forward pass, as those do that read nothing of the loss.
    """
    build = ProblemBuilder()
    values = [build.tensor(draw(st.integers(1, 50)), Kind.INPUT) for _ in range(draw(st.integers(1, 2)))]
    values.append(build.tensor(draw(st.integers(1, 50)), Kind.PARAMETER))
    forward: list[tuple[list[int], int]] = []
    for _ in range(draw(st.integers(1, max_forward))):
        inputs = draw(st.lists(st.sampled_from(values), min_size=1, max_size=3))
        shape = draw(st.sampled_from(["new", "new", "view", "inplace", "two"]))
        size = build.tensors[inputs[0]].bytes if shape in ("view", "inplace") else draw(st.integers(0, 50))
        made = build.tensor(size)
        outputs = [made] + ([build.tensor(draw(st.integers(0, 50)))] if shape == "two" else [])
        build.op(
            inputs,
            outputs,
            cost=draw(st.floats(0.1, 10)),
            workspace=draw(st.integers(0, 20)),
            recomputable=draw(st.integers(0, 9)) > 0,
            heavy=draw(st.booleans()),
            views={made: inputs[0]} if shape == "view" else {},
            inplace={made: (inputs[0],)} if shape == "inplace" else {},
        )
        forward.append((inputs, made))
        values.extend(outputs)
        if draw(st.integers(0, 9)) == 0:
            build.op([made, inputs[0]], [build.tensor(draw(st.integers(0, 50)))], backward=True)
    build.op([values[-1]], [build.tensor(1, Kind.OUTPUT)], name="loss")
    gradient = build.tensor(build.tensors[values[-1]].bytes)
    build.op([], [gradient], name="seed", backward=True)
    gradients = {values[-1]: gradient}
    for inputs, made in reversed(forward):
        arriving = gradients.get(made, gradient)
        stashed = draw(st.lists(st.sampled_from([*inputs, made]), max_size=2))
        kind = draw(st.sampled_from([Kind.ACTIVATION, Kind.ACTIVATION, Kind.OUTPUT]))
        result = build.tensor(build.tensors[inputs[0]].bytes, kind)
        build.op([arriving, *stashed], [result], cost=draw(st.floats(0.1, 10)), backward=True)
        gradients[inputs[0]] = gradient = result
    return build.build()
