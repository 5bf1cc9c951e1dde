"""What gives a shape away is hidden."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from ckplan.writer.buffer_names import hide_sources
from ckplan.writer.control_edges import ControlEdges


@pytest.mark.parametrize(("count", "hidden"), [(40, 1), (4, 0)])
def test_indices_tell_a_shape_where_there_are_many(count: int, hidden: int) -> None:
    """T5's buckets of relative positions, looked up for every pair of words; a few integers are shapes and axes."""
    text = f"""<ir_version: 10, opset_import: ["": 21]>
        g (int64[{count},{count}] x, float[32,16] table) => (float[{count},{count},16] z) {{
            buckets = Neg(x)
            y = Gather(table, buckets)
            z = Tanh(y)
        }}"""
    model = ir.from_proto(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text)))
    nodes, edges = list(model.graph), ControlEdges(model.graph)
    table = model.graph.inputs[1]
    table.shape = ir.Shape(["rows", "columns"])
    assert hide_sources(nodes, model, edges) == hidden
