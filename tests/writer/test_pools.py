"""Files whose arena is cut into pools: what it holds in every run is what was promised, and numbers stay the same."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest

import ckplan
from ckplan.keys import PLACE, RESERVATION, ROLE
from ckplan.meter import measure, smallest_arena
from ckplan.pipeline.arena_forms import in_pools
from ckplan.pipeline.plan_files import write_plan
from ckplan.planner.arena.allocations import held_wherever
from ckplan.planner.arena.cells import APART, SMALLEST, SPARE, UNCUT, WALL_BYTES, Cell, Layout, Moment, Placeholder
from ckplan.planner.arena.regions import UNIT, Arena
from ckplan.planner.arena.slots import MOST_SLOTS, SLOT, slots_taken
from ckplan.runtime.cpu import CPU
from ckplan.runtime.executing.executed import executed_model
from ckplan.runtime.executing.feeds import has_memory_pattern
from ckplan.runtime.pools.allocations_of import allocations_of
from ckplan.runtime.pools.fitting_pools import fitting_pools
from ckplan.runtime.pools.footprint import footprint_of
from ckplan.runtime.sizes import SMALL, bytes_of
from ckplan.writer.buffer_names import is_static
from ckplan.writer.control_edges import ControlEdges
from ckplan.writer.emit import write
from ckplan.writer.pools import wait_for_cells
from ckplan.writer.reservation import reserved_names

SAMPLES = Path(__file__).parents[2] / "sample_models"
MIB = 2**20


def relus_of(made: ckplan.Planned, first: int, last: int) -> list[Moment]:
    """When some of the Relu nodes of a file run."""
    relus = [node for node in made.executed.graph if node.op_type == "Relu"]
    return [Moment(0, str(node.name), str(node.outputs[0].name)) for node in relus[first:last]]


@pytest.mark.parametrize(("model", "batch"), [("bert_tiny", 8), ("resnet_tiny", 16)])
def test_the_arena_holds_what_is_promised(tmp_path: Path, model: str, batch: int) -> None:
    step = ckplan.open_model(SAMPLES / f"{model}.onnx", dims={"batch": batch})
    plain = write_plan(step, ckplan.plan(step, strategy="memory"))
    made = in_pools(plain)
    assert made.footprint.held < 0.7 * plain.footprint.held
    assert made.footprint == footprint_of(executed_model(made.model), made.model)
    ckplan.save(plain.model, tmp_path / "plain.onnx")
    ckplan.save(made.model, tmp_path / "made.onnx")
    onnx.checker.check_model(str(tmp_path / "made.onnx"))
    found = ckplan.verify(tmp_path / "plain.onnx", tmp_path / "made.onnx", runs=1, threads=1, heap=False)
    assert found.problems == ()
    assert found.numerics.bitwise_equal
    counters = found.new.counters
    assert counters is not None
    assert counters.steady is not None
    # Beside its regions the counter tells what the session holds of small constants.
    assert made.footprint.held <= counters.steady.held <= made.footprint.held + 2**14


def test_what_is_promised_holds_wherever_regions_lie() -> None:
    """Gaps of one size in several regions, and the C library takes some regions from its heap and maps others."""
    step = ckplan.open_model(SAMPLES / "tanh_chain.onnx", dims={"batch": 2048})
    made = in_pools(write_plan(step, ckplan.plan(step, strategy="memory")))
    assert made.footprint.held < 30 * MIB
    assert held_wherever(allocations_of(made.executed, made.model)) == made.footprint.held


def test_no_pool_is_made_when_a_file_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime knows the shape of an optional input: pools that waited for that were computed at load time, once.

    Of more than 700 MiB that was more than the process may take that asks onnxruntime what it makes of a file.
    """
    seen: list[tuple[set[str], set[str]]] = []

    def executed(file: ir.Model, **how: Any) -> ir.Model:
        made = executed_model(file, **how)
        written, left = ({str(node.name) for node in graph} for graph in (file.graph, made.graph))
        seen.append(({name for name in written if name.startswith("ckplan/pool")}, left))
        return made

    monkeypatch.setattr(sys.modules["ckplan.writer.emit"], "executed_model", executed)
    step = ckplan.open_model(SAMPLES / "mlp.onnx", dims={"batch": 12000})
    in_pools(write_plan(step, ckplan.plan(step, strategy="memory")))
    assert any(pools for pools, _ in seen)
    assert all(pools <= left for pools, left in seen)


def test_an_input_that_might_be_left_out_is_fed_as_before() -> None:
    step = ckplan.open_model(SAMPLES / "mlp.onnx", dims={"batch": 12000})
    plain = write_plan(step, ckplan.plan(step, strategy="memory"))
    made = in_pools(plain)
    assert has_memory_pattern(plain.model.graph)
    assert not has_memory_pattern(made.model.graph)
    optional = [value for value in made.model.graph.inputs if type(value.type).__name__ == "OptionalType"]
    assert [value.name for value in optional] == [plain.model.graph.inputs[0].name]
    assert optional[0].shape == plain.model.graph.inputs[0].shape


def test_a_file_in_pools_is_measured_as_expected(tmp_path: Path) -> None:
    step = ckplan.open_model(SAMPLES / "gpt_tiny.onnx", dims={"batch": 16})
    made = ckplan.rewrite(step, strategy="memory", budget="50%", of="arena")
    assert made.budget is not None
    assert made.footprint.held <= made.budget
    ckplan.save(made.model, tmp_path / "made.onnx")
    found = measure(tmp_path / "made.onnx", runs=1, heap=False, inside=True)
    assert found.inside is not None
    assert found.inside.arena is not None
    assert found.counters is not None
    assert found.counters.steady is not None
    assert found.inside.arena.block == 0
    assert found.inside.arena.steady.held == pytest.approx(found.counters.steady.held, abs=2**14)
    smallest = smallest_arena(tmp_path / "made.onnx", device="cpu").default
    assert smallest.expected is not None
    assert smallest.limit == pytest.approx(smallest.expected, rel=0.02)


@pytest.mark.parametrize(("model", "strategy"), [("gpt_tiny", "none"), ("unet_tiny", "memory")])
def test_buffers_are_handed_on_as_before_however_much_is_reserved(model: str, strategy: str) -> None:
    """What lies in cells while they are made is no peak below which a tensor may as well have a second buffer."""
    step = ckplan.open_model(SAMPLES / f"{model}.onnx", dims={"batch": 16})
    plan = ckplan.plan(step, strategy=strategy)

    def made(region: int) -> list[int]:
        written = write(step.fused, plan, pools=Layout(((Cell(region),),)), sparing=False)
        roles = {node.name: node.metadata_props.get(ROLE) for node in written.model.graph}
        asked = allocations_of(written.executed, written.model)
        steps = zip(written.executed.graph, asked.steps, strict=True)
        return [asked.size[buffer] for node, step in steps if not roles.get(node.name) for buffer in step.tensors]

    assert made(2 * MIB) == made(512 * MIB)
    plain = write_plan(step, plan)
    asked = allocations_of(plain.executed, plain.model)
    assert sum(made(512 * MIB)) <= sum(asked.size[buffer] for step in asked.steps for buffer in step.tensors)


def test_what_is_computed_of_parameters_waits_for_the_cells() -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
        g (float[64,64] x, float[64,64] w) => (float[64,64] y) <float[64,64] c = {FILLED}> {
            cells = Neg(x)
            folded = Exp(c)
            scaled = Mul(folded, w)
            turned = Tanh(scaled)
            product = MatMul(cells, turned)
            y = Add(product, folded)
        }""".replace("FILLED", ",".join(["1"] * 64 * 64))
    model = ir.from_proto(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text)))
    nodes, edges = list(model.graph), ControlEdges(model.graph, batch=model.graph.inputs[0])
    before = [tuple(node.inputs) for node in nodes]
    wait_for_cells(nodes[1:], model.graph.inputs, nodes[0].outputs[0], edges)
    changed = [node.name for node, read in zip(nodes, before, strict=True) if tuple(node.inputs) != read]
    assert changed == [nodes[2].name]  # folded when the file is loaded is one, and two wait for others


def test_a_place_is_given_back_right_before_the_tensor_that_lies_there() -> None:
    step = ckplan.open_model(SAMPLES / "unet_tiny.onnx", dims={"batch": 16})
    plan = ckplan.plan(step, strategy="none")
    plain = write_plan(step, plan)
    order = [str(value.name) for node in plain.executed.graph for value in node.outputs]
    relu = [node for node in plain.executed.graph if node.op_type == "Relu"][3]
    kept = Cell(MIB, 0, Moment(0, str(relu.name), str(relu.outputs[0].name)))
    made = write(step.fused, plan, pools=Layout(((kept, Cell(31 * MIB)),)), order=order)
    roles = {node.name: node.metadata_props.get(ROLE) for node in made.model.graph}
    asked = allocations_of(made.executed, made.model)
    nodes = list(made.executed.graph)
    born = next(place for place, node in enumerate(nodes) if roles.get(node.name) == PLACE)
    (buffer,) = asked.steps[born].tensors
    assert asked.size[buffer] == MIB
    dies = next(place for place, step in enumerate(asked.steps) if buffer in step.freed)
    after = nodes[dies + 1 :]
    assert next(node for node in after if roles.get(node.name) is None and node.op_type != "Shape").name == relu.name


@pytest.mark.parametrize("model", ["gpt_tiny", "resnet_tiny"])
def test_places_are_kept_for_what_runs_first_and_behind_a_transpose(model: str) -> None:
    """Nothing has run before the first node, and of what is transposed onnxruntime may take the shape before that."""
    step = ckplan.open_model(SAMPLES / f"{model}.onnx", dims={"batch": 16})
    plan = ckplan.plan(step, strategy="none")
    plain = write_plan(step, plan)
    order = [str(value.name) for node in plain.executed.graph for value in node.outputs]
    own = {node.name for node in plain.model.graph if not node.metadata_props.get(ROLE)}
    ran = [node for node in plain.executed.graph if node.name in own and CPU.view(node) is None]
    behind = [node for before, node in pairwise(ran) if before.op_type == "Transpose"]
    moments = [Moment(0, str(node.name), str(node.outputs[0].name)) for node in (ran[0], *behind)]
    cells = [Cell((SMALLEST + number) * UNIT, number, moment) for number, moment in enumerate(moments)]
    made = write(step.fused, plan, pools=Layout(((*cells, Cell(31 * MIB)),)), order=order)
    roles = {node.name: node.metadata_props.get(ROLE) for node in made.model.graph}
    asked = allocations_of(made.executed, made.model)
    nodes = list(made.executed.graph)
    steps = zip(nodes, asked.steps, strict=True)
    kept = {
        asked.size[buffer]: buffer for node, step in steps if roles.get(node.name) == PLACE for buffer in step.tensors
    }
    there = max(place for place, node in enumerate(nodes) if roles.get(node.name) in (PLACE, RESERVATION))
    for cell in cells:
        dies = next(place for place, step in enumerate(asked.steps) if kept[cell.bytes] in step.freed)
        assert dies > there
        follows = (node for node in nodes[dies + 1 :] if not roles.get(node.name) and CPU.view(node) is None)
        assert cell.end is not None
        assert next(follows).name == cell.end.node


@pytest.mark.parametrize("slots", [1, 7, MOST_SLOTS])
def test_slots_are_gaps_of_one_size_at_the_beginning_of_the_first_region(slots: int, tmp_path: Path) -> None:
    step = ckplan.open_model(SAMPLES / "unet_tiny.onnx", dims={"batch": 16})
    plan = ckplan.plan(step, strategy="none")
    made = write_plan(step, plan, pools=Layout(((Cell(64 * MIB),),), slots=slots))
    asked, arena = allocations_of(made.executed, made.model), Arena()
    first = next(place for place, node in enumerate(made.executed.graph) if node.op_type == "Conv")
    for demand in asked.steps[:first]:
        for buffer in demand.tensors:
            arena.allocate(buffer, asked.size[buffer])
        for buffer in demand.freed:
            arena.free(buffer)
    assert arena.held == 65 * MIB
    ends = []
    for key, size in enumerate([SLOT] * (slots + 1) + [SPARE + 1], -slots - 2):
        arena.allocate(key, size * UNIT)
        ends.append(arena.end_of(key) // UNIT)
    assert sum(end <= APART + slots_taken(slots) for end in ends) >= slots
    assert ends[-1] > slots_taken(slots) + WALL_BYTES // UNIT
    ckplan.save(made.model, tmp_path / "made.onnx")
    counters = measure(tmp_path / "made.onnx", runs=1, heap=False).counters
    assert counters is not None
    assert counters.steady is not None
    assert made.footprint.held <= counters.steady.held <= made.footprint.held + 2**14


def test_a_larger_first_region_and_placeholders_are_held_as_promised(tmp_path: Path) -> None:
    step = ckplan.open_model(SAMPLES / "unet_tiny.onnx", dims={"batch": 16})
    plan = ckplan.plan(step, strategy="none")
    plain = write_plan(step, plan)
    order = [str(value.name) for node in plain.executed.graph for value in node.outputs]
    begin, end = relus_of(plain, 2, 4)
    layout = Layout(((Cell(32 * MIB),),), 8 * MIB, (Placeholder(3 * MIB, begin, end),))
    made = write(step.fused, plan, pools=layout, order=order)
    assert footprint_of(made.executed, made.model).held == layout.held == 40 * MIB
    asked = allocations_of(made.executed, made.model)
    places = {str(node.name): place for place, node in enumerate(made.executed.graph)}
    born = next(place for name, place in places.items() if "placeholder" in name)
    (held,) = asked.steps[born].tensors
    dies = next(place for place, step in enumerate(asked.steps) if held in step.freed)
    assert asked.size[held] == 3 * MIB
    assert born < places[begin.node] < dies < places[end.node]
    ckplan.save(made.model, tmp_path / "made.onnx")
    counters = measure(tmp_path / "made.onnx", runs=1, heap=False).counters
    assert counters is not None
    assert counters.steady is not None
    assert layout.held <= counters.steady.held <= layout.held + 2**14


def test_nothing_waits_for_what_is_written_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for a tensor reads it, and its buffer is not handed on before: what takes over is waited for."""
    step = ckplan.open_model(SAMPLES / "resnet_tiny.onnx", dims={"batch": 16})
    plain = write_plan(step, ckplan.plan(step, strategy="none"))
    nodes = list(plain.executed.graph)
    asked = allocations_of(plain.executed, plain.model)
    over = {
        place for place, one in enumerate(asked.steps) if not one.tensors and nodes[place].op_type in ("Mul", "Relu")
    }

    def behind_them(_: object, __: int, ___: int, *, gates: Sequence[int], **____: object) -> Layout:
        pairs = [pair for pair in pairwise(gates) if pair[0] - 1 in over]
        held = [Placeholder(MIB, Moment(begin), Moment(end)) for begin, end in pairs]
        return Layout(((Cell(64 * MIB),),), MIB, tuple(held))

    monkeypatch.setattr("ckplan.runtime.pools.fitting_pools.best_pools", behind_them)
    pools = fitting_pools(plain.executed, plain.model)
    assert pools is not None
    assert len(pools.placeholders) >= 3
    for one in pools.placeholders:
        assert one.begin.after == nodes[one.begin.step - 1].outputs[0].name


def test_what_dies_before_a_node_is_dead_before_a_placeholder_is_made_there() -> None:
    step = ckplan.open_model(SAMPLES / "unet_tiny.onnx", dims={"batch": 16})
    plan = ckplan.plan(step, strategy="none")
    plain = write_plan(step, plan)
    order = [str(value.name) for node in plain.executed.graph for value in node.outputs]
    ends = pairwise(relus_of(plain, 2, 5))
    held = tuple(Placeholder(size * MIB, *each) for size, each in zip((3, 2), ends, strict=True))
    made = write(step.fused, plan, pools=Layout(((Cell(32 * MIB),),), MIB, held), order=order)
    asked = allocations_of(made.executed, made.model)
    first, second = (place for place, node in enumerate(made.executed.graph) if "placeholder" in str(node.name))
    (buffer,) = asked.steps[first].tensors
    assert next(place for place, step in enumerate(asked.steps) if buffer in step.freed) < second


def test_shapes_of_placeholders_lie_where_shapes_were_before() -> None:
    """So the search for placeholders leaves no room for them."""
    step = ckplan.open_model(SAMPLES / "unet_tiny.onnx", dims={"batch": 16})
    plan = ckplan.plan(step, strategy="none")
    held = tuple(Placeholder(MIB, *ends) for ends in pairwise(relus_of(write_plan(step, plan), 2, 8)))
    made = write(step.fused, plan, pools=Layout(((Cell(32 * MIB),),), MIB, held))
    nodes = list(made.executed.graph)
    shapes = {node.inputs[0] for node in nodes if "placeholder" in str(node.name)}
    assert len(shapes) == len(held)
    asked = allocations_of(made.executed, made.model)
    apart = [step for node, step in zip(nodes, asked.steps, strict=True) if shapes & set(node.outputs) and step.tensors]
    assert len(apart) <= 1


@pytest.mark.parametrize(("model", "strategy"), [("unet_tiny", "none"), ("mobilenet_tiny", "memory")])
def test_no_buffer_is_handed_on_by_a_shape_that_cells_might_hide(model: str, strategy: str) -> None:
    step = ckplan.open_model(SAMPLES / f"{model}.onnx", dims={"batch": 16})
    made = write(step.fused, ckplan.plan(step, strategy=strategy), pools=UNCUT)
    own = reserved_names(made.executed.graph)
    inside = [value for node in made.executed.graph if node.op_type != "OptionalGetElement" for value in node.outputs]
    large = [value for value in inside if bytes_of(value) >= SMALL and value.name not in own]
    assert [value.name for value in large if is_static(value) and not value.is_graph_output()] == []


@pytest.mark.parametrize("model", ["bert_tiny", "unet_tiny", "gpt_tiny"])
def test_shapes_do_not_move_what_lies_behind_them(model: str) -> None:
    """Whether the first region is a usual one or not, and whatever else waits, its pool begins where it did."""
    step = ckplan.open_model(SAMPLES / f"{model}.onnx", dims={"batch": 16})
    plan = ckplan.plan(step, strategy="none")

    def shapes(layout: Layout) -> list[str]:
        nodes = list(write(step.fused, plan, pools=layout).executed.graph)
        first = next(place for place, node in enumerate(nodes) if node.op_type == "ConstantOfShape")
        return [str(node.name) for node in nodes[:first] if node.op_type == "Concat"]

    assert len(shapes(UNCUT)) == len(shapes(Layout(((Cell(32 * MIB),),), 4 * MIB))) == 1
