"""A convolution whose weight counts 0, 1, 2, ... takes the mean of a distribution over bins, and is not trained.

Detectors that predict a box by distributions (YOLO since its 8th) hold the numbers of the bins as the weight of a layer
that requires no gradient. That a weight requires none is in no file of torch's exporters, but no layer begins so.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ckplan import keys
from ckplan.operators.matching import input_of, is_op

_FEWEST = 4
"""Bins of the shortest distribution that is looked at."""
_MOST = 4096
"""Those of the longest: larger weights are not read."""


def freeze_bins(model: ir.Model) -> tuple[str, ...]:
    """Mark such weights with `keys.FROZEN`, in place.

    Returns:
        Notes: none, since what is not trained is named anyway.
    """
    for node in model.graph:
        value = input_of(node, 1) if is_op(node, "Conv") else None
        if value is not None and value.const_value is not None and _counts(value.const_value):
            value.metadata_props[keys.FROZEN] = "counts from zero"
    return ()


def _counts(tensor: ir.TensorProtocol) -> bool:
    """Whether the numbers of a tensor are 0, 1, 2, and so on."""
    if not _FEWEST <= tensor.size <= _MOST:
        return False
    array = tensor.numpy().reshape(-1).astype(np.float64)
    return np.array_equal(array, np.arange(array.size))
