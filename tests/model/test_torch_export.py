"""Files of torch's exporters: parameters that they merged, computed or transposed get their names back."""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from ckplan.keys import STANDS_FOR
from ckplan.model.torch_files.old_exporter import folded_notes
from tests.model.models import normal, parse, run
from tests.model.torch_files import add_source, exported, loaded

NORMS = exported(
    "h = LayerNormalization(x, a.weight, a.bias) y = LayerNormalization(h, a.weight, a.bias)",
    {"a.weight": np.ones(4, np.float32), "a.bias": np.zeros(4, np.float32)},
    {f"p_{n}_{k}": ("PARAMETER", f"{n}.{k}") for n in "ab" for k in ("weight", "bias")},
    [f"aten.layer_norm.default](args = (%x, [4], %p_{n}_weight, %p_{n}_bias), kwargs = {{}})" for n in "ab"],
)  # fmt: skip


def test_merged_parameters_are_apart_again() -> None:
    model, notes = loaded(NORMS)
    assert [[value.name for value in node.inputs[1:]] for node in model.graph] == [
        ["a.weight", "a.bias"],
        ["b.weight", "b.bias"],
    ]
    assert "2 tensor(s) that torch's exporter merged" in notes
    x = normal(0, 2, 4)
    np.testing.assert_array_equal(run(model, {"x": x})[0], run(NORMS, {"x": x})[0])


def test_a_parameter_that_is_read_twice_stays_one() -> None:
    again = "aten.layer_norm.default](args = (%x, [4], %p_b_weight, %p_b_bias), kwargs = {})"
    model = onnx.ModelProto()
    model.CopyFrom(NORMS)
    node = model.graph.node.add()
    node.CopyFrom(model.graph.node[1])
    model.graph.node[1].output[0] = node.input[0] = "z"
    model.graph.node[1].metadata_props[0].value = f"%made : = call_function[target={again}"
    found, _ = loaded(model)
    assert sorted(found.graph.initializers) == ["a.bias", "a.weight", "b.bias", "b.weight"]


def test_statistics_merged_with_parameters_are_apart_again() -> None:
    ones, zeros = np.ones(4, np.float32), np.zeros(4, np.float32)
    kinds = {"weight": "PARAMETER", "bias": "PARAMETER", "running_mean": "BUFFER", "running_var": "BUFFER"}
    model = exported(
        "y = BatchNormalization(x, n.weight, n.bias, n.bias, n.weight)",
        {"n.weight": ones, "n.bias": zeros},
        {f"{'pb'[kind == 'BUFFER']}_n_{leaf}": (kind, f"n.{leaf}") for leaf, kind in kinds.items()},
        ["aten.batch_norm](args = (%x, %p_n_weight, %p_n_bias, %b_n_running_mean, %b_n_running_var), kwargs = {})"],
    )
    found, _ = loaded(model)
    (node,) = found.graph
    assert [value.name for value in node.inputs[1:]] == [f"n.{leaf}" for leaf in kinds]


def test_a_computed_weight_is_matched_with_its_parameter() -> None:
    model = exported(
        "h = MatMul(x, val_7) y = Add(h, val_9)",
        {"val_7": normal(0, 4, 4), "val_9": np.zeros((1, 4), np.float32)},
        {"p_l_weight": ("PARAMETER", "l.weight"), "p_l_bias": ("PARAMETER", "l.bias")},
        ["aten.linear.default](args = (%x, %p_l_weight, %p_l_bias), kwargs = {})"] * 2,
    )
    found, notes = loaded(model)
    stands = {name: value.metadata_props[STANDS_FOR] for name, value in found.graph.initializers.items()}
    assert stands == {"val_7": "l.weight", "val_9": "l.bias"}
    assert "'val_7' of 'l.weight', 'val_9' of 'l.bias'" in notes


def test_what_was_computed_of_equal_parameters_is_apart_again() -> None:
    model = exported(
        "h = MatMul(x, val_7) y = MatMul(h, val_7)",
        {"val_7": normal(0, 4, 4)},
        {f"p_{n}_weight": ("PARAMETER", f"{n}.weight") for n in "ab"},
        [f"aten.linear.default](args = (%x, %p_{n}_weight), kwargs = {{}})" for n in "ab"],
    )
    found, notes = loaded(model)
    read = [node.inputs[1] for node in found.graph]
    assert [value is not None and value.metadata_props[STANDS_FOR] for value in read] == ["a.weight", "b.weight"]
    assert "1 tensor(s) that torch's exporter merged" in notes
    x = normal(1, 2, 4)
    np.testing.assert_array_equal(run(found, {"x": x})[0], run(model, {"x": x})[0])


@pytest.mark.parametrize("second", ["a", "b"])
def test_what_was_computed_of_several_equal_parameters_each_is_apart_again(second: str) -> None:
    """Recurrent layers whose weights begin as copies: two biases are one input, whichever parameters there are."""
    leaves = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    line = "aten.lstm.input](args = (%x, [%zeros, %zeros_1], [{}], True, 1, 0.0, False, False, True), kwargs = {{}})"
    model = exported(
        "s = Unsqueeze(x, one) h = LSTM<hidden_size=4>(s, val_1, val_2, val_3) q = Squeeze(h, one) "
        "g = LSTM<hidden_size=4>(q, val_1, val_2, val_3) y = Squeeze(g, both)",
        {
            "val_1": normal(0, 1, 16, 4),
            "val_2": normal(1, 1, 16, 4),
            "val_3": np.zeros((1, 32), np.float32),
            "one": np.array([1]),
            "both": np.array([1, 2]),
        },
        {f"p_{n}_{leaf}": ("PARAMETER", f"{n}.{leaf}") for n in {"a", second} for leaf in leaves},
        [
            "aten.unsqueeze](args = (%x, 1))",
            line.format(", ".join(f"%p_a_{leaf}" for leaf in leaves)),
            "aten.squeeze](args = (%lstm, 1))",
            line.format(", ".join(f"%p_{second}_{leaf}" for leaf in leaves)),
            "aten.squeeze](args = (%lstm_1, 1))",
        ],
    )
    for number, sources in enumerate((leaves[:1], leaves[1:2], leaves[2:]), start=1):
        add_source(model, f"val_{number}", f"a.{sources[0]}")
    found, _ = loaded(model)
    first, last = (list(node.inputs[1:4]) for node in found.graph if node.op_type == "LSTM")
    assert (not set(first) & set(last)) == (second == "b")


@pytest.mark.parametrize("source", ["positions.weight", "arange"])
def test_what_layers_share_stays_one(source: str) -> None:
    """A table of positions that was computed beforehand, and is multiplied by a weight of each layer."""
    model = exported(
        "p = MatMul(pos, a.weight) h = Add(x, p) q = MatMul(pos, b.weight) y = Add(h, q)",
        {"pos": normal(0, 2, 4), "a.weight": normal(1, 4, 4), "b.weight": normal(2, 4, 4)},
        {f"p_{n}_weight": ("PARAMETER", f"{n}.weight") for n in ("a", "b", "positions")},
        [
            "aten.matmul](args = (%pos, %p_a_weight))",
            "aten.add](args = (%x, %matmul))",
            "aten.matmul](args = (%pos, %p_b_weight))",
            "aten.add](args = (%add, %matmul_1))",
        ],
    )
    add_source(model, "pos", source)
    found, _ = loaded(model)
    assert sorted(found.graph.initializers) == ["a.weight", "b.weight", "pos"]


def test_a_layer_that_is_used_twice_is_computed_with_once() -> None:
    line = "aten.linear.default](args = (%{x}, %p_l_weight), kwargs = {{}})"
    weight = normal(0, 4, 4)
    model = exported(
        "h = MatMul(x, val_7) y = MatMul(h, val_9)",
        {"val_7": weight, "val_9": weight.copy()},
        {"p_l_weight": ("PARAMETER", "l.weight")},
        [line.format(x="x"), line.format(x="h")],
    )
    found, _ = loaded(model)
    assert list(found.graph.initializers) == ["val_7"]
    assert [node.inputs[1].name for node in found.graph] == ["val_7", "val_7"]


def test_a_group_norm_is_not_taken_for_its_scale() -> None:
    line = "aten.group_norm.default](args = (%x, 2, %p_n_weight, %p_n_bias), kwargs = {})"
    ones, zeros = np.ones(2, np.float32), np.zeros(2, np.float32)
    model = exported(
        """s = Reshape(x, split) i = InstanceNormalization(s, val_1, val_2) h = Reshape(i, back)
        m = Mul(h, val_3) y = Add(m, val_4)""",
        {
            "split": np.array([2, 2, 2]),
            "back": np.array([2, 4]),
            "val_1": ones,
            "val_2": zeros,
            "val_3": np.ones((1, 4), np.float32),
            "val_4": np.zeros((1, 4), np.float32),
        },
        {f"p_n_{leaf}": ("PARAMETER", f"n.{leaf}") for leaf in ("weight", "bias")},
        [line] * 5,
    )
    found, _ = loaded(model)
    stands = {name: value.metadata_props.get(STANDS_FOR) for name, value in found.graph.initializers.items()}
    assert (stands["val_3"], stands["val_4"]) == ("n.weight", "n.bias")
    assert not stands["val_1"]
    assert not stands["val_2"]


SCRIPTED = """<ir_version: 10, opset_import: ["": 21], producer_name: "pytorch"> g (float[2,4] x) => (float[2,4] y) {
    "b.weight" = Identity("a.weight")
    "b.bias" = Identity("a.bias")
    h = LayerNormalization(x, "a.weight", "a.bias")
    i = LayerNormalization(h, "b.weight", "b.bias")
    y = LayerNormalization(i, "b.weight", "b.bias")
}"""


@pytest.mark.parametrize("smoothing", ["", ", 1, -100, 0.0", ", 1, -100, 0.1"])
@pytest.mark.parametrize("written_out", [False, True])
def test_smoothing_that_the_exporter_left_out_is_noted(smoothing: str, written_out: bool) -> None:
    line = f"aten.cross_entropy_loss.default](args = (%x, %p_a_weight, None{smoothing}), kwargs = {{}})"
    loss = "SoftmaxCrossEntropyLoss(h, labels)" if not written_out else "ReduceMean(h)"
    model = exported(
        f"h = MatMul(x, a.weight) e = {loss} y = Add(x, e)",
        {"a.weight": normal(0, 4, 4), "labels": np.asarray([1, 2])},
        {"p_a_weight": ("PARAMETER", "a.weight")},
        ["", line, ""],
    )
    noted = "label_smoothing=0.1 in torch" in loaded(model)[1]
    assert noted == (smoothing.endswith("0.1") and not written_out)


@pytest.mark.parametrize("divisor", ["", ", False, True", ", False, True, 3"])
@pytest.mark.parametrize("written_out", [False, True])
def test_a_divisor_that_the_exporter_left_out_is_noted(divisor: str, written_out: bool) -> None:
    line = f"aten.avg_pool2d.default](args = (%x, [1, 2], [1, 2], [0, 0]{divisor}), kwargs = {{}})"
    model = exported(
        f"p = AveragePool <kernel_shape = [1, 1]> (r) m = {'Mul' if written_out else 'Add'}(p, p) s = Reshape(m, back) "
        "y = Add(s, a.bias)",
        {"r": normal(0, 1, 2, 4, 1), "back": np.array([2, 4]), "a.bias": normal(0, 4)},
        {"p_a_bias": ("PARAMETER", "a.bias")},
        [line, line if written_out else "", "", ""],
    )
    assert ("1 average(s) had a divisor_override" in loaded(model)[1]) == (divisor.endswith("3") and not written_out)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("written_out", [False, True])
def test_means_that_the_exporter_left_out_are_noted(reduction: str, written_out: bool) -> None:
    line = f"aten.scatter_reduce.two](args = (%x, 0, %i, %u, {reduction}), kwargs = {{include_self: False}})"
    model = exported(
        f"s = ScatterElements(x, i, x) y = {'Div' if written_out else 'Add'}(s, a.bias)",
        {"i": np.zeros((2, 4), np.int64), "a.bias": normal(0, 4)},
        {"p_a_bias": ("PARAMETER", "a.bias")},
        [line, line if written_out else ""],
    )
    noted = "1 scatter_reduce took a mean in torch" in loaded(model)[1]
    assert noted == (reduction == "mean" and not written_out)


def test_what_the_old_exporter_merged_is_apart_again() -> None:
    arrays = {"a.weight": np.ones(4, np.float32), "a.bias": np.zeros(4, np.float32)}
    found, notes = loaded(parse(SCRIPTED, arrays))
    names = [[value.name for value in node.inputs[1:]] for node in found.graph]
    assert names == [["a.weight", "a.bias"], ["b.weight", "b.bias"], ["b.weight", "b.bias"]]
    assert "2 tensor(s) that torch's exporter merged" in notes


def scripted(nodes: str, arrays: dict[str, np.ndarray], names: dict[str, str]) -> onnx.ModelProto:
    """A file as torch's old exporter writes it, from x and ids to y, with names for some nodes, by what they make."""
    nodes = re.sub(r"onnx::\w+|\w+(\.\w+)+", r'"\g<0>"', nodes)  # as the text form has such names
    operands = "float[2,4] x, int64[2] ids"
    model = parse(f'<ir_version: 10, opset_import: ["": 21]> g ({operands}) => (float[2,4] y) {{ {nodes} }}', arrays)
    model.producer_name = "pytorch"
    for node in model.graph.node:
        node.name = names.get(node.output[0], node.name)
    return model


def test_layers_in_a_list_that_is_the_module_itself_are_apart_again() -> None:
    """Of ``nn.Sequential`` the parameters have numbers for paths."""
    model = scripted(
        "2.weight = Identity(0.weight) 2.bias = Identity(0.bias) "
        "h = Mul(x, 0.weight) i = Add(h, 0.bias) j = Mul(i, 2.weight) y = Add(j, 2.bias)",
        {"0.weight": np.ones(4, np.float32), "0.bias": np.zeros(4, np.float32)},
        {},
    )
    assert sorted(loaded(model)[0].graph.initializers) == ["0.bias", "0.weight", "2.bias", "2.weight"]


def test_layers_that_begin_as_copies_are_apart_again() -> None:
    """Whatever their values: torch.nn.TransformerEncoder copies one layer, and a target network is a copy, too."""
    model = scripted(
        "b.weight = Identity(a.weight) b.gate = Identity(a.gate) bias2 = Identity(bias1) "
        "h = Mul(x, a.weight) i = Mul(h, a.gate) j = Add(i, bias1) "
        "k = Mul(j, b.weight) l = Mul(k, b.gate) y = Add(l, bias2)",
        {"a.weight": normal(0, 4), "a.gate": np.array(0.1, np.float32), "bias1": np.zeros(4, np.float32)},
        {},
    )
    found, notes = loaded(model)
    assert sorted(found.graph.initializers) == ["a.gate", "a.weight", "b.gate", "b.weight", "bias1", "bias2"]
    assert "3 tensor(s) that torch's exporter merged" in notes


def test_a_table_of_positions_that_layers_share_stays_one() -> None:
    """The old exporter computes what layers make of it once for each, too, but none of them has it for a weight."""
    model = scripted(
        "onnx::MatMul_19 = Identity(onnx::MatMul_18) h = MatMul(onnx::MatMul_18, x) y = MatMul(onnx::MatMul_19, h)",
        {"onnx::MatMul_18": normal(0, 2, 2)},
        {"h": "/net/layers.0/MatMul", "y": "/net/layers.1/MatMul"},
    )
    assert list(loaded(model)[0].graph.initializers) == ["onnx::MatMul_18"]


@pytest.mark.parametrize(
    ("table", "names"),
    [(normal(0, 2, 4), ["wte.weight"]), (np.zeros((2, 4), np.float32), ["wte.weight", "head.weight"])],
    ids=["copied for the old exporter", "two that begin with zeros"],
)
def test_a_table_and_what_has_its_values_are_one_unless_they_are_zeros(table: np.ndarray, names: list[str]) -> None:
    model = scripted(
        "head.weight = Identity(wte.weight) h = Gather(wte.weight, ids) t = Mul(x, head.weight) y = Add(t, h)",
        {"wte.weight": table},
        {},
    )
    assert list(loaded(model)[0].graph.initializers) == names


@pytest.mark.parametrize(
    ("first", "second", "identity", "bias", "apart"),
    [
        ("/net/layers.0/linear/MatMul", "/net/layers.1/linear/MatMul", "", "bias", True),
        ("/net/net.0/MatMul", "/net/net.1/MatMul", "", "bias", True),
        ("/0/MatMul", "/1/MatMul", "", "bias", True),
        ("/online/MatMul", "/target/MatMul", "target.scale = Identity(online.scale)", "bias", True),
        ("/online/MatMul", "/target/MatMul", "", "bias", False),  # two modules may share a weight
        ("/net/layer/MatMul", "/net/layer_1/MatMul", "", "bias", False),  # one module that is used twice
        ("/net/net.0/MatMul", "/net/net.1/MatMul", "", "net.1.bias", False),  # no copy: it has a bias of its own
    ],
)
def test_turned_weights_of_layers_that_begin_as_copies_are_apart_again(
    first: str, second: str, identity: str, bias: str, apart: bool
) -> None:
    model = scripted(
        f"onnx::MatMul_19 = Identity(onnx::MatMul_18) {identity} "
        f"h = MatMul(x, onnx::MatMul_18) i = Mul(h, online.scale) j = MatMul(i, onnx::MatMul_19) y = Add(j, {bias})",
        {"onnx::MatMul_18": normal(0, 4, 4), "online.scale": normal(1, 4), bias: normal(2, 4)},
        {"h": first, "j": second},
    )
    assert ("onnx::MatMul_19" in loaded(model)[0].graph.initializers) == apart


def test_a_parameter_of_which_only_the_name_is_left_is_not_said_to_be_computed() -> None:
    """As where a tool lists initializers among the inputs, which have no such metadata."""
    model = exported(
        "y = Gemm <transB = 1> (x, a.weight)",
        {"a.weight": normal(0, 4, 4)},
        {"p_a_weight": ("PARAMETER", "a.weight")},
        ["aten.linear.default](args = (%x, %p_a_weight), kwargs = {})"],
    )
    del model.graph.value_info[:]
    found, notes = loaded(model)
    assert found.graph.initializers["a.weight"].metadata_props[STANDS_FOR] == "a.weight"
    assert "computed" not in notes


@pytest.mark.parametrize(("weight", "apart"), [(np.zeros((4, 4), np.float32), True), (normal(0, 4, 4), False)])
def test_turned_weights_of_zeros_are_those_of_two_adapters(weight: np.ndarray, apart: bool) -> None:
    model = scripted(
        "onnx::MatMul_19 = Identity(onnx::MatMul_18) h = MatMul(x, onnx::MatMul_18) i = MatMul(h, onnx::MatMul_19) "
        "y = Add(i, v.bias)",
        {"onnx::MatMul_18": weight, "v.bias": normal(2, 4)},
        {"h": "/q/MatMul", "i": "/v/MatMul"},
    )
    assert ("onnx::MatMul_19" in loaded(model)[0].graph.initializers) == apart


@pytest.mark.parametrize(("shape", "apart"), [((4, 1), True), ((2, 2), False)], ids=["channels", "a table"])
def test_scales_of_group_norms_that_begin_alike_are_apart_again(shape: tuple[int, int], apart: bool) -> None:
    """They are those of channels, which the exporter turns; a table that layers read is read alike."""
    model = scripted(
        "onnx::Mul_19 = Identity(onnx::Mul_18) h = Reshape(x, rows) i = Mul(h, onnx::Mul_18) j = Mul(i, onnx::Mul_19) "
        "y = Reshape(j, whole)",
        {
            "onnx::Mul_18": np.ones(shape, np.float32),
            "rows": np.array([-1, *shape]),
            "whole": np.array([2, 4]),
        },
        {"i": "/net/norms.0/Mul", "j": "/net/norms.1/Mul"},
    )
    assert ("onnx::Mul_19" in loaded(model)[0].graph.initializers) == apart


@pytest.mark.parametrize(("first", "tied"), [(7, True), (8, False)])
def test_numbers_tell_whether_two_layers_share_a_weight(first: int, tied: bool) -> None:
    """x is 0, a weight 1, turned 2, what is made 3 and 4, the weight once more turned 5, y 6; two are one more."""
    one, other = f"onnx::MatMul_{first}", f"onnx::MatMul_{first + 1}"
    model = scripted(
        f"{other} = Identity({one}) h = MatMul(x, {one}) t = Tanh(h) y = MatMul(t, {other})",
        {one: normal(0, 4, 4)},
        {"h": "/0/MatMul", "t": "/1/Tanh", "y": "/2/MatMul"},
    )
    del model.graph.input[1]
    assert len(loaded(model)[0].graph.initializers) == (1 if tied else 2)


TIED = """<ir_version: 10, opset_import: ["": 21]> g (int64[2] ids) => (float[2,9] y) {
    h = Gather("wte.weight", ids)
    y = MatMul(h, folded)
}"""


def tied(table: np.ndarray, name: str = "onnx::MatMul_9") -> onnx.ModelProto:
    model = parse(TIED, {"wte.weight": table})
    model.graph.node[1].input[1] = name
    model.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(table.T), name))
    return model


def test_a_tied_weight_that_was_transposed_is_one_again() -> None:
    model = tied(normal(0, 9, 5))
    found, notes = loaded(model)
    assert list(found.graph.initializers) == ["wte.weight"]
    assert [node.op_type for node in found.graph] == ["Transpose", "Gather", "MatMul"]
    assert "'onnx::MatMul_9' is 'wte.weight'" in notes
    ids = np.array([3, 1])
    np.testing.assert_array_equal(run(found, {"ids": ids})[0], run(model, {"ids": ids})[0])


@pytest.mark.parametrize("table", [np.zeros((9, 5), np.float32), np.tile(np.eye(9, 5, dtype=np.float32), 1)])
def test_equal_values_that_any_two_tensors_may_have_tie_nothing(table: np.ndarray) -> None:
    found, _ = loaded(tied(table))
    assert len(found.graph.initializers) == 2


def test_weights_of_two_names_stay_two() -> None:
    found, _ = loaded(tied(normal(0, 9, 5), "head.weight"))
    assert len(found.graph.initializers) == 2


@pytest.mark.parametrize(
    ("weight", "producer"), [("onnx::Conv_20", "pytorch"), ("0.weight", "pytorch"), ("onnx::Conv_20", "")]
)
def test_what_the_old_exporter_folded_is_said(weight: str, producer: str) -> None:
    graph = f'g (float[1,2,3,3] x) => (float[1,2,3,3] y) {{ y = Conv(x, "{weight}", "onnx::Conv_21") }}'
    arrays = {weight: normal(0, 2, 2, 1, 1), "onnx::Conv_21": normal(1, 2)}
    model = parse(f'<ir_version: 10, opset_import: ["": 17]> {graph}', arrays)
    model.producer_name = producer
    _, notes = loaded(model)
    folded = "1 weight(s) of convolutions ('onnx::Conv_20') are products" in notes
    assert folded == (weight != "0.weight" and producer == "pytorch")


@pytest.mark.parametrize(
    ("nodes", "paths", "told"),
    [
        ("y = Gemm<transB=1>(x, onnx::Gemm_9, b)", "/Gemm", "onnx::Gemm_9"),
        ("y = Gemm(x, onnx::Gemm_9, b)", "/Gemm", ""),
        ("y = Gemm<transB=1>(x, w, onnx::Gemm_9)", "/Gemm", "onnx::Gemm_9"),
        ("y = Conv(x, onnx::Conv_9, b)", "/Conv", "onnx::Conv_9"),
        ("h = MatMul(x, onnx::MatMul_9) y = Tanh(h)", "/head/MatMul /head/Tanh", "onnx::MatMul_9"),
        ("h = MatMul(x, onnx::MatMul_9) y = Tanh(h)", "/head/MatMul /act/Tanh", ""),
        ("h = MatMul(x, onnx::MatMul_9) y = Tanh(h)", "MatMul_0 Tanh_1", ""),
        (
            "h = MatMul(x, onnx::MatMul_9) i = Add(h, head.bias) y = Tanh(i)",
            "/head/MatMul /head/Add /head/Tanh",
            "",
        ),
        ("h = MatMul(x, onnx::MatMul_9) i = Add(h, b) y = Tanh(i)", "/MatMul /Add /Tanh", "onnx::MatMul_9"),
    ],
)
def test_what_the_old_exporter_computed_for_layers_is_said(nodes: str, paths: str, told: str) -> None:
    arrays = {"b": normal(0, 4), "w": normal(1, 4, 4), "head.bias": normal(2, 4), "onnx::Gemm_9": normal(3, 4, 4)}
    arrays |= {"onnx::Conv_9": normal(4, 4, 2, 1), "onnx::MatMul_9": normal(5, 4, 4)}
    arrays["onnx::Gemm_9"] = normal(6, 4) if "w, onnx" in nodes else arrays["onnx::Gemm_9"]
    model = scripted(nodes, {name: array for name, array in arrays.items() if re.search(rf"\b{name}\b", nodes)}, {})
    for node, path in zip(model.graph.node, paths.split(), strict=True):
        node.name = path
    notes = " ".join(folded_notes(ir.from_proto(model)))
    assert notes.partition("(s) of layers (")[2].partition(")")[0] == (f"'{told}'" if told else "")


def test_what_is_found_to_be_a_turned_table_is_not_said_to_be_of_unknown_parameters() -> None:
    """As the last product of a memory network, which stands in a module with other nodes."""
    table = normal(0, 4, 4)
    arrays = {"a.weight": table, "onnx::MatMul_9": np.ascontiguousarray(table.T)}
    nodes = "e = Gather(a.weight, ids) h = MatMul(e, onnx::MatMul_9) y = Tanh(h)"
    _, notes = loaded(scripted(nodes, arrays, {"e": "/a/Gather", "h": "/MatMul", "y": "/Tanh"}))
    assert "'onnx::MatMul_9' is 'a.weight'" in notes
    assert "the file does not say of which" not in notes


@pytest.mark.parametrize("scope", ["a", "b"])
def test_what_may_be_computed_of_a_parameter_that_is_there_as_well_is_noted(scope: str) -> None:
    """As of a Snake, `x + sin(alpha * x) ** 2 / alpha`: a quotient of ones is a constant by all other evidence."""
    model = exported(
        "h = Mul(x, a.alpha) s = Sin(h) y = Mul(s, reciprocal)",
        {"a.alpha": np.ones((1, 4), np.float32), "reciprocal": np.ones((1, 4), np.float32)},
        {"p_a_alpha": ("PARAMETER", "a.alpha")},
        ["aten.mul](args = (%x, %p_a_alpha))", "aten.sin](args = (%mul,))", "aten.mul](args = (%sin, %reciprocal))"],
    )
    model.graph.node[-1].metadata_props.add(key="pkg.torch.onnx.name_scopes", value=f"['', '{scope}', 'mul_1']")
    _, notes = loaded(model)
    assert ("1 tensor(s) may be what torch's exporter computed" in notes) == (scope == "a")
    assert ("'reciprocal' of 'a.alpha'" in notes) == (scope == "a")
