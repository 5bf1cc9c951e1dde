"""Random bodies: Scans with branches inside, against finite differences, whatever is stored and however it is cut."""

from __future__ import annotations

import random

import numpy as np
import onnx
import pytest

from tests.autodiff.control_flow.models import check, parse

ROW = "double[2,3]"
OPTIONS = ({}, {"time_checkpoints": 2}, {"store": ["none"]}, {"store": ["*"]})


def lines_of(rng: random.Random, prefix: str, values: list[str]) -> list[str]:
    """Random nodes; the values they make are added to those they may read."""
    lines = []
    for index in range(rng.randint(3, 8)):
        kind = rng.choice(["Add", "Mul", "Sub", "Tanh", "Sin", "MatMul", "Sigmoid", "Where", "Identity"])
        name, one, other = f"{prefix}{index}", rng.choice(values), rng.choice(values)
        if kind in ("Add", "Mul", "Sub"):
            lines.append(f"{name} = {kind}({one}, {other})")
        elif kind == "MatMul":
            lines.append(f"{name} = MatMul({one}, {rng.choice('WV')})")
        elif kind == "Where":
            lines.append(f"{name}_less = Less({one}, {other}) {name} = Where({name}_less, {one}, {other})")
        else:
            lines.append(f"{name} = {kind}({one})")
        values.append(name)
    return lines


def branches_of(rng: random.Random, values: list[str]) -> str:
    """An If whose branches are random."""
    graphs = []
    for key in ("then", "else"):
        inner = list(values)
        lines = lines_of(rng, key, inner)
        lines.append(f"{key}_out = Identity({rng.choice(inner)})")
        graphs.append(f"{key}_branch = {key} () => ({ROW} {key}_out) {{ {' '.join(lines)} }}")
    condition = f"sum = ReduceSum<keepdims = 0>({rng.choice(values)}) below = Less(sum, zero)"
    values.append("branched")
    return f"{condition} branched = If (below) < {', '.join(graphs)} >"


def model_of(seed: int) -> onnx.ModelProto:
    rng = random.Random(seed)
    states, sequences, results = rng.randint(0, 3), rng.randint(1, 2), rng.randint(1, 2)
    befores = [f"h{i}" for i in range(states)]
    rows = [f"x{i}" for i in range(sequences)]
    values = [*befores, *rows, "G", "H"]
    lines = lines_of(rng, "v", values)
    if rng.random() < 0.5:
        lines.append(branches_of(rng, values))
    for i in range(states):
        kind = "Identity({})" if rng.random() < 0.3 else "Mul({}, half)"
        lines.append(f"n{i} = {kind.format(rng.choice(values))}")
    ends = [f"n{i}" for i in range(states)]
    lines += [f"y{i} = Identity({rng.choice([*values, *ends])})" for i in range(results)]
    made = [f"y{i}" for i in range(results)]
    back = {
        "scan_input_directions": [rng.randint(0, 1) for _ in rows],
        "scan_output_directions": [rng.randint(0, 1) for _ in made],
    }
    outputs = [*(f"f{i}" for i in range(states)), *(f"s{i}" for i in range(results))]
    inputs = [*(f"S{i}" for i in range(states)), *(f"X{i}" for i in range(sequences))]
    text = f"""g () => (double loss) {{
        {", ".join(outputs)} = Scan <num_scan_inputs = {sequences}, {", ".join(f"{k} = {v}" for k, v in back.items())},
            body = b ({", ".join(f"{ROW} {v}" for v in (*befores, *rows))})
                => ({", ".join(f"{ROW} {v}" for v in (*ends, *made))}) {{ {" ".join(lines)} }}
        > ({", ".join(inputs)})
        {" ".join(f"q{o} = Mul({o}, {o}) l{o} = ReduceSum<keepdims = 0>(q{o})" for o in outputs)}
        g2 = Mul(G, G)
        lg = ReduceSum<keepdims = 0>(g2)
        loss = Sum(lg, {", ".join(f"l{o}" for o in outputs)})
    }}"""
    generator, steps = np.random.default_rng(seed), rng.randint(1, 5)
    shapes = {"W": (3, 3), "V": (3, 3), "G": (2, 3), "H": (2, 3)}
    shapes |= {f"S{i}": (2, 3) for i in range(states)} | {f"X{i}": (steps, 2, 3) for i in range(sequences)}
    arrays = {name: generator.normal(size=shape) * 0.4 for name, shape in shapes.items()}
    return parse(text, **arrays, half=np.array([0.5]), zero=np.array(0.0))


@pytest.mark.parametrize("seed", range(12))
def test_random_bodies(seed):
    check(model_of(seed), **OPTIONS[seed % len(OPTIONS)])
