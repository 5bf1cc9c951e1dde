"""Outputs that are maps from a class to its score, one for each sample, become the tensor that they are made of.

Converters of scikit-learn's classifiers end in a ZipMap by default, and onnx-ir knows no maps.
"""

from __future__ import annotations

import onnx
import onnx_ir as ir

from ckplan.display import shortened
from ckplan.keys import SCORES


def with_scores(proto: onnx.ModelProto) -> ir.Model | None:
    """Put the tensor of scores in the place of each output that a ZipMap makes of it, under the name of the output.

    Args:
        proto: the model, which is changed.

    Returns:
        The model, whose outputs that were maps bear `keys.SCORES`; None if a ZipMap makes none of its outputs.
    """
    graph = proto.graph
    outputs = {output.name: output for output in graph.output}
    mapped = [node for node in graph.node if node.op_type == "ZipMap" and node.output[0] in outputs]
    if not mapped:
        return None
    for node in mapped:
        output = outputs[node.output[0]]
        output.type.CopyFrom(onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, None))
        node.CopyFrom(onnx.helper.make_node("Identity", list(node.input), list(node.output), name=node.name))
    model = ir.from_proto(proto)
    for value in model.graph.outputs:
        if value.name in {node.output[0] for node in mapped}:
            value.metadata_props[SCORES] = "map"
    return model


def score_notes(model: ir.Model) -> tuple[str, ...]:
    """Say which outputs were maps in the file."""
    found = [f"'{value.name}'" for value in model.graph.outputs if SCORES in value.metadata_props]
    if not found:
        return ()
    return (f"{len(found)} output(s) that are maps from class to score are tensors of scores: {shortened(found, 3)}",)
