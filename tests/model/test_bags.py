"""Bags of embeddings, as PyTorch's exporter writes them: a Loop whose steps read as many rows as data say."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from ckplan.autodiff import build_training_graph
from ckplan.model import normalise

TABLE = np.random.default_rng(0).standard_normal((20, 4)).astype(np.float32)
WEIGHT = np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32)
INDICES = np.asarray([1, 2, 4, 5, 4, 3, 2, 9])

TEXT = """<ir_version: 8, opset_import: ["" : 18]>
g (int64[8] indices, int64[3] offsets) => (float loss) {
    bounds = Concat<axis = 0>(offsets, n)
    ends = Slice(bounds, one, far, zero, one)
    bags = Loop(count, true, SPARE) <body = b (int64 i, bool c) => (bool goes, float[D] row) {
        goes = Identity(true)
        first = Gather<axis = 0>(bounds, i)
        last = Gather<axis = 0>(ends, i)
        begin = Unsqueeze(first, zero)
        end = Unsqueeze(last, zero)
        picked = Slice(indices, begin, end, zero)
        rows = Gather<axis = 0>(table, picked)
        row = REDUCE<keepdims = 0>(rows, zero)
    }>
    weighed = Mul(bags, weight)
    loss = ReduceSum<keepdims = 0>(weighed)
}"""


def bags(reduction: str, ends: str = "ends") -> onnx.ModelProto:
    text = TEXT.replace("REDUCE", reduction).replace(", SPARE", "").replace("(ends, i)", f"({ends}, i)")
    model = onnx.parser.parse_model(text)
    whole = {"n": [8], "one": [1], "far": [2**63 - 1], "zero": [0], "count": 3}
    arrays = {name: np.asarray(value, np.int64) for name, value in whole.items()}
    arrays |= {"true": np.asarray(True), "table": TABLE, "weight": WEIGHT}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    return model


def run(model: onnx.ModelProto, offsets: list[int]) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {"indices": INDICES, "offsets": np.asarray(offsets)}), strict=True))


def expected(reduction: str, offsets: list[int]) -> np.ndarray:
    """The gradient of the table, bag by bag."""
    gradient = np.zeros_like(TABLE, dtype=np.float64)
    for bag, (begin, end) in enumerate(zip(offsets, [*offsets[1:], 8], strict=True)):
        picked = INDICES[begin:end]
        for place, index in enumerate(picked):
            share = np.full(4, 1 / len(picked) if reduction == "ReduceMean" else 1.0)
            if reduction == "ReduceMax":
                share = (TABLE[picked].argmax(0) == place).astype(float)
            gradient[index] += share * WEIGHT[bag]
    return gradient


@pytest.mark.parametrize(
    ("reduction", "offsets"),
    [
        ("ReduceMean", [0, 3, 4]),
        ("ReduceSum", [0, 3, 4]),
        ("ReduceMax", [0, 3, 4]),
        ("ReduceSum", [0, 0, 8]),
        ("ReduceSum", [2, 2, 5]),
        ("ReduceMean", [1, 6, 7]),
    ],
)
def test_bags_are_written_without_a_loop(reduction: str, offsets: list[int]) -> None:
    """Also where one is empty, and where indices lie before the first one."""
    model = bags(reduction)
    loaded = normalise(ir.from_proto(model)).model
    assert "Loop" not in {node.op_type for node in loaded.graph}
    training = build_training_graph(loaded, loss="loss", wrt=["table"])
    found = run(ir.to_proto(training.model), offsets)
    assert float(found["loss"]) == pytest.approx(float(run(model, offsets)["loss"]), rel=1e-5)
    np.testing.assert_allclose(found["table_grad"], expected(reduction, offsets), rtol=1e-5, atol=1e-6)


WEIGHED = """parts = Slice(shares, BEGIN, end, zero)
        column = Unsqueeze(parts, one)
        whole = Gather<axis = 0>(table, picked)
        rows = Mul(whole, column)"""


def weighed_bags(begin: str) -> onnx.ModelProto:
    """A weight for each index, as torch's `per_sample_weights`."""
    model, text = bags("ReduceSum"), TEXT.replace("REDUCE", "ReduceSum").replace(", SPARE", "")
    text = text.replace("rows = Gather<axis = 0>(table, picked)", WEIGHED.replace("BEGIN", begin))
    written = onnx.parser.parse_model(text)
    written.graph.initializer.extend(model.graph.initializer)
    shares = np.linspace(0.5, 2, 8, dtype=np.float32)
    written.graph.initializer.append(onnx.numpy_helper.from_array(shares, "shares"))
    return written


def test_each_index_of_a_bag_may_have_a_weight() -> None:
    model, offsets = weighed_bags("begin"), [0, 3, 4]
    loaded = normalise(ir.from_proto(model)).model
    assert "Loop" not in {node.op_type for node in loaded.graph}
    training = build_training_graph(loaded, loss="loss", wrt=["table", "shares"])
    found = run(ir.to_proto(training.model), offsets)
    assert float(found["loss"]) == pytest.approx(float(run(model, offsets)["loss"]), rel=1e-5)
    by_row = np.repeat(WEIGHT, [3, 1, 4], axis=0)
    by_table = np.zeros_like(TABLE)
    np.add.at(by_table, INDICES, by_row * np.linspace(0.5, 2, 8)[:, None])
    np.testing.assert_allclose(found["table_grad"], by_table, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["shares_grad"], (TABLE[INDICES] * by_row).sum(1), rtol=1e-4, atol=1e-5)


def test_weights_of_other_indices_stay_in_the_loop() -> None:
    loaded = normalise(ir.from_proto(weighed_bags("zero"))).model
    assert {"Loop", "Scan"} & {node.op_type for node in loaded.graph}


@pytest.mark.parametrize(("ends", "is_written"), [([3, 4, 8], True), ([3, 5, 8], False)])
def test_bounds_that_the_file_fixes(ends: list[int], is_written: bool) -> None:
    model = bags("ReduceSum")
    for node in [node for node in model.graph.node if node.output[0] in ("bounds", "ends")]:
        model.graph.node.remove(node)
    for name, numbers in (("bounds", [0, 3, 4, 8]), ("ends", ends)):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(numbers), name))
    loaded = normalise(ir.from_proto(model)).model
    assert {"Loop", "Scan"}.isdisjoint(node.op_type for node in loaded.graph) == is_written
    if is_written:
        training = build_training_graph(loaded, loss="loss", wrt=["table"])
        found = run(ir.to_proto(training.model), [0, 3, 4])["table_grad"]
        np.testing.assert_allclose(found, expected("ReduceSum", [0, 3, 4]), rtol=1e-5, atol=1e-6)


def test_a_loop_over_other_slices_stays() -> None:
    """A bag that ends where it begins, not where the next one does, is none of these."""
    loaded = normalise(ir.from_proto(bags("ReduceSum", ends="bounds"))).model
    assert "Loop" in {node.op_type for node in loaded.graph}


SEQUENCE = """<ir_version: 8, opset_import: ["" : 18]>
g (int64[8] indices, int64[3] offsets) => (float loss) {
    rows = Gather(table, indices)
    bounds = Concat<axis = 0>(offsets, n)
    empty = SequenceEmpty()
    listed, spare = Loop(SPARE, true, empty, first) <body = b (int64 endless, bool c, q, int64 i) => (goes, longer, j) {
        place = Reshape(i, minus)
        one = CastLike(step, place)
        next = Add(place, one)
        start = Slice(bounds, place, next)
        last = Add(place, twice)
        end = Slice(bounds, next, last)
        nothing = Equal(start, end)
        row = If(nothing) <
            then_branch = t () => (float[1,4] zeros) { zeros = Constant<value = float[1,4] {0, 0, 0, 0}>() },
            else_branch = e () => (made) { BRANCH }
        >
        longer = SequenceInsert(q, row)
        j = Add(i, step)
        goes = Less(j, count)
    }>
    bags = ConcatFromSequence<axis = 0>(listed)
    weighed = Mul(bags, weight)
    loss = ReduceSum<keepdims = 0>(weighed)
}"""

UNOPTIMISED = (
    SEQUENCE.replace(
        "zeros = Constant<value = float[1,4] {0, 0, 0, 0}>()",
        """nil = Constant<value = float[1] {0}>() row = Constant<value = int64[1] {1}>() width = Shape<start = 1>(rows)
        shape = Concat<axis = 0>(row, width) zeros = Expand(nil, shape)""",
    )
    .replace("(goes, longer", "(again, longer")
    .replace("goes = Less(j, count)", "goes = Less(j, count) again = Identity(goes)")
)
"""The same as torch's exporter leaves it where it is told not to optimise."""

BRANCHES = {
    "ReduceSum": "cut = Slice(rows, start, end) made = ReduceSum(cut, zero)",
    "ReduceMax": """final = Equal(i, two)
        cut = If(final) <
            then_branch = t2 () => (tail) { tail = Slice(rows, start, n) },
            else_branch = e2 () => (inner) { inner = Slice(rows, start, end) }
        >
        made = ReduceMax(cut, zero)""",
    "ReduceMean": """cut = Slice(rows, start, end) final = Equal(i, two)
        made = If(final) <
            then_branch = t2 () => (made2) {
                added = ReduceSum(cut, zero) size = Sub(n, start) some = Greater(size, zero)
                made2 = If(some) <
                    then_branch = t3 () => (divided) { number = Cast<to = 1>(size) divided = Div(added, number) },
                    else_branch = e3 () => (same) { same = Identity(added) }
                >
            },
            else_branch = e2 () => (mean) { mean = ReduceMean(cut, zero) }
        >""",
}
"""What torch's default exporter writes into a step of its Loop."""


def listed_bags(branch: str, counter_first: bool = False, written: str = SEQUENCE) -> onnx.ModelProto:
    """The sequence and the counter are states of the Loop, in an order that the exporter leaves to chance."""
    text = written.replace("SPARE", '""').replace("BRANCH", branch)
    states = {"listed, spare": "spare, listed", "empty, first": "first, empty", "q, int64 i": "int64 i, q"}
    for one, other in {**states, "longer, j)": "j, longer)"}.items() if counter_first else ():
        text = text.replace(one, other)
    model = onnx.parser.parse_model(text)
    whole = {"n": [8], "minus": [-1], "zero": [0], "twice": [2], "first": 0, "step": 1, "two": 2, "count": 3}
    arrays = {name: np.asarray(value, np.int64) for name, value in whole.items()}
    arrays |= {"true": np.asarray(True), "table": TABLE, "weight": WEIGHT}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    return model


@pytest.mark.parametrize("offsets", [[0, 3, 4], [0, 0, 5], [1, 6, 8]])
@pytest.mark.parametrize("reduction", list(BRANCHES))
@pytest.mark.parametrize(("counter_first", "written"), [(False, SEQUENCE), (True, SEQUENCE), (False, UNOPTIMISED)])
def test_bags_in_a_sequence_are_written_without_a_loop(
    reduction: str, offsets: list[int], counter_first: bool, written: str
) -> None:
    model = listed_bags(BRANCHES[reduction], counter_first, written)
    loaded = normalise(ir.from_proto(model)).model
    assert {"Loop", "ConcatFromSequence"}.isdisjoint(node.op_type for node in loaded.graph)
    training = build_training_graph(loaded, loss="loss", wrt=["table"])
    found = run(ir.to_proto(training.model), offsets)
    assert float(found["loss"]) == pytest.approx(float(run(model, offsets)["loss"]), rel=1e-5)
    np.testing.assert_allclose(found["table_grad"], expected(reduction, offsets), rtol=1e-5, atol=1e-6)


def test_the_zeros_of_an_empty_bag_are_no_parameter() -> None:
    model = listed_bags(BRANCHES["ReduceSum"])
    (loop,) = (node for node in model.graph.node if node.op_type == "Loop")
    (choice,) = (node for node in loop.attribute[0].g.node if node.op_type == "If")
    branch = choice.attribute[0].g
    branch.initializer.append(onnx.numpy_helper.from_array(np.zeros((1, 4), np.float32), "zeros"))
    del branch.node[:]
    training = build_training_graph(normalise(ir.from_proto(model)).model, loss="loss")
    assert set(training.gradients) == {"table", "weight"}
    assert not [note for note in training.notes if "zeros" in note]


@pytest.mark.parametrize(
    "branch",
    [
        "cut = Slice(rows, zero, end) made = ReduceSum(cut, zero)",
        "cut = Slice(rows, start, n) made = ReduceSum(cut, zero)",
        "cut = Slice(rows, start, end) made = ReduceMin(cut, zero)",
    ],
)
def test_other_rows_in_a_sequence_stay_a_loop(branch: str) -> None:
    """Rows from the first one on, to the very end, or their least are none of these bags."""
    loaded = normalise(ir.from_proto(listed_bags(branch))).model
    assert "Loop" in {node.op_type for node in loaded.graph}
