"""The shape of the code base: who may import whom, how long a file may be, what start-up may load."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "ckplan"
FILES = sorted(PACKAGE.rglob("*.py"))


def layers() -> tuple[tuple[str, ...], ...]:
    """The layers that pyproject.toml tells import-linter, highest first; parts of one layer are independent."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    lines = contracts["contracts"][0]["layers"]
    return tuple(tuple(name.strip().removeprefix("ckplan.") for name in line.split(":")) for line in lines)


LAYERS = layers()
HEIGHT = {name: height for height, names in enumerate(LAYERS) for name in names}
# Beyond the layers: what knows nothing of planning.
FORBIDDEN = {"model": {"planner"}, "planner": {"model", "operators"}}
# The two files that only hand names on, lazily.
NAMES_ONLY = {"ckplan"}

MAX_LINES = 500


def part_of(module: str) -> str:
    """`ckplan.planner.strategies.sqrt` belongs to `planner`; the package itself is `ckplan`."""
    names = module.split(".")
    return names[1] if len(names) > 1 else names[0]


def module_of(path: Path) -> str:
    names = list(path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """Every module a file imports, at the top or inside a function, with its line."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            if node.module == "ckplan":
                yield from ((node.lineno, f"ckplan.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, str(node.module)


def may_import(importer: str, imported: str) -> bool:
    if imported in NAMES_ONLY or importer in NAMES_ONLY or imported == "__version__":
        return importer in NAMES_ONLY or imported == "__version__"
    if imported in FORBIDDEN.get(importer, ()):
        return False
    return importer == imported or HEIGHT[importer] < HEIGHT[imported]


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_imports_run_downhill(path: Path) -> None:
    importer = part_of(module_of(path))
    uphill = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for line, name in imports_of(path)
        if name.split(".")[0] == "ckplan" and not may_import(importer, part_of(name))
    ]
    assert not uphill


@pytest.mark.parametrize(
    ("importer", "imported", "allowed"),
    [
        ("cli", "report", True),
        ("writer", "runtime", True),
        ("runtime", "writer", False),
        ("planner", "planner", True),
        ("planner", "units", True),
        ("planner", "model", False),
        ("model", "planner", False),
        ("autodiff", "planner", False),
        ("autodiff", "model", True),
        ("model", "autodiff", False),
        ("errors", "units", False),
        ("report", "cli", False),
        ("model", "ckplan", False),
        ("cli", "__version__", True),
    ],
)
def test_the_rule_itself(importer: str, imported: str, allowed: bool) -> None:
    assert may_import(importer, imported) is allowed


def test_every_part_has_its_layer() -> None:
    parts = {part_of(module_of(path)) for path in FILES} - NAMES_ONLY
    assert parts == set(HEIGHT)


@pytest.mark.parametrize("path", [path for path in FILES if PACKAGE / "planner" in path.parents], ids=module_of)
def test_planning_is_numbers_only(path: Path) -> None:
    loaded = {name.split(".")[0] for _, name in imports_of(path)}
    assert not {name for name in loaded if name.startswith("onnx")}


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_no_file_holds_two_subjects(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


KEY = re.compile(r"""["']pkg\.ckplan\.[a-z_]*["']""")


@pytest.mark.parametrize("path", [path for path in FILES if path.name != "keys.py"], ids=module_of)
def test_metadata_keys_are_spelled_in_one_place(path: Path) -> None:
    assert not KEY.findall(path.read_text(encoding="utf-8"))


def test_sessions_are_opened_in_one_place() -> None:
    """A library of custom operators is in every session, since there is one function that opens them."""
    opening = {module_of(path) for path in FILES if ".InferenceSession(" in path.read_text(encoding="utf-8")}
    assert opening == {"ckplan.operators.sessions"}


def test_every_directory_is_a_package() -> None:
    missing = {path.parent for path in FILES if not (path.parent / "__init__.py").exists()}
    assert not missing


def loaded_by(statement: str) -> set[str]:
    """The top-level modules that a fresh interpreter has loaded after `statement`."""
    code = f"import sys\n{statement}\nsys.stderr.write(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return {name.split(".")[0] for name in done.stderr.split()}


HEAVY = {"numpy", "onnx", "onnx_ir", "onnxruntime", "rich", "rustworkx", "sympy", "memray", "psutil"}


@pytest.mark.parametrize(
    "statement",
    [
        "import ckplan",
        "from ckplan.cli import cli\ncli.main(['--help'], standalone_mode=False)",
        "from ckplan.cli import cli\ncli.main(['rewrite', '--help'], standalone_mode=False)",
        "from ckplan.cli import cli\ncli.main(['--version'], standalone_mode=False)",
    ],
    ids=["import", "help", "command help", "version"],
)
def test_start_up_loads_nothing_heavy(statement: str) -> None:
    assert not loaded_by(statement) & HEAVY


_SHADOWED = """
import importlib, pkgutil, types
import ckplan
names = [found.name for found in pkgutil.walk_packages(ckplan.__path__, "ckplan.")]
modules = [importlib.import_module(name) for name in names if not name.endswith("__main__")]
for module in (ckplan, *modules):
    for name in getattr(module, "__all__", ()):
        if isinstance(getattr(module, name), types.ModuleType):
            print(module.__name__, name)
"""


def test_no_module_that_is_loaded_later_takes_the_place_of_what_a_package_exports() -> None:
    done = subprocess.run([sys.executable, "-c", _SHADOWED], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == ""
