"""Read, normalise, save and price ONNX models."""

from ckplan.model.constants import is_constant
from ckplan.model.costs import node_cost, seconds
from ckplan.model.files.saving import save
from ckplan.model.literals import is_literal
from ckplan.model.loading import ForwardModel, load, normalise
from ckplan.operators.costs import Cost

__all__ = ["Cost", "ForwardModel", "is_constant", "is_literal", "load", "node_cost", "normalise", "save", "seconds"]
