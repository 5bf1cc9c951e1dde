"""Modules of other packages that are imported where they are first used, not where they are named.

onnx-ir names sympy for arithmetic with symbolic dimensions, which static graphs have none of: a third of what a command
imports. Only the command line does this, whose process is its own; in other people's programs imports are left alone.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType

_NAMES = frozenset({"sympy", "onnx_ir._symbolic_shapes"})


class _Deferring:
    """Finds these modules like any other, and leaves running them to the first access to an attribute."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _NAMES:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = LazyLoader(spec.loader)
        return spec


def defer_imports() -> None:
    """Defer the import of these modules from now on."""
    sys.meta_path.insert(0, _Deferring())
