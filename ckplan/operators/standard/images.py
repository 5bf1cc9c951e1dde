"""Resampling of images and transforms of signals."""

from __future__ import annotations

from ckplan.operators.costs import fourier, resize, sampled
from ckplan.operators.record import Operator

OPERATORS = (
    Operator("BlackmanWindow", zero_derivative=True),
    Operator("DFT", cost=fourier),
    Operator("GridSample", cost=sampled),
    Operator("HammingWindow", zero_derivative=True),
    Operator("HannWindow", zero_derivative=True),
    Operator("MelWeightMatrix", zero_derivative=True),
    Operator("Resize", cost=resize),
    Operator("STFT", cost=fourier),
    Operator("Upsample", cost=resize),
)
