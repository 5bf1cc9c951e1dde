"""onnxruntime's C# package for mono, made from its sources in a package of npm."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.examples.toolchains import native_library, npm_package

PACKAGE = "com.github.asus4.onnxruntime"
"""onnxruntime for Unity. The package of NuGet wants a .NET that no registry of Debian, PyPI or npm has."""

OLDER = (
    (r"\busing var ", "var "),
    (r"Select\(static ", "Select("),
    (r"(\S+<\w+>) (\w+) = new\(", r"\1 \2 = new \1("),
    (r": unmanaged", ": struct"),
    (r"\((\S+) is not (\w+)\)", r"(!(\1 is \2))"),
    (r"^( *)(\S+\.Span)\[(\w+)\] = (.*);", r"\1var assigned = \2; assigned[\3] = \4;"),
    (r"(\w+\[0\]) = (\w+\[1\]) = (\w+);", r"\1 = \3; \2 = \3;"),
)
"""What mono's compiler does not know, and the older way to say it; none changes what a program of a test sees."""


def compiled(sources: list[Path], folder: Path) -> list[str]:
    """Compile a program against onnxruntime in an empty folder of ours; returns the command that runs it."""
    for tool in ("mcs", "mono"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed: install mono-mcs and mono-runtime")
    managed = folder / "Microsoft.ML.OnnxRuntime.dll"
    native_library(folder, "libonnxruntime.so")
    _compile(
        _older(npm_package(PACKAGE) / PACKAGE / "Runtime", folder / "older"), managed, "-unsafe", "-d:NETSTANDARD2_0"
    )
    program = folder / "program.exe"
    _compile(sources, program, f"-r:{managed}")
    return ["mono", str(program)]


def _older(folder: Path, copies: Path) -> list[Path]:
    copies.mkdir()
    for source in [*folder.glob("*.cs"), *(folder / "Tensors").glob("*.cs")]:
        text = source.read_text(encoding="utf-8-sig")
        for new, old in OLDER:
            text = re.sub(new, old, text, flags=re.MULTILINE)
        (copies / source.name).write_text(text, encoding="utf-8")
    return sorted(copies.iterdir())


def _compile(sources: list[Path], out: Path, *options: str) -> None:
    kind = "library" if out.suffix == ".dll" else "exe"
    words = ["mcs", "-langversion:experimental", f"-target:{kind}", f"-out:{out}", *options, *map(str, sources)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
