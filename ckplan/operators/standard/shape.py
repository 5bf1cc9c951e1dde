"""Shapes, constants, and data that are moved as they are."""

from __future__ import annotations

from ckplan.operators.costs import free, gather, moved, scatter, strided, written_only
from ckplan.operators.record import Operator

OPERATORS = (
    Operator("BitCast", no_gradient="reinterpreted bits have no derivative"),
    Operator("Compress", cost=moved),
    Operator("Concat", cost=moved),
    Operator("Constant", cost=free),
    Operator("ConstantOfShape", cost=written_only, zero_derivative=True),
    Operator("DepthToSpace", cost=moved),
    Operator("Expand", cost=written_only),
    Operator("EyeLike", cost=written_only, zero_derivative=True),
    Operator("Flatten", cost=free, view=True),
    Operator("Gather", cost=moved),
    Operator("GatherElements", cost=gather),
    Operator("GatherND", cost=gather),
    Operator("Identity", cost=free, view=True),
    Operator("OneHot", cost=written_only),
    Operator("OptionalHasElement", cost=free),
    Operator("Pad", cost=moved),
    Operator("Range", cost=written_only),
    Operator("Reshape", cost=free, view=True),
    Operator("Scatter", cost=scatter),
    Operator("ScatterElements", cost=scatter, in_place=True),
    Operator("ScatterND", cost=scatter),
    Operator("Shape", cost=free),
    Operator("Size", cost=free),
    Operator("Slice", cost=moved),
    Operator("SpaceToDepth", cost=moved),
    Operator("Split", cost=moved),
    Operator("Squeeze", cost=free, view=True),
    Operator("TensorScatter", cost=scatter),
    Operator("Tile", cost=moved),
    Operator("Transpose", cost=strided),
    Operator("Trilu", cost=moved, in_place=True, in_place_on_cuda=True),
    Operator("Unsqueeze", cost=free, view=True),
)
