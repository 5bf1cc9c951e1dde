"""Batch normalisations that torch's old exporter wrote as a scale and a shift of buffers are not trained.

The backbone of a detector holds mean, variance, scale and shift as buffers (``FrozenBatchNorm2d``). The exporter makes
one scale and one shift of the four, under numbers for names. So they stand alone in a module, behind a convolution.
"""

from __future__ import annotations

from collections import Counter

import onnx_ir as ir

from ckplan import keys
from ckplan.model.inference.infer import static_shape
from ckplan.model.torch_files.exporter_metadata import module_of
from ckplan.model.torch_files.old_exporter import COMPUTED, scope_of

_IMAGE = 4
"""Rank of images: samples, channels, height, width."""


def freeze_norms(model: ir.Model) -> tuple[str, ...]:
    """Mark such scales and shifts with `keys.FROZEN`, in place.

    Returns:
        Notes: none, since what is not trained is named anyway.
    """
    if model.producer_name != "pytorch":
        return ()
    owners = {module_of(str(value.name)) for value in model.graph.initializers.values()}
    reads: Counter[ir.Value] = Counter()
    for scaling in model.graph:
        readers = scaling.outputs[0].consumers()
        if scaling.op_type != "Mul" or len(readers) != 1 or readers[0].op_type != "Add":
            continue
        scale, shift = _of_channels(scaling), _of_channels(readers[0])
        module = scope_of(scaling)
        alone = bool(module) and module not in owners and module == scope_of(readers[0])
        if alone and scale is not None and shift is not None and _is_behind_convolution(scaling, module):
            reads.update((scale, shift))
    for value, count in reads.items():
        if count == len(_readers(value)):
            value.metadata_props[keys.FROZEN] = "of a batch normalisation of buffers, as it seems"
    return ()


def _of_channels(node: ir.Node) -> ir.Value | None:
    """What a node reads that the exporter computed: one number for each channel of an image."""
    for read in node.inputs:
        copied = None if read is None else read.producer()
        value = copied.inputs[0] if copied is not None and copied.op_type == "Identity" else read
        if value is None or not value.is_initializer() or COMPUTED.fullmatch(str(value.name)) is None:
            continue
        shape = static_shape(value) or ()
        if len(shape) == _IMAGE and shape[1] > 1 and shape.count(1) == _IMAGE - 1:
            return value
    return None


def _readers(value: ir.Value) -> list[ir.Node]:
    """The nodes that read a value or a copy of it: the exporter writes equal tensors once."""
    found = []
    for node in value.consumers():
        found += list(node.outputs[0].consumers()) if node.op_type == "Identity" else [node]
    return found


def _is_behind_convolution(node: ir.Node, module: str) -> bool:
    """Whether a node reads what a convolution of another module makes."""
    producers = [value.producer() for value in node.inputs if value is not None]
    return any(one is not None and one.op_type == "Conv" and scope_of(one) != module for one in producers)
