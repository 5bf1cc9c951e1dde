"""What a runtime makes of a graph: fusions, execution order, buffer reuse, workspace. Graph -> `Problem`.

Nothing in here writes a file: the writer of plans stands above and asks.
"""

from __future__ import annotations

from ckplan.runtime.problem_of import problem_of

__all__ = ["problem_of"]
