"""What is imported where it is first used."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PARTS_OF_SYMPY = "[name for name in sys.modules if name.startswith('sympy.')]"


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        (f"import ckplan.pipeline, sys; print({_PARTS_OF_SYMPY})", "[]"),
        ("import ckplan, onnx_ir as ir; print((ir.SymbolicDim('2*n') + ir.SymbolicDim('n')).value)", "3*n"),
        ("import ckplan, sympy; print(sympy.sqrt(16))", "4"),
        ("import ckplan, sympy.core; print(sympy.core.Integer(7))", "7"),
    ],
)
def test_sympy_is_run_when_somebody_computes_with_it(code: str, answer: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == answer
