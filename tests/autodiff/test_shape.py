"""Operators that move elements."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.autodiff.gradcheck import (
    build_training_graph,
    check_gradient,
    check_second_derivatives,
    infer,
    node_model,
    values,
    weighed,
)

X = values(2, 3, 4)


def ints(*numbers: int) -> np.ndarray:
    return np.asarray(numbers, dtype=np.int64)


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes"),
    [
        ("Reshape", [X, ints(6, 4)], {}),
        ("Reshape", [X, ints(0, -1)], {}),
        ("Reshape", [values(1), ints()], {}),
        ("Flatten", [X], {}),
        ("Flatten", [X], {"axis": 0}),
        ("Flatten", [X], {"axis": -1}),
        ("Squeeze", [values(1, 3, 1)], {}),
        ("Squeeze", [values(1, 3, 1), ints(-1)], {}),
        ("Unsqueeze", [X, ints(0, -1)], {}),
        ("Transpose", [X], {}),
        ("Transpose", [X], {"perm": [1, 2, 0]}),
        ("Transpose", [values(2, 1, 4)], {"perm": [1, 0, 2]}),
        ("Transpose", [values(2, 3, 4, 5)], {"perm": [0, 2, 1, 3]}),
        ("Concat", [X], {"axis": 0}),
        ("Concat", [X, values(2, 5, 4, seed=1)], {"axis": 1}),
        ("Concat", [X, values(2, 3, 1, seed=1), values(2, 3, 2, seed=2)], {"axis": -1}),
        ("Concat", [X, np.full((2, 3, 1), 2, dtype=np.float64)], {"axis": -1}),
        ("Expand", [values(3, 1), ints(2, 3, 4)], {}),
        ("Expand", [X, ints(1)], {}),
        ("Expand", [np.float64(2.0), ints(3)], {}),
        ("Tile", [values(2, 3), ints(2, 1)], {}),
        ("Tile", [values(2, 3), ints(3, 2)], {}),
        ("Tile", [values(4), ints(1)], {}),
        ("DepthToSpace", [values(2, 8, 2, 3)], {"blocksize": 2}),
        ("DepthToSpace", [values(2, 8, 2, 3)], {"blocksize": 2, "mode": "CRD"}),
        ("SpaceToDepth", [values(2, 2, 4, 6)], {"blocksize": 2}),
        ("Trilu", [values(3, 4)], {}),
        ("Trilu", [values(2, 3, 4), ints(1).reshape(())], {"upper": 0}),
        ("CumSum", [X, ints(1).reshape(())], {}),
        ("CumSum", [X, ints(-1).reshape(())], {"exclusive": 1}),
        ("CumSum", [X, ints(0).reshape(())], {"reverse": 1, "exclusive": 1}),
        ("ReverseSequence", [values(4, 3, 2), ints(1, 3, 4)], {}),
        ("ReverseSequence", [values(3, 4, 2), ints(1, 3, 4)], {"batch_axis": 0, "time_axis": 1}),
    ],
)
def test_gradient(op_type, inputs, attributes):
    check_gradient(node_model(op_type, *inputs, **attributes))


@pytest.mark.parametrize(
    ("shape", "starts", "ends", "axes", "steps"),
    [
        ((5, 6), [1], [4], [0], None),
        ((5, 6), [1, 2], [4, 6], None, None),
        ((5, 6), [-3], [1000], [-1], None),
        ((5, 6), [0], [6], [1], [2]),
        ((5, 6), [1], [6], [1], [3]),
        ((5, 6), [1, 0], [5, 6], [0, 1], [2, 5]),
        ((5, 6), [-1], [-1000], [0], [-1]),
        ((5, 6), [4, 5], [0, -1000], [0, 1], [-2, -3]),
        ((5, 6), [4], [-1000], [0], [-7]),
        ((3, 4, 5), [1], [2], [1], [1]),
    ],
)
def test_slice(shape, starts, ends, axes, steps):
    rest = [None if axes is None else ints(*axes)] + ([] if steps is None else [ints(*steps)])
    if rest == [None]:
        rest = []
    check_gradient(node_model("Slice", values(*shape), ints(*starts), ints(*ends), *rest))


@pytest.mark.parametrize(
    ("sizes", "attributes", "outputs"),
    [
        (None, {"num_outputs": 2}, 2),
        (None, {"num_outputs": 3, "axis": -1}, 3),
        ([1, 3, 2], {"axis": 1}, 3),
        ([1, 5], {"axis": -1}, 2),
    ],
)
def test_split(sizes, attributes, outputs):
    check_gradient(
        node_model("Split", values(4, 6), *([] if sizes is None else [ints(*sizes)]), outputs=outputs, **attributes)
    )


@pytest.mark.parametrize("read", [[0], [1], [2], [0, 2], [1, 2]])
def test_split_with_outputs_that_nobody_reads(read):
    model = node_model("Split", values(2, 6), ints(1, 3, 2), outputs=3, axis=1)
    total = next(node for node in model.graph.node if node.op_type == "Sum")
    total.input[:] = [total.input[index] for index in read]
    check_gradient(model)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
@pytest.mark.parametrize(
    ("shape", "pads", "axes"),
    [
        ((3, 4), [0, 1, 2, 0], None),
        ((2, 3, 4), [1, 2], [1]),
        ((2, 3, 4), [1, 0, 0, 2], [-1, 1]),
        ((1, 2, 4, 5), [0, 0, 2, 1, 0, 0, 1, 3], None),
    ],
)
def test_pad(mode, shape, pads, axes):
    rest = [] if axes is None else [None, ints(*axes)]
    check_gradient(node_model("Pad", values(*shape), ints(*pads), *rest, mode=mode), torch=False)


@pytest.mark.parametrize(
    ("pads", "axes"), [([0, 1, 2, 0], None), ([1, 1, 1, 1], None), ([0, 0, 0, 0], None), ([2, 1], [-1])]
)
def test_pad_by_the_constant(pads, axes):
    rest = [] if axes is None else [ints(*axes)]
    found = check_gradient(node_model("Pad", values(3, 4), ints(*pads), np.float64(0.7), *rest), torch=False)
    assert (found["p2"] != 0) == any(pads)


PADS = [(-1, 2), (2, -1), (-4, 3), (2, 2), (4, 4), (0, 4), (7, 6)]
#: Mode, size, pads, where something is left after cropping that can be repeated.
PADDED = [
    (mode, size, *pads)
    for mode in ("constant", "edge", "reflect", "wrap")
    for size in (1, 2, 5)
    for pads in PADS
    if size + sum(min(pad, 0) for pad in pads) > (mode == "reflect")
]


@pytest.mark.parametrize(("mode", "size", "before", "after"), PADDED)
def test_pad_of_any_length(mode, size, before, after):
    """Cropped first, then padded; also by more than the axis is long, which onnxruntime does not do in each mode."""
    left = size + min(before, 0) + min(after, 0)
    nodes = [
        onnx.helper.make_node("Pad", ["p0", "counts", "", "axes"], ["y0"], mode=mode),
        onnx.helper.make_node("Mul", ["y0", "y0"], ["y1"]),
    ]
    arrays = {"p0": values(2, size, 3), "counts": ints(before, after), "axes": ints(1)}
    model = weighed(nodes, [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()], ["y1"])
    check_gradient(model, torch=False, runtime=mode != "reflect" or max(before, after) < left)
    check_second_derivatives(model)


@pytest.mark.parametrize("mode", ["edge", "reflect", "wrap"])
def test_gradient_of_a_long_pad_holds_nothing_but_slices(mode):
    """No matrix from all places to all elements: with 20,000 of them that would be 3 GB."""
    size = 20_000
    model = node_model("Pad", values(1, size), ints(size // 2, size // 3), None, ints(1), mode=mode)
    training = build_training_graph(infer(model), loss="loss", wrt=["p0"])
    constants = [v.const_value for name, v in training.model.graph.initializers.items() if name[0] not in "pw"]
    assert sum(tensor.nbytes for tensor in constants) < 1000
