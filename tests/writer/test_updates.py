"""New values written over the old ones: the same to the bit as with memory of their own, planned or not."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

import ckplan
from ckplan import keys
from ckplan.isolation.arrays import save_arrays
from ckplan.meter.in_place import STEPS, InPlace, compared_in_place
from ckplan.meter.inputs import make_inputs
from ckplan.meter.measurement import request_for
from ckplan.pipeline import Step, rewrite
from ckplan.planner.plan import make_plan
from ckplan.planner.strategies import parse_strategy
from ckplan.runtime.executed import executed_model
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
