"""Both ways between graph and numbers: training graph -> `Problem`, `Plan` -> ONNX."""

from __future__ import annotations

from ckplan.rewrite.emit import emit
from ckplan.rewrite.problem_of import problem_of

__all__ = ["emit", "problem_of"]
