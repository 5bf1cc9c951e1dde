"""Made-up inputs suit the graph; real ones are held against it."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import ckplan
from ckplan.errors import EnvironmentUnavailableError, ModelError, UsageError
from ckplan.meter import make_inputs
from ckplan.meter.facts import initial_states, read_model
from ckplan.model import save as save_model
from tests.meter.models import floats, integers, save

SAMPLES = Path(__file__).parents[2] / "sample_models"


def table(name: str, *shape: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.zeros(shape, np.float32), name)


@pytest.fixture
def model(tmp_path: Path) -> ir.Model:
    """Ids behind a cast and an unsqueeze, token types, a mask, class labels, and a parameter that is also an input."""
    nodes = [
        helper.make_node("Cast", ["ids"], ["cast"], to=TensorProto.INT32),
        helper.make_node("Unsqueeze", ["cast", "axes"], ["wide"]),
        helper.make_node("Gather", ["words", "wide"], ["found"], name="look up"),
        helper.make_node("Gather", ["types", "token_type_ids"], ["kinds"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Gemm", ["x", "W"], ["scores"]),
        helper.make_node("SoftmaxCrossEntropyLoss", ["scores", "labels"], ["loss"], name="loss"),
    ]
    inputs = [
        integers("ids", "batch", 7),
        integers("token_type_ids", "batch", 7),
        integers("attention_mask", "batch", 7),
        floats("x", 900, 4),
        integers("labels", 900),
        floats("W", 4, 5),
        integers("unknown", 300),
    ]
    outputs = [floats("found", None), floats("kinds", None), floats("mask", None), floats("loss")]
    axes = numpy_helper.from_array(np.array([1], np.int64), "axes")
    tables = [table("words", 11, 3), table("types", 2, 3), table("W", 4, 5), axes]
    return read_model(save(tmp_path / "m.onnx", nodes, inputs, outputs, tables))


def test_integers_stay_in_the_range_that_their_use_allows(model: ir.Model) -> None:
    made = make_inputs(model, dims={"batch": 200})
    arrays = made.arrays
    assert arrays["ids"].shape == (200, 7)
    assert set(np.unique(arrays["ids"])) == set(range(11))
    assert set(np.unique(arrays["token_type_ids"])) == {0, 1}
    assert set(np.unique(arrays["labels"])) == set(range(5))  # the scores have no shape in the file
    assert np.all(arrays["attention_mask"] == 1)
    assert set(np.unique(arrays["unknown"])) == {0, 1}
    assert "W" not in arrays
    assert arrays["x"].std() == pytest.approx(1, abs=0.1)
    assert arrays["x"].dtype == np.float32
    assert "input 'ids': integers from 0 to 10 (Gather 'look up')" in made.notes
    assert made.nbytes == sum(array.nbytes for array in arrays.values())


def test_unbound_dimensions_get_a_default_that_is_named(model: ir.Model) -> None:
    made = make_inputs(model)
    assert made.arrays["ids"].shape[0] > 0
    assert any("'batch'" in note and "default" in note for note in made.notes)
    # The file's own dimensions stay open: the bound ones belong to these inputs only.
    assert not isinstance(model.graph.inputs[0].shape[0], int)  # type: ignore[index]


def test_inputs_depend_on_seed_and_name_only(model: ir.Model) -> None:
    first, again, other = make_inputs(model), make_inputs(model), make_inputs(model, seed=1)
    assert all(np.array_equal(first.arrays[name], again.arrays[name]) for name in first.arrays)
    assert not np.array_equal(first.arrays["x"], other.arrays["x"])


def test_a_negative_seed_is_refused(model: ir.Model) -> None:
    with pytest.raises(UsageError, match="the seed is -1; give a whole number of at least 0"):
        make_inputs(model, seed=-1)


def test_classes_can_be_declared(tmp_path: Path) -> None:
    nodes = [helper.make_node("Cast", ["target"], ["y"], to=TensorProto.FLOAT)]
    path = save(
        tmp_path / "m.onnx",
        nodes,
        [integers("target", 500)],
        [floats("y", 500)],
        metadata={"pkg.ckplan.labels": '{"target": 4}'},
    )
    assert set(np.unique(make_inputs(read_model(path)).arrays["target"])) == {0, 1, 2, 3}


@pytest.mark.parametrize(("operator", "inputs"), [("OneHot", ["i", "depth", "pair"]), ("GatherND", ["data", "i"])])
def test_other_indexing_operators_bound_too(tmp_path: Path, operator: str, inputs: list[str]) -> None:
    nodes = [helper.make_node(operator, inputs, ["y"], name="use")]
    constants = [
        numpy_helper.from_array(np.array([6], np.int64), "depth"),
        numpy_helper.from_array(np.array([0, 1], np.float32), "pair"),
        table("data", 9, 6),
    ]
    path = save(tmp_path / "m.onnx", nodes, [integers("i", 300, 2)], [floats("y", None)], constants)
    assert make_inputs(read_model(path)).arrays["i"].max() == 5


def test_bfloat16_inputs_are_bfloat16(tmp_path: Path) -> None:
    value = helper.make_tensor_value_info("x", TensorProto.BFLOAT16, [8])
    path = save(tmp_path / "m.onnx", [helper.make_node("Cast", ["x"], ["y"], to=1)], [value], [floats("y", 8)])
    assert make_inputs(read_model(path)).arrays["x"].dtype == ml_dtypes.bfloat16


def test_strings_cannot_be_made_up(tmp_path: Path) -> None:
    value = helper.make_tensor_value_info("words", TensorProto.STRING, [8])
    out = helper.make_tensor_value_info("y", TensorProto.STRING, [8])
    path = save(tmp_path / "m.onnx", [helper.make_node("Identity", ["words"], ["y"])], [value], [out])
    with pytest.raises(ModelError, match="`words` holds strings"):
        make_inputs(read_model(path))


def real(model: ir.Model) -> dict[str, np.ndarray]:
    return dict(make_inputs(model, dims={"batch": 2}).arrays)


def test_real_inputs_are_taken_as_they_are(model: ir.Model, tmp_path: Path) -> None:
    arrays = real(model) | {"W": np.full((4, 5), 2, np.float32)}
    np.savez(tmp_path / "in.npz", **arrays)
    found = make_inputs(model, file=tmp_path / "in.npz")
    assert found.notes == ()
    assert found.arrays.keys() == arrays.keys()
    assert all(np.array_equal(found.arrays[name], arrays[name]) for name in arrays)


def test_every_misfit_of_real_inputs_is_named_at_once(model: ir.Model, tmp_path: Path) -> None:
    arrays = real(model)
    del arrays["labels"]
    arrays["x"] = arrays["x"].astype(np.float64)
    arrays["ids"] = arrays["ids"][:, :3]
    np.savez(tmp_path / "in.npz", **arrays, stray=np.zeros(1))
    with pytest.raises(UsageError) as error:
        make_inputs(model, file=tmp_path / "in.npz")
    for text in (
        "no array for input `labels`",
        "`stray`, which is not an input",
        "`x` as float64, the model wants float32",
        "`ids` of shape (2, 3), the model wants (batch, 7)",
        "`token_type_ids` INT64 (batch, 7)",
    ):
        assert text in str(error.value)


def test_states_that_a_file_of_inputs_does_not_hold_begin_with_zero(tmp_path: Path) -> None:
    forward = ckplan.load(SAMPLES / "mlp.onnx", dims={"batch": 2})
    made = ckplan.add_optimizer(ckplan.build_training_graph(forward.model), ckplan.parse_optimizer("adam"))
    drawn = make_inputs(made.model).arrays
    states = initial_states(made.model)
    begun = next(iter(states))
    kept = {name: array for name, array in drawn.items() if name not in states} | {begun: drawn[begun] + 1}
    np.savez(tmp_path / "in.npz", **kept)
    found = make_inputs(made.model, file=tmp_path / "in.npz").arrays
    assert found.keys() == drawn.keys()
    assert all(np.array_equal(found[name], array) for name, array in kept.items())
    assert not any(found[name].any() for name in states - {begun})


def test_real_bfloat16_inputs_get_their_type_back(tmp_path: Path) -> None:
    value = helper.make_tensor_value_info("x", TensorProto.BFLOAT16, [2])
    path = save(tmp_path / "m.onnx", [helper.make_node("Cast", ["x"], ["y"], to=1)], [value], [floats("y", 2)])
    np.savez(tmp_path / "in.npz", x=np.array([1.5, 2], ml_dtypes.bfloat16))
    assert make_inputs(read_model(path), file=tmp_path / "in.npz").arrays["x"].tolist() == [1.5, 2]


def test_inputs_beyond_all_memory_are_refused(model: ir.Model) -> None:
    with pytest.raises(EnvironmentUnavailableError, match=r"input `.*` takes .* of memory, and there are .*--dim"):
        make_inputs(model, dims={"batch": 1 << 45})


def test_a_file_that_is_no_archive_is_refused(model: ir.Model, tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "in.npz", x=np.zeros((2, 2), np.float32))
    whole = (tmp_path / "in.npz").read_bytes()
    for place, number in ((6, 32), (6, 1), (8, 99)):  # patched data, encrypted, compressed in an unknown way
        damaged = bytearray(whole)
        for header in (0, whole.rindex(b"PK\x01\x02") + 2):
            damaged[header + place] = number
        (tmp_path / "in.npz").write_bytes(damaged)
        with pytest.raises(ModelError, match=r"not a readable \.npz"):
            make_inputs(model, file=tmp_path / "in.npz")
    (tmp_path / "in.npz").write_text("no")
    with pytest.raises(ModelError, match=r"not a readable \.npz"):
        make_inputs(model, file=tmp_path / "in.npz")
    with pytest.raises(ModelError, match=r"there is no file `.*other\.npz`"):
        make_inputs(model, file=tmp_path / "other.npz")
    np.save(tmp_path / "one.npy", np.zeros(2))
    with pytest.raises(ModelError, match=r"not a readable \.npz"):
        make_inputs(model, file=tmp_path / "one.npy")


def test_a_planned_file_is_fed_as_the_file_without_a_plan(tmp_path: Path) -> None:
    source = SAMPLES / "bert_tiny.onnx"
    step = ckplan.open_model(source)
    save_model(step.model, tmp_path / "base.onnx")
    ckplan.rewrite(step, strategy="memory", output=tmp_path / "new.onnx")
    base, new = (make_inputs(read_model(tmp_path / name)) for name in ("base.onnx", "new.onnx"))
    assert base.notes == new.notes
    assert base.arrays["input_ids"].max() > 1
    for name, array in base.arrays.items():
        np.testing.assert_array_equal(new.arrays[name], array)


def test_labels_of_a_loss_head_in_chunks_stay_among_the_classes(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[60,4] x, int64[60] labels) => (float loss) {
        logits = MatMul(x, w)
        loss = SoftmaxCrossEntropyLoss(logits, labels)
    }"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(table("w", 4, 20))
    ckplan.rewrite(model, chunks=4, output=tmp_path / "step.onnx")
    assert set(np.unique(make_inputs(read_model(tmp_path / "step.onnx")).arrays["labels"])) > {0, 1}


def test_a_head_in_parts_is_fed_words_of_all_its_parts(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]>
    g (int64[256] words, int64[256] labels) => (float loss) {
        x = Gather(table, words)
        h = Tanh(x)
        turned = Transpose<perm = [1, 0]>(table)
        logits = MatMul(h, turned)
        loss = SoftmaxCrossEntropyLoss(logits, labels)
    }"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(table("table", 20_000, 64))
    step = ckplan.open_model(model)
    save_model(step.model, tmp_path / "step.onnx")
    assert sum(node.op_type == "LogSoftmax" for node in step.model.graph) > 1  # the head is in parts
    arrays = make_inputs(read_model(tmp_path / "step.onnx")).arrays
    assert arrays["words"].max() > 15_000
    assert arrays["labels"].max() > 15_000


def test_inputs_are_fed_the_numbers_that_they_are_set_to() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[n] x, int64 rate, bool[m] flags) => (float[n] y) { scale = Cast<to = 1>(rate) y = Mul(x, scale) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    arrays = make_inputs(model, dims={"n": 3}, fixed={"rate": 16000, "flags": (True, False)}).arrays
    assert arrays["rate"] == 16000
    assert arrays["rate"].dtype == np.int64
    assert arrays["flags"].tolist() == [True, False]
    assert arrays["x"].shape == (3,)
    with pytest.raises(UsageError, match="no input 'speed' to set"):
        make_inputs(model, fixed={"speed": 1})
    with pytest.raises(UsageError, match="both say what is fed"):
        make_inputs(model, file=Path("inputs.npz"), fixed={"rate": 1})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dims": {"batch": 8}}, r"`--dim batch=8` has no dimension to set: the file fixes all sizes"),
        ({"shapes": {"x": (8, 3)}}, r"`--shape` sets dimension 0 of input `x` to 8, and the file fixes it at 4"),
    ],
)
def test_sizes_that_a_file_fixes_are_not_set(options: dict[str, dict[str, int]], message: str) -> None:
    graph = helper.make_graph([helper.make_node("Exp", ["x"], ["y"])], "g", [floats("x", 4, 3)], [floats("y", 4, 3)])
    model = ir.from_proto(helper.make_model(graph))
    with pytest.raises(UsageError, match=message):
        make_inputs(model, **options)
    assert make_inputs(model, shapes={"x": (4, 3)}).arrays["x"].shape == (4, 3)


@pytest.mark.parametrize("options", [{"dims": {"batch": 8}}, {"shapes": {"x": (8, 3)}}])
def test_sizes_beside_real_inputs_are_refused(
    model: ir.Model, tmp_path: Path, options: dict[str, dict[str, int]]
) -> None:
    np.savez(tmp_path / "inputs.npz", x=np.zeros((4, 3), np.float32))
    with pytest.raises(UsageError, match="both say what is fed"):
        make_inputs(model, file=tmp_path / "inputs.npz", **options)
