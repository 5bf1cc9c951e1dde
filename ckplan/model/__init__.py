"""Read, normalise, save and price ONNX models."""

from ckplan.model.constants import is_constant
from ckplan.model.loading import ForwardModel, load, normalise
from ckplan.model.saving import save

__all__ = ["ForwardModel", "is_constant", "load", "normalise", "save"]
