"""Names that onnxruntime's optimisers gave to constants, in files that it wrote after its optimisations.

A product with a bias becomes a Gemm between two Reshapes, whose shapes are called ``gemm_input_shape_token_3``. Where
such products are left, it takes those names again when it optimises the file once more, and then refuses it.
"""

from __future__ import annotations

import re

import onnx_ir as ir

from ckplan.model.constants import add_initializer, unused_name

_OF_A_GEMM = re.compile(r"gemm_(in|out)put_shape(_token_\d+)?")


def rename_generated(graph: ir.Graph) -> None:
    """Give such constants names that onnxruntime does not make, in place; what the file was read from is left alone."""
    for name, value in list(graph.initializers.items()):
        tensor = value.const_value
        if tensor is None or not _OF_A_GEMM.fullmatch(name) or value.is_graph_input() or value.is_graph_output():
            continue
        fresh = unused_name(graph, f"{name}_of_before")
        copy = add_initializer(graph, fresh, ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=fresh))
        value.replace_all_uses_with(copy)
        del graph.initializers[name]
