"""Gradients of parts that lie beside each other are joined, without zeros in between."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest

from ckplan.autodiff import build_training_graph
from ckplan.autodiff.rules.placement import parts
from ckplan.keys import PHASE
from tests.autodiff.gradcheck import check_gradient, infer, values

SHAPE = (3, 6)


def sliced(*parts: tuple[int, int, int], axis: int = 1, more: str = "") -> onnx.ModelProto:
    """Tangents of parts of a tensor, weighed; a part has a start, an end and a step."""
    nodes, arrays = [], {"p0": values(*SHAPE), "axis": np.array([axis])}
    for number, (start, end, step) in enumerate(parts):
        bounds = {f"s{number}": start, f"e{number}": end, f"t{number}": step}
        arrays |= {name: np.array([bound]) for name, bound in bounds.items()}
        length = len(range(SHAPE[axis])[start:end:step])
        arrays[f"w{number}"] = values(*(length if i == axis else n for i, n in enumerate(SHAPE)), seed=number + 1)
        nodes.append(f"a{number} = Slice(x, s{number}, e{number}, axis, t{number}) b{number} = Tanh(a{number})")
        nodes.append(f"c{number} = Mul(b{number}, w{number}) d{number} = ReduceSum<keepdims = 0>(c{number})")
    terms = ", ".join([f"d{number}" for number in range(len(parts))] + ["d"] * bool(more))
    text = f"x = Mul(p0, p0) {more} {' '.join(nodes)} loss = Sum({terms})"
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> g () => (double loss) {{ {text} }}')
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    return model


def backward(model: onnx.ModelProto) -> Counter[str]:
    """Operators of the backward pass that move or add tensors."""
    graph = build_training_graph(infer(model), loss="loss", wrt=["p*"]).model.graph
    kinds = Counter(node.op_type for node in graph if node.metadata_props.get(PHASE) == "backward")
    return Counter({kind: kinds[kind] for kind in ("Add", "Concat", "Pad", "Slice") if kinds[kind]})


JOINED = {
    "halves": (((0, 3, 1), (3, 6, 1)), {}, {"Concat": 1}),
    "a roll": (((4, 6, 1), (0, 4, 1)), {}, {"Concat": 1}),
    "three": (((0, 1, 1), (1, 3, 1), (3, 6, 1)), {}, {"Concat": 1}),
    "rows": (((1, 3, 1), (0, 1, 1)), {"axis": 0}, {"Concat": 1}),
    "every other one": (((0, 6, 2), (1, 6, 2)), {}, {"Concat": 1}),
    "every third one, backwards": (((2, 6, 3), (1, 6, 3), (0, 6, 3)), {}, {"Concat": 1}),
    "not all": (((1, 3, 1), (3, 5, 1)), {}, {"Concat": 1, "Pad": 1}),
    "more that reads the whole": (
        ((0, 3, 1), (3, 6, 1)),
        {"more": "s = Sin(x) d = ReduceSum<keepdims = 0>(s)"},
        {"Add": 1, "Concat": 1},
    ),
}
APART = {
    "overlapping": (((0, 4, 1), (2, 6, 1)), {"Add": 1, "Pad": 2}),
    "with a gap": (((0, 2, 1), (3, 6, 1)), {"Add": 1, "Pad": 2}),
    "by other steps": (((0, 6, 2), (1, 6, 3)), {"Add": 1, "Pad": 2}),
    "twice the same": (((0, 3, 1), (0, 3, 1)), {"Add": 1, "Pad": 2}),
}


@pytest.mark.parametrize(("parts", "options", "expected"), JOINED.values(), ids=JOINED)
def test_neighbours_are_joined(parts, options, expected):
    model = sliced(*parts, **options)
    check_gradient(model)
    assert backward(model) == expected


@pytest.mark.parametrize(("parts", "expected"), APART.values(), ids=APART)
def test_others_are_added(parts, expected):
    model = sliced(*parts)
    check_gradient(model)
    assert backward(model) == expected


def test_what_reaches_the_whole_in_between_is_added():
    model = sliced((0, 3, 1), (3, 6, 1), more="s = Sin(x) d = ReduceSum<keepdims = 0>(s)")
    nodes = list(model.graph.node)
    sine = [node for node in nodes if node.op_type == "Sin" or list(node.output) == ["d"]]
    rest = [node for node in nodes if node not in sine]
    between = next(index for index, node in enumerate(rest) if list(node.output) == ["a1"])
    del model.graph.node[:]
    model.graph.node.extend([*rest[:between], *sine, *rest[between:]])
    check_gradient(model)
    assert backward(model) == {"Add": 2, "Pad": 2}


def test_parts_are_joined_behind_what_reached_the_whole_before():
    model = sliced((0, 3, 1), (3, 6, 1), more="s = Sin(x) d = ReduceSum<keepdims = 0>(s)")
    nodes = list(model.graph.node)
    sine = [node for node in nodes if node.op_type == "Sin" or list(node.output) == ["d"]]
    del model.graph.node[:]
    model.graph.node.extend([*[node for node in nodes if node not in sine][:-1], *sine, nodes[-1]])
    check_gradient(model)
    assert backward(model) == {"Add": 1, "Concat": 1}


def unrolled(*orders: list[int], axis: int = 1) -> onnx.ModelProto:
    """Recurrences that read a tensor step by step, each in an order of its own, from the state of the one before."""
    rest = SHAPE[1 - axis]
    nodes, arrays = ["x = Mul(p0, p0)"], {"p0": values(*SHAPE), "h": values(rest, seed=1), "w": values(rest, seed=2)}
    state = "h"
    for lane, order in enumerate(orders):
        for step in order:
            name = f"{lane}_{step}"
            arrays[f"i{name}"] = np.array(step - SHAPE[axis] if lane else step)
            nodes.append(f"x{name} = Gather<axis = {axis}>(x, i{name}) a{name} = Mul({state}, w)")
            nodes.append(f"b{name} = Add(a{name}, x{name}) h{name} = Tanh(b{name})")
            state = f"h{name}"
    text = f"{' '.join(nodes)} loss = ReduceSum<keepdims = 0>({state})"
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> g () => (double loss) {{ {text} }}')
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    return model


STEPS = list(range(SHAPE[1]))
UNROLLED = {
    "forwards": ([STEPS], {}, {"Concat": 1}),
    "backwards": ([STEPS[::-1]], {}, {"Concat": 1}),
    "both ways": ([STEPS, STEPS[::-1]], {}, {"Add": 1, "Concat": 2}),
    "the last steps": ([STEPS[2:]], {}, {"Concat": 1, "Pad": 1}),
    "the first steps, and all": ([STEPS[:4], STEPS], {}, {"Add": 1, "Concat": 2, "Pad": 1}),
    "one step": ([[2]], {}, {"Pad": 1}),
    "along rows": ([[0, 1, 2]], {"axis": 0}, {"Concat": 1}),
}


@pytest.mark.parametrize(("orders", "options", "expected"), UNROLLED.values(), ids=UNROLLED)
def test_steps_of_an_unrolled_recurrence_are_joined(orders, options, expected):
    model = unrolled(*orders, **options)
    check_gradient(model)
    assert backward(model) == expected


def test_many_steps_are_joined_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_MOST_PIECES", 3)
    model = unrolled(STEPS)
    check_gradient(model)
    assert backward(model) == {"Concat": 3}
