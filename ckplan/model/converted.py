"""What onnx's converter between operator sets and its shape inference overlook is put right here.

Each case was found by running models before and after in onnxruntime (onnx 1.23): the converted one computed something
else, or did not fit together any more.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

#: Upsample, and Resize up to this version, know one way to place their results.
_ASYMMETRIC = 10
#: GroupNormalization has a scale and a bias per group before this version, and per channel from it on.
_PER_CHANNEL = 21


def put_right(model: ir.Model, version: int) -> None:
    """Give nodes back what they meant, after the converter ran.

    Args:
        model: of the new version.
        version: the operator set that it was written for. The converter renames values, but it has nodes of one version
            only, so that the version tells what they meant.
    """
    for node in list(_nodes(model)):
        if node.op_type == "STFT" and "onesided" not in node.attributes:
            node.attributes["onesided"] = ir.AttrInt64("onesided", 1)  # the default, which shape inference takes for 0
        if node.op_type == "Resize" and version <= _ASYMMETRIC:
            for name, value in (("coordinate_transformation_mode", "asymmetric"), ("nearest_mode", "floor")):
                node.attributes[name] = ir.AttrString(name, value)
        elif node.op_type == "GroupNormalization" and version < _PER_CHANNEL:
            for index in (1, 2):
                _repeat_for_channels(model, node, index)


def _nodes(model: ir.Model) -> Iterator[ir.Node]:
    return (node for node in model.graph.all_nodes() if node.domain in ("", "ai.onnx") and node.outputs)


def _repeat_for_channels(model: ir.Model, node: ir.Node, index: int) -> None:
    """Give each channel the scale or bias of its group; with static shapes all of this but the Expand is folded."""
    groups, source, graph = node.attributes.get_int("num_groups", 1), node.inputs[index], node.graph
    assert graph is not None
    assert source is not None

    def constant(*numbers: int) -> ir.Value:
        name = f"{node.outputs[0].name}/channels_{index}_{'_'.join(map(str, numbers))}"
        if name not in model.graph.initializers:
            tensor = ir.Tensor(np.asarray(numbers, dtype=np.int64), name=name)
            value = ir.Value(
                name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape([len(numbers)]), const_value=tensor
            )
            model.graph.register_initializer(value)
        return model.graph.initializers[name]

    def emit(op_type: str, *inputs: ir.Value | None, **attributes: int) -> ir.Value:
        fresh = ir.node(op_type, inputs, attributes)
        fresh.outputs[0].name = f"{node.outputs[0].name}/{op_type}_{index}_{len(graph)}"
        graph.insert_before(node, fresh)
        return fresh.outputs[0]

    column = emit("Reshape", source, constant(groups, 1))
    each = emit("Div", emit("Shape", node.inputs[0], start=1, end=2), constant(groups))
    wide = emit("Expand", column, emit("Concat", constant(groups), each, axis=0))
    node.replace_input_with(index, emit("Reshape", wide, constant(-1)))
