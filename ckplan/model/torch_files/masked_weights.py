"""Weights into which torch's exporter multiplied a mask keep their zeros.

A masked autoencoder, a convolution that sees only what came before, a pruned layer: the module multiplies a weight by a
buffer of zeros and ones. The optimiser of torch's default exporter does it beforehand, and the buffer is gone. Trained
as it is, the product would fill with numbers where the mask has zeros, and see what it must not. The metadata say that
it is a product of a parameter and a buffer.
"""

from __future__ import annotations

import re

import numpy as np
import onnx_ir as ir

from ckplan import keys
from ckplan.display import shortened
from ckplan.model.constants import add_constant
from ckplan.model.torch_files.default_exporter import is_unstructured
from ckplan.model.torch_files.exporter_metadata import buffers_of, folded_from

_COMPUTED = re.compile(r"onnx::(Conv\w*|Gemm|MatMul)_\d+")
"""How the older exporter calls a weight that it computed, of a layer."""
_SAMPLE = 4096
"""How many numbers of a weight are looked at."""
_FEW, _MANY = 0.05, 0.95
"""The share of zeros between which a weight may have been masked."""
_PRODUCT = re.compile(r"mul(_\d+)?")


def keep_masks(model: ir.Model) -> tuple[str, ...]:
    """Multiply what is a product of a parameter and a mask by the mask again, in place.

    Returns:
        Notes.
    """
    graph = model.graph
    buffers = buffers_of(graph)
    masked = []
    for value in list(graph.initializers.values()):
        made_of_buffer = not buffers.isdisjoint(folded_from(value))
        by_product = any(map(_PRODUCT.fullmatch, (str(value.name), *folded_from(value))))
        if made_of_buffer and by_product and value.metadata_props.get(keys.STANDS_FOR) and not value.is_graph_output():
            array = value.const_value.numpy() if value.const_value is not None else np.zeros(0)
            if array.any() and not array.all():
                _mask(graph, value, array)
                masked.append(repr(value.name))
    if not masked:
        return _doubtful(graph)
    listed = shortened(masked, 3)
    return (f"{len(masked)} weight(s) keep the zeros of a mask that torch's exporter multiplied in: {listed}",)


def _doubtful(graph: ir.Graph) -> tuple[str, ...]:
    found = []
    for value in graph.initializers.values():
        if _COMPUTED.fullmatch(str(value.name)) is None or not is_unstructured(value) or value.const_value is None:
            continue
        zeros = value.const_value.numpy().reshape(-1)[:_SAMPLE] == 0
        if _FEW < zeros.mean() < _MANY:
            found.append(repr(value.name))
    if not found:
        return ()
    return (
        f"{len(found)} weight(s) hold zeros among other numbers ({shortened(found, 3)}), trained like the "
        "others: if torch's exporter multiplied a mask in, ckplan.export keeps it",
    )


def _mask(graph: ir.Graph, value: ir.Value, array: np.ndarray) -> None:
    """Put a product with ones and zeros between a weight and its readers."""
    mask = add_constant(graph, f"{value.name}_mask", (array != 0).astype(array.dtype), "a mask")
    readers = list(value.uses())
    node = ir.node("Mul", inputs=[value, mask], name=f"{value.name}_masked")
    result = node.outputs[0]
    result.name, result.type, result.shape = f"{value.name}_masked", value.type, value.shape
    graph.insert_before(graph[0], node)
    for use in readers:
        use.node.replace_input_with(use.idx, result)
