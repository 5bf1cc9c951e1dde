"""Repeated blocks are found by what they are, whatever lies around them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ckplan
from ckplan.answers.blocks.patterns import Pattern, patterns, short_name
from ckplan.keys import PHASE
from sample_models.densenet import densenet
from sample_models.gpt import gpt
from sample_models.mobilenet_v2 import mobilenet_v2
from sample_models.resnet import resnet50


@pytest.fixture
def blocks(tmp_path: Path) -> Callable[[onnx.ModelProto, str], list[Pattern]]:
    """The patterns of one level in a model's training graph."""

    def find(model: onnx.ModelProto, level: str) -> list[Pattern]:
        onnx.save(model, tmp_path / "model.onnx")
        training = ckplan.build_training_graph(ckplan.load(tmp_path / "model.onnx").model)
        return [pattern for pattern in patterns(training.model) if pattern.level == level]

    return find


Blocks = Callable[[onnx.ModelProto, str], list[Pattern]]


def figures(found: list[Pattern]) -> list[tuple[str, int, int]]:
    return [(pattern.name, pattern.count, len(pattern.operators)) for pattern in found]


def test_a_residual_network(blocks: Blocks) -> None:
    small = resnet50(image=64, width=4, classes=10)
    groups = {pattern.name: pattern.count for pattern in blocks(small, "group")}
    assert groups["Conv+BatchNormalization+Relu"] == 33
    assert groups["Conv+BatchNormalization+Add+Relu"] == 16
    assert groups["Conv+BatchNormalization"] == 4
    # Four of its sixteen blocks have a convolution on their shortcut.
    assert figures(blocks(small, "layer")) == [("Conv+BatchNormalization+Relu+Add", 12, 10)]


def test_what_an_operator_was_written_in_is_that_operator(tmp_path: Path) -> None:
    """In training, BatchNormalization is a dozen nodes; a person still knows one."""
    onnx.save(resnet50(image=64, width=4, classes=10), tmp_path / "model.onnx")
    model = ckplan.load(tmp_path / "model.onnx", training=True).model
    found = patterns(ckplan.build_training_graph(model, training=True).model)
    counts = {pattern.name: pattern.count for pattern in found if pattern.level == "group"}
    assert counts["Conv+BatchNormalization+Relu"] == 33
    assert counts["Conv+BatchNormalization+Add+Relu"] == 16
    assert "Conv+BatchNormalization+Relu+Add" in [pattern.name for pattern in found if pattern.level == "layer"]
    assert max(len(pattern.operators) for pattern in found) > 20


def test_a_module_of_the_model_is_no_operator() -> None:
    """Exporters number the nodes of a module as well, from nothing or from 1 on."""
    model = chain("MatMul", "Softmax", "MatMul")
    for node, name in zip(model.graph, ("MatMul", "Softmax_1", "MatMul_1"), strict=True):
        node.name = f"/layer/Attention/{name}"
    assert [pattern.name for pattern in patterns(model)] == ["MatMul+Softmax", "MatMul"]


def test_what_is_put_before_a_node_of_the_model_is_named_with_it() -> None:
    model = chain("MatMul", "GlobalMaxPool", "Max", "Softmax", "MatMul")
    names = ("MatMul", "Softmax/GlobalMaxPool_0", "Softmax/Max_0", "Softmax", "MatMul_1")
    for node, name in zip(model.graph, names, strict=True):
        node.name = f"/attention/{name}"
    assert [pattern.name for pattern in patterns(model)] == ["MatMul+Softmax", "MatMul"]


def test_transformer_blocks_begin_where_one_tensor_passes(blocks: Blocks) -> None:
    (layer,) = blocks(gpt(layers=3, width=16, heads=2, vocabulary=32, sequence=8), "layer")
    firsts = [names[0] for names in layer.occurrences]
    assert firsts == [f"/transformer/h/{index}/ln_1/LayerNormalization" for index in range(3)]


def test_layers_of_several_sizes_and_with_growing_inputs(blocks: Blocks) -> None:
    """A depthwise convolution has as many groups as channels; a dense layer reads one tensor more than the last.

    In planes of up to 16 x 16 some depthwise convolutions have another form than others; here all are larger.
    """
    depthwise = blocks(mobilenet_v2(image=640, percent=25, head=32, classes=4), "layer")
    assert figures(depthwise) == [("Conv+BatchNormalization+Clip+Add", 10, 9)]
    dense = blocks(densenet(image=32, growth=4, blocks=(3, 4, 4, 3), classes=4), "layer")
    assert figures(dense) == [("Conv+Concat+BatchNormalization+Relu", 10, 7)]


def chain(*operators: str, phases: dict[int, str] | None = None) -> ir.Model:
    """Nodes that read each other in turn."""
    value = source = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([2]))
    nodes = []
    for index, operator in enumerate(operators):
        node = ir.Node("", operator, [value], name=f"n{index}")
        node.metadata_props[PHASE] = (phases or {}).get(index, "forward")
        value = node.outputs[0]
        value.name, value.shape, value.dtype = f"v{index}", ir.Shape([2]), ir.DataType.FLOAT
        nodes.append(node)
    return ir.Model(ir.Graph([source], [value], nodes=nodes, opset_imports={"": 21}), ir_version=10)


def test_a_chain_of_equal_groups_has_no_layers_beside() -> None:
    assert [(p.level, p.name, p.count) for p in patterns(chain(*["MatMul", "Tanh"] * 12))] == [
        ("group", "MatMul+Tanh", 12)
    ]


def test_the_shortest_block_wins() -> None:
    """Two equal towers of layers are so many layers."""
    layer = ["MatMul", "Relu", "MatMul", "Add", "Softmax"]
    (first, *_) = patterns(chain(*(["Gemm", *layer * 4]) * 2))
    assert (first.level, first.count, len(first.operators)) == ("layer", 8, 5)


def test_backward_nodes_are_left_out() -> None:
    model = chain("MatMul", "Relu", "MatMul", "Relu", phases={2: "backward", 3: "backward"})
    assert patterns(model) == (Pattern("MatMul+Relu", "group", ("MatMul", "Relu"), (("n0", "n1"),)),)


def test_nothing_is_nothing() -> None:
    assert patterns(chain()) == ()


@pytest.mark.parametrize(
    ("operators", "distinct", "name"),
    [
        (["Conv", "Relu"], False, "Conv+Relu"),
        (["MatMul", "Add", "Reshape", "Transpose"], False, "MatMul+Add+Reshape+Transpose"),
        (["MatMul", "Add", "Reshape", "Transpose", "Add"], False, "MatMul+Add"),
        (["com.microsoft.Gelu", "A", "B", "C", "D"], False, "Gelu+A+B+C+…"),
        (["Conv", "Relu", "Conv", "Relu"], True, "Conv+Relu"),
        (["Reshape", "Cast", "Squeeze", "Split", "Identity"], False, "Reshape+Cast+Squeeze+Split+…"),
    ],
)
def test_names(operators: list[str], distinct: bool, name: str) -> None:
    assert short_name(operators, distinct=distinct) == name


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["MatMul", "Relu", "Add", "Reshape"]), st.integers(1, 6)), max_size=40))
def test_any_graph_is_divided_without_remainder(drawn: list[tuple[str, int]]) -> None:
    values = [ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([2]))]
    nodes = []
    for index, (operator, back) in enumerate(drawn):
        node = ir.Node("", operator, [values[-1], values[-min(back, len(values))]], name=f"n{index}")
        node.outputs[0].name = f"v{index}"
        nodes.append(node)
        values.append(node.outputs[0])
    everything = patterns(ir.Model(ir.Graph(values[:1], values[-1:], nodes=nodes), ir_version=10))
    grouped = [name for p in everything if p.level == "group" for names in p.occurrences for name in names]
    assert sorted(grouped) == sorted(str(node.name) for node in nodes)
    layered = [name for p in everything if p.level == "layer" for names in p.occurrences for name in names]
    assert len(layered) == len(set(layered))
    assert all(p.count > 1 for p in everything if p.level == "layer")
    for level in ("layer", "group"):
        names = [p.name for p in everything if p.level == level]
        assert len(names) == len(set(names))
