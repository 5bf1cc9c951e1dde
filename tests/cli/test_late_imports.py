"""What is imported where it is first used."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PARTS_OF_SYMPY = "[name for name in sys.modules if name.startswith('sympy.')]"
_DEFER = "from ckplan.cli.late_imports import defer_imports; defer_imports(); "


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("import sys; n = len(sys.meta_path); import ckplan.pipeline; print(len(sys.meta_path) - n)", "0"),
        (f"{_DEFER}import ckplan.pipeline, sys; print({_PARTS_OF_SYMPY})", "[]"),
        (f"{_DEFER}import onnx_ir as ir; print((ir.SymbolicDim('2*n') + ir.SymbolicDim('n')).value)", "3*n"),
        (f"{_DEFER}import sympy; print(sympy.sqrt(16))", "4"),
        (f"{_DEFER}import sympy.core; print(sympy.core.Integer(7))", "7"),
    ],
)
def test_sympy_is_run_when_somebody_computes_with_it(code: str, answer: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == answer
