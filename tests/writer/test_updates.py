"""New values written over the old ones: the same to the bit as with memory of their own, planned or not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import ckplan
from ckplan import keys
from ckplan.autodiff.optimizers import rows
from ckplan.isolation.arrays import save_arrays
from ckplan.meter.inputs import make_inputs
from ckplan.meter.measurement import request_for
from ckplan.meter.numbers.in_place import STEPS, InPlace, compared_in_place
from ckplan.pipeline import Step, rewrite
from ckplan.planner.plan import make_plan
from ckplan.planner.strategies import parse_strategy
from ckplan.runtime.executing.executed import executed_model
from ckplan.writer.emit import write
from ckplan.writer.updates import late_reads, updates_of, with_ordered_updates, write_last

SAMPLES = Path(__file__).parents[2] / "sample_models"

STEPS_IN_PLACE = [
    *(("mlp", optimizer, {}) for optimizer in ("sgd", "momentum", "adam:weight_decay=0.1", "adamw")),
    ("mlp", "adamw", {"clip_norm": 0.1}),
    ("resnet_tiny", "momentum", {"training": True, "dims": {"batch": 2}}),
    ("gpt_tiny", "adamw", {"dims": {"batch": 1}}),
]


def opened(name: str, optimizer: str, options: dict) -> Step:
    return ckplan.open_model(SAMPLES / f"{name}.onnx", optimizer=optimizer, **options)


def in_place(model: ir.Model, folder: Path) -> InPlace:
    ckplan.save(model, folder / "step.onnx", force=True)
    inputs = folder / f"inputs{len(list(folder.iterdir()))}"
    save_arrays(inputs, make_inputs(model).arrays)
    found = compared_in_place(model, request_for(folder / "step.onnx", inputs, "cpu", 1))
    assert found is not None
    return found


@pytest.mark.parametrize(("name", "optimizer", "options"), STEPS_IN_PLACE)
def test_updates_in_place_are_the_same_to_the_bit(name: str, optimizer: str, options: dict, tmp_path: Path) -> None:
    step = opened(name, optimizer, options)
    planned = rewrite(step, parse_strategy("memory"))
    for model in (step.ordered, planned.model):
        assert model.metadata_props[keys.IN_PLACE] == "true"
        assert in_place(model, tmp_path) == InPlace(STEPS, len(updates_of(step.model)), ())


EMBEDDING = """
<ir_version: 10, opset_import: ["": 21]>
g (int64[4,3] ids, float[4,3,8] target) => (float loss)
<float[50,8] table = {TABLE}, float[8,8] w = {WEIGHT}> {
    x = Gather (table, ids)
    y = MatMul (x, w)
    z = Tanh (y)
    d = Sub (z, target)
    loss = ReduceSumSquare <keepdims=0> (d)
}"""


PRODUCT = """
<ir_version: 10, opset_import: ["": 21]>
g (float[12,50] x, float[12,8] target) => (float loss)
<float[50,8] table = {TABLE}, float[8,8] w = {WEIGHT}> {
    y = MatMul (x, table)
    z = MatMul (y, w)
    t = Tanh (z)
    d = Sub (t, target)
    loss = ReduceSumSquare <keepdims=0> (d)
}"""
"""A table whose gradient is no rows of a smaller one."""


@pytest.mark.parametrize("clip_norm", [None, 0.5])
@pytest.mark.parametrize("text", [EMBEDDING, PRODUCT], ids=["embedding", "product"])
@pytest.mark.parametrize("optimizer", ["sgd:weight_decay=0.1", "momentum", "adam", "adamw"])
def test_a_table_is_updated_row_by_row(
    optimizer: str, text: str, clip_norm: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the memory of the old values, to the same numbers as all at once, equal words in a batch among them."""
    sizes = {"TABLE": 400, "WEIGHT": 64}
    numbers = {name: ", ".join(f"{((7 * i) % 13 - 6) / 10:.1f}" for i in range(size)) for name, size in sizes.items()}
    for name, row in numbers.items():
        text = text.replace(f"{{{name}}}", f"{{{row}}}")
    monkeypatch.setattr(rows, "SMALLEST", 0)
    monkeypatch.setattr(rows, "NARROWEST", 1)
    model = onnx.parser.parse_model(text)
    whole = ckplan.open_model(model, optimizer=optimizer, wrt=("table", "w"), clip_norm=clip_norm)
    assert whole.by_rows is not None
    made = {}
    for by_rows, step in ((True, whole.by_rows()), (False, whole)):
        assert step is not None
        assert rows.updated_by_rows(step.model.graph) == ["table"] * by_rows
        assert step.ordered.metadata_props[keys.IN_PLACE] == "true"
        ckplan.save(step.ordered, tmp_path / f"{by_rows}.onnx")
        made[by_rows] = step
        assert in_place(step.ordered, tmp_path).differing == ()
    opened = [onnxruntime.InferenceSession(tmp_path / f"{by_rows}.onnx") for by_rows in (True, False)]
    fed = make_inputs(made[True].ordered).arrays
    if "ids" in fed:
        fed = {**fed, "ids": np.asarray([[0, 7, 7], [49, 3, 0], [1, 2, 7], [7, 7, 30]])}
    for left, right in zip(*(session.run(None, fed) for session in opened), strict=True):
        np.testing.assert_array_equal(left, right)


def test_small_tables_are_not_updated_by_rows() -> None:
    step = opened("gpt_tiny", "sgd", {"dims": {"batch": 1}})
    assert step.by_rows is not None
    assert step.by_rows() is None


def test_a_loop_that_reads_another_row_does_not_write_over_the_old_value() -> None:
    graph = """
    g (float[4,3] w, float[3] g) => (float[4,3] new) {
        new = Scan <num_scan_inputs = 1, body = b (float[3] row) => (float[3] out) { %s }> (w)
    }"""
    header = '<ir_version: 10, opset_import: ["": 21]>'
    bodies = {
        "out = Sub (row, g)": 0,
        "a = Mul (row, g) out = Sub (row, a)": 0,
        "a = ReduceSum <keepdims = 0> (w) out = Sub (row, a)": 1,
        "out = Softmax (row)": 1,
    }
    for body, late in bodies.items():
        model = ir.from_proto(onnx.parser.parse_model(header + graph % body))
        assert len(late_reads(model, {"w": "new"})) == late, body


def test_without_order_they_are_not(tmp_path: Path) -> None:
    """What the edges are for: without them, weights may be read that are new already."""
    model = opened("mlp", "sgd:learning_rate=0.5", {}).model.clone()
    assert keys.IN_PLACE not in model.metadata_props
    # onnxruntime finishes the node first that stands last and that nothing reads: here, the update of the last layer.
    nodes = list(model.graph)
    updating = [
        [node for node in nodes if f"fc{n}.{kind}/update/" in str(node.name)]
        for n in range(3)
        for kind in ("weight", "bias")
    ]
    moved = [node for nodes in updating for node in nodes]
    model.graph.remove(nodes)
    model.graph.extend([*(node for node in nodes if node not in moved), *moved])
    # All layers but the first pass a gradient on.
    late = late_reads(executed_model(model), updates_of(model))
    assert {read.old for read in late} == {"fc1.weight", "fc2.weight"}
    ordered = with_ordered_updates(model)
    assert ordered.metadata_props[keys.IN_PLACE] == "true"
    assert in_place(ordered, tmp_path).differing == ()
    model.metadata_props[keys.IN_PLACE] = "true"
    assert "fc1.weight" in in_place(model, tmp_path).differing


def test_a_node_that_runs_again_reads_the_old_value(tmp_path: Path) -> None:
    """A schedule may repeat a layer behind the update of its weight; the update is written later then."""
    step = opened("mlp", "adamw", {})
    problem = step.problem
    names = [op.name for op in problem.ops]
    first = next(i for i, node in enumerate(step.fused.graph) if any(v.name == "fc1.weight" for v in node.inputs if v))
    # Run again at the very end: for nothing, but a plan may.
    plan = make_plan(problem, "by hand", [*range(len(names)), first])
    written = write(step.fused, plan).model
    again = [node for node in written.graph if node.metadata_props.get(keys.RECOMPUTE_OF) == names[first]]
    assert again
    order = [node.name for node in written.graph]
    writer = next(node for node in written.graph if any(v.name == "fc1.weight_new" for v in node.outputs))
    assert order.index(again[0].name) < order.index(writer.name)
    assert written.metadata_props[keys.IN_PLACE] == "true"
    assert in_place(written, tmp_path).differing == ()


def test_a_sequence_writes_last() -> None:
    step = opened("mlp", "sgd", {})
    updates = updates_of(step.model)
    nodes = list(step.model.graph)
    # All updates first that may be: behind their gradients, wherever these are.
    order = write_last(nodes, updates)
    assert sorted(map(id, order)) == sorted(map(id, nodes))
    place = {node: index for index, node in enumerate(order)}
    for old, new in updates.items():
        writer = next(node for node in nodes if any(value.name == new for value in node.outputs))
        readers = [node for node in nodes if any(value is not None and value.name == old for value in node.inputs)]
        assert all(place[reader] <= place[writer] for reader in readers)


def test_a_kernel_that_mixes_elements_does_not_write_over_what_it_reads() -> None:
    text = "<ir_version: 10, opset_import: ['': 21]> g (float[4,4] w, float[4,4] x) => (float[4,4] w_new) {"
    for line, fits in (("w_new = Sub (w, x)", True), ("w_new = MatMul (w, x)", False), ("w_new = Neg (x)", True)):
        model = ir.from_proto(onnx.parser.parse_model(text.replace("'", '"') + line + "}"))
        late = late_reads(model, {"w": "w_new"})
        assert [read.reader.op_type for read in late] == ([] if fits else ["MatMul"])


def test_parameters_that_are_fed_lie_beside_the_file(tmp_path: Path) -> None:
    """What lies in the file a session holds beside what is fed; what lies in a data file it maps and does not read."""
    step = opened("gpt_tiny", "sgd", {"dims": {"batch": 1}})
    size = sum(v.const_value.nbytes for v in step.model.graph.initializers.values() if v.const_value is not None)
    notes = ckplan.save(step.model, tmp_path / "step.onnx")
    assert (tmp_path / "step.onnx.data").stat().st_size > 0.9 * size
    assert (tmp_path / "step.onnx").stat().st_size < 0.3 * size + 200_000
    assert "of weights are in step.onnx.data" in notes[0]
    small = opened("mlp", "sgd", {})
    assert ckplan.save(small.model, tmp_path / "small.onnx") == ()
