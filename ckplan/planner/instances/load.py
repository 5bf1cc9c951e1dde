"""Read a planning problem from a file, whatever its format."""

from __future__ import annotations

import json
from pathlib import Path

from ckplan.errors import ModelError
from ckplan.planner.instances.kusumoto import parse_kusumoto
from ckplan.planner.instances.node_link import parse_node_link
from ckplan.planner.instances.problem_json import problem_from_json
from ckplan.planner.problem import Problem

SUFFIXES = (".json", ".txt")
"""How files of planning problems end."""

_FORMS = "write it in one of the forms that `ckplan plan --help` names"


def load_problem(path: Path) -> Problem:
    """Read a problem: our own JSON, a node-link JSON graph, or Kusumoto et al.'s text.

    Raises:
        ModelError: the file cannot be read or is none of these; the message names the file.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}", "check the path") from error
    except UnicodeDecodeError as error:
        raise ModelError(f"{path} is not text: {error}", _FORMS) from error
    try:
        if not text.lstrip().startswith("{"):
            return parse_kusumoto(text)
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise ModelError(f"not JSON: {error}") from error
        return problem_from_json(data) if "format" in data else parse_node_link(data)
    except ModelError as error:
        raise ModelError(f"{path}: {error.message}", error.hint or _FORMS) from error
    except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError) as error:
        raise ModelError(f"{path} is damaged: {type(error).__name__}: {str(error)[:200]}", "write it again") from error
