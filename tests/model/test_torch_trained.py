"""Which tensors of files of torch's default exporter are trained: what stands for no parameter is not."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import ckplan
from ckplan.keys import STANDS_FOR
from ckplan.model.torch_files.exporter_metadata import LINE, has_taken_in_norm
from tests.model.models import normal
from tests.model.torch_files import add_source, exported, loaded, recurrent


def test_zeros_with_which_a_recurrent_layer_begins_are_no_parameter() -> None:
    found, _ = loaded(recurrent(np.zeros((1, 2, 4), np.float32), "%zeros, %zeros_1", {}))
    stands = {name: value.metadata_props.get(STANDS_FOR) for name, value in found.graph.initializers.items()}
    assert [stands[f"val_{number}"] for number in (1, 2, 4)] == ["r.weight_ih_l0", "r.weight_hh_l0", ""]
    assert sorted(stands) == ["both", "one", "val_1", "val_2", "val_3", "val_4"]


@pytest.mark.parametrize(
    ("weight", "way", "known"),
    [
        (normal(0, 4, 4), "val_2", True),
        (np.zeros((4, 4), np.float32), "val_2", False),
        (np.zeros((4, 4), np.float32), "zeros", True),
    ],
)
def test_zeros_computed_of_a_weight_are_no_parameter(weight: np.ndarray, way: str, known: bool) -> None:
    """The first step of a recurrent cell, which begins with zeros."""
    model = exported(
        "h = MatMul(x, val_1) t = Tanh(h) y = Add(t, linear)",
        {"val_1": weight, "linear": np.zeros((2, 4), np.float32)},
        {"p_weight": ("PARAMETER", "weight"), "p_other": ("PARAMETER", "other")},
        [
            "aten.linear](args = (%x, %p_weight))",
            "aten.tanh](args = (%linear_1,))",
            "aten.add](args = (%tanh, %linear))",
        ],
    )
    add_source(model, "linear", "weight", way)
    stands = {name: value.metadata_props.get(STANDS_FOR) for name, value in loaded(model)[0].graph.initializers.items()}
    assert stands == {"val_1": "weight", "linear": "" if known else None}


def test_zeros_times_a_weight_that_is_gone_are_no_parameter() -> None:
    """The only step of a recurrent cell without biases."""
    model = exported(
        "h = MatMul(x, l.weight) y = Add(h, linear_2)",
        {"l.weight": normal(0, 4, 4), "linear_2": np.zeros((2, 4), np.float32)},
        {"p_l": ("PARAMETER", "l.weight"), "p_hh": ("PARAMETER", "cell.weight_hh")},
        ["aten.mm](args = (%x, %p_l))", "aten.add](args = (%mm, %linear_2))"],
    )
    add_source(model, "linear_2", "cell.weight_hh", "zeros")
    assert loaded(model)[0].graph.initializers["linear_2"].metadata_props[STANDS_FOR] == ""


@pytest.mark.parametrize("mode", ["functional.default](args = (%mm, %g, True, ", "no_training.default](args = (%mm, "])
def test_a_normalisation_in_training_mode_that_is_folded_is_none_for_training(mode: str) -> None:
    """The node of the layer bears the line of the normalisation, and there is nothing that --training would change."""
    line = f"aten._native_batch_norm_legit_{mode}0.1, 1e-05))"
    arrays = {"l.weight": normal(0, 4, 4), "l.bias": normal(1, 4)}
    model = exported("y = Gemm(x, l.weight, l.bias)", arrays, {"p_l": ("PARAMETER", "l.weight")}, [line])
    notes = loaded(model)[1]
    assert ("whose exporter folded their inference form into the layers" in notes) is ("functional" in mode)
    assert "--training takes" not in notes


def test_a_weight_into_which_a_norm_without_parameters_was_folded_is_one() -> None:
    """The exporter computes a new tensor of its name and says nothing of it, and the norm's module has but buffers."""
    model = exported(
        "y = MatMul(x, l.weight)",
        {"l.weight": normal(0, 4, 4)},
        {"p_l": ("PARAMETER", "l.weight"), "b_mean": ("BUFFER", "n.mean")},
        ["aten._native_batch_norm_legit_no_training.default](args = (%mm, None, None, %b_mean))"],
    )
    del model.graph.value_info[:]
    model.graph.node[0].metadata_props.add(key="pkg.torch.onnx.name_scopes", value="['', 'n', 'norm']")
    assert loaded(model)[0].graph.initializers["l.weight"].metadata_props.get(STANDS_FOR) is None


@pytest.mark.parametrize(
    ("name", "on_the_way", "is_known"),
    [("neg", "exp", True), ("neg", "arange", False), ("einsum_3", "arange", True), ("linear", "arange", True)],
)
def test_what_is_computed_of_a_parameter_that_follows_a_formula_is_trained(
    name: str, on_the_way: str, is_known: bool
) -> None:
    """As decays begin: unless a table of the program had a part in it that was not multiplied by a weight."""
    model = exported(
        f"h = Mul(x, {name}) y = Add(h, other)",
        {name: np.linspace(-1, 2, 8, dtype=np.float32), "other": normal(0, 8)},
        {"p_decay": ("PARAMETER", "decay"), "p_other": ("PARAMETER", "other"), "p_gone": ("PARAMETER", "gone")},
        [f"aten.mul](args = (%x, %{name}))", "aten.add](args = (%mul, %p_other))"],
    )
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.shape.dim[1].dim_value = 8
    add_source(model, name, "decay", on_the_way)
    stands = loaded(model)[0].graph.initializers[name].metadata_props.get(STANDS_FOR)
    assert stands == ("decay" if is_known else None)


@pytest.mark.parametrize("name", ["repeat_1", "repeat_interleave", "tile"])
def test_a_token_that_is_repeated_is_trained(name: str) -> None:
    """As the one that stands for what a masked autoencoder does not see."""
    token = normal(0, 4)
    model = exported(
        f"y = Add(x, {name})",
        {name: np.tile(token, (24, 1)), "other": normal(1, 4)},
        {"p_token": ("PARAMETER", "token"), "p_other": ("PARAMETER", "other"), "p_gone": ("PARAMETER", "gone")},
        [f"aten.add](args = (%x, %{name}))"],
    )
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_value = 24
    add_source(model, name, "token", "val_38")
    (found,) = ckplan.open_model(model, loss="mse").training.gradients
    assert found.startswith(name)


@pytest.mark.parametrize("name", ["unsqueeze", "unsqueeze_10"])
def test_a_mask_of_ones_is_no_parameter(name: str) -> None:
    """As a DeBERTa multiplies embeddings by one; what layers make anew is merged."""
    model = exported(
        "h = Mul(x, unsqueeze) y = MatMul(h, l.weight)",
        {"unsqueeze": np.ones((2, 1), np.float32), "l.weight": normal(0, 4, 4)},
        {"p_weight": ("PARAMETER", "l.weight"), "p_tied": ("PARAMETER", "tied")},
        [f"aten.mul](args = (%x, %{name}))", "aten.mm](args = (%mul, %p_weight))"],
    )
    add_source(model, "unsqueeze", "ones")
    assert loaded(model)[0].graph.initializers["unsqueeze"].metadata_props.get(STANDS_FOR) == ""


def test_learnt_states_of_a_recurrent_layer_are_no_weights() -> None:
    """Both begin as zeros, and were merged."""
    operands = {"p_h0": "h0", "p_c0": "c0"}
    found, _ = loaded(recurrent(np.zeros((1, 2, 4), np.float32), "%p_h0, %p_c0", operands, name="h0"))
    (node,) = (node for node in found.graph if node.op_type == "LSTM")
    assert [value.name for value in node.inputs[5:] if value is not None] == ["h0", "c0"]
    assert [value.metadata_props[STANDS_FOR] for value in node.inputs[1:3] if value is not None] == [
        "r.weight_ih_l0",
        "r.weight_hh_l0",
    ]


@pytest.mark.parametrize("bias_is_there", [True, False])
def test_what_stands_for_no_parameter_is_known_where_all_are_there(bias_is_there: bool) -> None:
    operands = {"p_l_weight": ("PARAMETER", "l.weight")}
    if not bias_is_there:
        operands["p_l_bias"] = ("PARAMETER", "l.bias")
    model = exported(
        "h = MatMul(x, l.weight) y = Mul(h, table)",
        {"l.weight": normal(0, 4, 4), "table": normal(1, 2, 4)},
        operands,
        ["aten.matmul](args = (%x, %p_l_weight), kwargs = {})", "aten.mul](args = (%matmul, %cos), kwargs = {})"],
    )
    found, notes = loaded(model)
    known = found.graph.initializers["table"].metadata_props.get(STANDS_FOR)
    assert known == ("" if bias_is_there else None)
    assert ("1 parameter(s) of the torch module are not in the file" in notes) is not bias_is_there


@pytest.mark.parametrize("missing", ["level", "n.table.weight"])
def test_what_is_computed_of_buffers_is_no_parameter_though_one_is_not_in_the_file(missing: str) -> None:
    """A frozen BatchNorm keeps its scale and shift as buffers; the shift left of these is read as a bias is.

    Of a module with a table further down, it may be what is read there.
    """
    model = exported(
        "h = MatMul(x, l.weight) s = Mul(h, mul_4) y = Add(s, sub_2)",
        {"l.weight": normal(0, 4, 4), "mul_4": normal(1, 4), "sub_2": normal(2, 4)},
        {
            "p_l_weight": ("PARAMETER", "l.weight"),
            "p_missing": ("PARAMETER", missing),
            **{f"b_n_{leaf}": ("BUFFER", f"n.{leaf}") for leaf in ("weight", "bias", "running_mean", "running_var")},
        },
        ["aten.mm](args = (%x, %p_l_weight))", "aten.mul](args = (%mm, %mul_4))", "aten.add](args = (%mul, %sub_2))"],
    )
    for node in model.graph.node[1:]:
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value="['', 'n', 'made']")
    found, notes = loaded(model)
    assert "1 parameter(s) of the torch module are not in the file as such" in notes
    stands = [found.graph.initializers[name].metadata_props.get(STANDS_FOR) for name in ("mul_4", "sub_2")]
    assert stands == ([""] * 2 if missing == "level" else [None] * 2)


@pytest.mark.parametrize("source", ["rope.inv_freq", "arange", "level"])
def test_what_the_file_says_is_computed_of_buffers_or_of_nothing_is_no_parameter(source: str) -> None:
    """A table of sines over positions in two directions follows no formula along one axis."""
    model = exported(
        "h = MatMul(x, l.weight) y = Mul(h, sin)",
        {"l.weight": normal(0, 4, 4), "sin": normal(1, 2, 4)},
        {
            "p_l_weight": ("PARAMETER", "l.weight"),
            "p_level": ("PARAMETER", "level"),
            "b_inv_freq": ("BUFFER", "rope.inv_freq"),
        },
        ["aten.mm](args = (%x, %p_l_weight))", "aten.mul](args = (%mm, %sin))"],
    )
    add_source(model, "sin", source)
    found, _ = loaded(model)
    expected = "level" if source == "level" else ""
    assert found.graph.initializers["sin"].metadata_props[STANDS_FOR] == expected


def test_what_is_computed_of_numbers_that_the_module_writes_is_no_parameter() -> None:
    """Deformable attention divides by the sizes of its maps, which are six numbers of no formula."""
    model = exported(
        "h = MatMul(x, l.weight) y = Div(h, convert_element_type_6)",
        {"l.weight": normal(0, 4, 4), "convert_element_type_6": np.array([2, 2, 4, 8], dtype=np.float32)},
        {
            "p_l_weight": ("PARAMETER", "l.weight"),
            "p_level": ("PARAMETER", "level"),
            "c_lifted": ("CONSTANT_TENSOR", "l.lifted_tensor_1"),
        },
        ["aten.mm](args = (%x, %p_l_weight))", "aten.div](args = (%mm, %convert_element_type_6))"],
    )
    add_source(model, "convert_element_type_6", "l.lifted_tensor_1")
    assert set(ckplan.open_model(model, loss="mse").training.gradients) == {"l.weight"}


@pytest.mark.parametrize("number", [0.78, 0.0])
def test_one_number_that_was_computed_of_a_parameter_stands_for_it(number: float) -> None:
    """As of the slopes of an activation that softplus keeps above zero."""
    model = exported(
        "y = Mul(x, add_347)",
        {"add_347": np.full(1, number, np.float32)},
        {"p_alpha": ("PARAMETER", "act.alpha")},
        ["aten.mul](args = (%x, %add_347))"],
    )
    add_source(model, "add_347", "act.alpha")
    found, _ = loaded(model)
    stands_for = found.graph.initializers["add_347"].metadata_props.get(STANDS_FOR)
    assert stands_for == ("act.alpha" if number else None)


@pytest.mark.parametrize("on_the_way", ["val_3", "zeros_like"])
@pytest.mark.parametrize("name", ["slice_1", "index_2", "embedding_1"])
def test_a_table_of_zeros_that_was_cut_stands_for_its_parameter(name: str, on_the_way: str) -> None:
    """Positions, absolute or relative, often begin as zeros; what is made in the shape of a parameter is none."""
    model = exported(
        f"h = MatMul(x, l.weight) y = Add(h, {name})",
        {"l.weight": normal(0, 4, 4), name: np.zeros((2, 4), np.float32)},
        {f"p_{target}": ("PARAMETER", target) for target in ("l.weight", "positions", "other")},
        ["aten.mm](args = (%x, %p_l.weight))", f"aten.add](args = (%mm, %{name}))"],
    )
    add_source(model, name, "positions", on_the_way)
    stands = loaded(model)[0].graph.initializers[name].metadata_props.get(STANDS_FOR)
    assert stands == ("positions" if on_the_way == "val_3" else None)


@pytest.mark.parametrize("made_by", ["ge_1", "val_5"])
def test_a_mask_of_zeros_is_no_parameter(made_by: str) -> None:
    """Where no token is masked, all of it is zero, as a bias is that nothing has trained."""
    model = exported(
        "h = MatMul(x, l.weight) y = Add(h, val_9)",
        {"l.weight": normal(0, 4, 4), "val_9": np.zeros((2, 4), np.float32)},
        {f"p_{name}": ("PARAMETER", name) for name in ("l.weight", "other")},
        ["aten.mm](args = (%x, %p_l.weight))", "aten.scaled_dot_product_attention](args = (%mm, %expand))"],
    )
    add_source(model, "val_9", "arange", made_by)
    stands = loaded(model)[0].graph.initializers["val_9"].metadata_props.get(STANDS_FOR)
    assert stands == ("" if made_by == "ge_1" else None)


@pytest.mark.parametrize("line", ["aten.add](args = (%mm, %zeros_3))", "aten.add](args = (%mm, %p_other))"])
def test_zeros_that_the_program_makes_are_no_parameter(line: str) -> None:
    """As T5 adds zeros for positions where attention goes across; a bias that was merged with them is one."""
    model = exported(
        "h = MatMul(x, l.weight) y = Add(h, zeros_3)",
        {"l.weight": normal(0, 4, 4), "zeros_3": np.zeros((1, 2, 4), np.float32)},
        {"p_weight": ("PARAMETER", "l.weight"), "p_other": ("PARAMETER", "other"), "p_tied": ("PARAMETER", "tied")},
        ["aten.mm](args = (%x, %p_weight))", line],
    )
    stands = loaded(model)[0].graph.initializers["zeros_3"].metadata_props.get(STANDS_FOR)
    assert stands == ("other" if "p_other" in line else "")


@pytest.mark.parametrize("shape", [(), (4,)])
def test_a_few_numbers_of_several_parameters_are_trained(shape: tuple[int, ...]) -> None:
    """As the weights of a mixture of layers, which no name but the exporter's own tells from a constant."""
    model = exported(
        "h = Mul(x, getitem) y = Add(h, other)",
        {"getitem": normal(0, *shape), "other": normal(1, 4)},
        {"p_a": ("PARAMETER", "a"), "p_b": ("PARAMETER", "b"), "p_other": ("PARAMETER", "other")},
        ["aten.mul](args = (%x, %getitem))", "aten.add](args = (%mul, %p_other))"],
    )
    add_source(model, "getitem", "a", "b", "softmax")
    step = ckplan.open_model(model, loss="mse")
    assert set(step.training.gradients) == {"getitem", "other"}
    assert not [note for note in step.notes if "may be constants" in note]


@pytest.mark.parametrize("name", ["mul", "mul_3"])
def test_what_a_line_names_stands_for_no_other_operand_of_it(name: str) -> None:
    """As of a weight that a mask was multiplied with, where a bias of zeros was dropped beside it."""
    model = exported(
        f"h = MatMul(x, {name}) y = Tanh(h)",
        {name: normal(0, 4, 4)},
        {"p_w": ("PARAMETER", "w"), "p_b": ("PARAMETER", "b"), "b_mask": ("BUFFER", "mask")},
        ["aten.linear](args = (%x, %mul_3, %p_b))", "aten.tanh](args = (%linear,))"],
    )
    add_source(model, name, "w", "mask")
    assert loaded(model)[0].graph.initializers[name].metadata_props[STANDS_FOR] == "w"


@pytest.mark.parametrize(
    ("on_the_way", "known"), [("scalar_tensor_default", True), ("ones_like", False), ("gt", False)]
)
def test_equal_numbers_computed_of_a_parameter_stand_for_it(on_the_way: str, known: bool) -> None:
    """As of scales that begin with one, and to which one is added; what two layers read of such ones is apart."""
    model = exported(
        "h = Mul(x, add_3) y = Mul(h, add_3)",
        {"add_3": np.full(4, 2, np.float32)},
        {"p_a": ("PARAMETER", "a.scale"), "p_b": ("PARAMETER", "b.scale")},
        ["aten.mul](args = (%x, %add_3))", "aten.mul](args = (%mul, %add_5))"],
    )
    for node, module in zip(model.graph.node, "ab", strict=True):
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=f"['', '{module}', 'mul']")
    add_source(model, "add_3", "a.scale", on_the_way)
    stands = [value.metadata_props.get(STANDS_FOR) for value in loaded(model)[0].graph.initializers.values()]
    assert stands == (["a.scale", "b.scale"] if known else [None])


def test_what_is_computed_of_what_nodes_hold_is_no_parameter() -> None:
    """Such as the window of a filter: the exporter lists the parameters."""
    model = exported(
        "window = Neg(held) h = MatMul(x, window) y = MatMul(h, l.weight)",
        {"held": normal(1, 4, 16), "l.weight": normal(0, 16, 4)},
        {"p_weight": ("PARAMETER", "l.weight")},
        ["", "aten.mm](args = (%x, %window))", "aten.mm](args = (%mm, %p_weight))"],
    )
    (held,) = [one for one in model.graph.initializer if one.name == "held"]
    model.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["held"], value=held))
    model.graph.initializer.remove(held)
    assert list(ckplan.open_model(model, loss="mse").training.gradients) == ["l.weight"]


@pytest.mark.parametrize(
    ("line", "has"),
    [
        ("aten._native_batch_norm_legit_no_training.default](args = (%conv2d, %p_n_weight))", True),
        ("aten.conv2d.default](args = (%x, %p_after_batch_norm_conv_weight))", False),
    ],
)
def test_a_layer_with_a_norm_in_it_is_known_by_the_call_not_by_what_it_reads(line: str, has: bool) -> None:
    node = ir.Node(
        "", "Conv", [None, None], metadata_props={LINE: f"%made : [] = call_function[target=torch.ops.{line}"}
    )
    assert has_taken_in_norm(node) == has
