"""Operators of onnxruntime's own domain, com.microsoft, are written as the standard operators they are equal to.

Exporters and onnxruntime's optimiser emit them for speed. In standard operators every rule, cost and memory model of
this package holds for them, and the training graph runs anywhere; onnxruntime fuses again what it likes to.
"""

from ckplan.model.contrib.emitter import EXPANSION
from ckplan.model.contrib.expand import adopt, expand
from ckplan.model.contrib.nested import expand_nested
from ckplan.model.contrib.registry import MICROSOFT, QUANTISED, REFUSED, expansion_rules

__all__ = ["EXPANSION", "MICROSOFT", "QUANTISED", "REFUSED", "adopt", "expand", "expand_nested", "expansion_rules"]
