"""``ckplan.toml``, or ``[tool.ckplan]`` in ``pyproject.toml``: which models are checked, how, and against what."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ckplan.arguments import shown
from ckplan.comparison.judging import Limits
from ckplan.comparison.running import Target
from ckplan.comparison.settings import KEYS, Settings, read_setting, unknown
from ckplan.errors import ModelError, UsageError
from ckplan.units import parse_budget, parse_share

OWN_FILE = "ckplan.toml"
SHARED_FILE = "pyproject.toml"

_LIMITS = ("max-regression", "warn-regression", "budget", "warn-budget", "tolerance")
_MODEL = ("path", *_LIMITS, *KEYS)
_TOP = ("baseline", "models", *_LIMITS, *KEYS)


@dataclass(frozen=True)
class Configuration:
    """What is to be checked.

    Attributes:
        path: the file that says so.
        targets: the models, one for each strategy that is to be tried on them.
        baseline: file with what they took before; None judges by budgets alone.
    """

    path: Path
    targets: tuple[Target, ...]
    baseline: Path | None


def find_configuration(folder: Path) -> Path | None:
    """The configuration of a folder: its ``ckplan.toml``, or a ``pyproject.toml`` with a section for ckplan."""
    if (folder / OWN_FILE).is_file():
        return folder / OWN_FILE
    shared = folder / SHARED_FILE
    if shared.is_file() and _section(shared, _toml(shared)) is not None:
        return shared
    return None


def read_configuration(path: Path) -> Configuration:
    """Read a configuration.

    Keys at the top are defaults of all models. Paths are relative to the file.

    Args:
        path: a TOML file; one that is called ``pyproject.toml`` has the configuration in ``[tool.ckplan]``.

    Raises:
        ModelError: the file cannot be read or is not TOML.
        UsageError: it holds no models, an unknown key, or a value that does not fit its key.
    """
    top = _section(path, _toml(path))
    if top is None:
        raise UsageError(f"'{path}' has no section [tool.ckplan]", "add one, or name another file with --config")
    _check_keys(f"'{path}'", top, _TOP)
    models = top.get("models", {})
    prefix = "tool.ckplan." if path.name == SHARED_FILE else ""
    if not isinstance(models, dict) or not models:
        raise UsageError(f"'{path}' names no models", f"add a section such as [{prefix}models.mine] with a path")
    for name, model in models.items():
        if not isinstance(model, dict):
            raise UsageError(
                f"'{path}': model '{name}' is {shown(model)}, not a section",
                f"write [{prefix}models.{_key(name)}], and path = ... below it",
            )
    defaults = {key: value for key, value in top.items() if key not in ("baseline", "models")}
    _check_defaults(f"'{path}'", defaults)
    targets = [target for name, model in models.items() for target in _targets(path, name, model, defaults)]
    names = [target.name for target in targets]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"'{path}' checks '{twice}' twice", "rename a model, or name each strategy once")
    baseline = top.get("baseline")
    if baseline == "" or not isinstance(baseline, str | None):
        raise UsageError(f"'{path}': `baseline` must be a string, the name of a file")
    return Configuration(path, tuple(targets), None if baseline is None else path.parent / baseline)


def _key(name: str) -> str:
    """A name as it stands in the heading of a section."""
    return name if re.fullmatch(r"[\w-]+", name, re.ASCII) else json.dumps(name)


def _toml(path: Path) -> dict[str, Any]:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ModelError(f"there is no file '{path}'", "check the path") from None
    except OSError as error:
        raise ModelError(f"cannot read '{path}': {error.strerror or error}", "check the path") from None
    except ValueError as error:  # bad TOML, or not UTF-8
        raise ModelError(f"'{path}' is not TOML: {error}", "correct it") from None
    if any("\0" in text for text in _texts(data)):
        raise UsageError(f"'{path}' holds a null character, which no name can have", "remove it")
    return data


def _texts(value: object) -> Iterator[str]:
    """All text in a value, keys and what lies in tables and lists among it."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _texts([*value, *value.values()])
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part)


def _section(path: Path, data: Mapping[str, Any]) -> dict[str, Any] | None:
    """The part that is meant for ckplan."""
    if path.name != SHARED_FILE:
        return dict(data)
    tools = data.get("tool", {})
    section = tools.get("ckplan") if isinstance(tools, dict) else None
    return dict(section) if isinstance(section, dict) else None


def _targets(path: Path, name: str, model: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[Target]:
    where = f"'{path}', model '{name}'"
    _check_keys(where, model, _MODEL)
    if not name:
        raise UsageError(f"'{path}' has a model without a name", "write [models.NAME]")
    if not isinstance(model.get("path"), str) or not model["path"]:
        raise UsageError(f"{where}: there is no `path`", "name the model's file")
    given = {**defaults, **model}
    if model.get("inference") is True and "strategy" not in model:
        given.pop("strategy", None)
    limits = _limits(where, {key: given[key] for key in _LIMITS if key in given})
    asked = {key: value for key, value in given.items() if key in KEYS}
    strategies = asked.get("strategy")
    if strategies == []:
        raise UsageError(f"{where}: `strategy` is empty", "name one, or leave the key out")
    several = isinstance(strategies, list) and len(strategies) > 1
    targets = []
    for strategy in strategies if isinstance(strategies, list) else [strategies]:
        options = _options(where, asked if strategy is None else {**asked, "strategy": strategy})
        if options.get("params"):
            options["params"] = str(path.parent / options["params"])
        try:
            Settings.of(**options)
        except UsageError as error:
            raise UsageError(f"{where}: {error.message}", error.hint) from None
        called = f"{name}, {strategy}" if several else name
        targets.append(Target(called, path.parent / model["path"], options, limits))
    return targets


def _check_defaults(where: str, defaults: Mapping[str, Any]) -> None:
    """See that what stands at the top can be read, which is no model's fault."""
    _limits(where, {key: defaults[key] for key in _LIMITS if key in defaults})
    strategies = defaults.get("strategy")
    if strategies == []:
        raise UsageError(f"{where}: `strategy` is empty", "name one, or leave the key out")
    for strategy in strategies if isinstance(strategies, list) else [strategies]:
        own = {key: value for key, value in defaults.items() if key in KEYS}
        _options(where, own if strategy is None else {**own, "strategy": strategy})


def _check_keys(where: str, given: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in given:
        if key not in known:
            raise UsageError(f"{where} has no key `{key}`", unknown(key, known))


def _options(where: str, given: Mapping[str, Any]) -> dict[str, Any]:
    options = {}
    for key, value in given.items():
        try:
            options[key.replace("-", "_")] = read_setting(key.replace("-", "_"), value)
        except ValueError as error:
            raise UsageError(f"{where}: `{key}` must be {error}") from None
    return options


def _limits(where: str, given: Mapping[str, Any]) -> Limits:
    read = {}
    for key, value in given.items():
        is_budget = key.endswith("budget")
        try:
            if not isinstance(value, str):
                raise UsageError(f"`{value}` is not a string", f"write it like {'512MiB' if is_budget else '3%'}")
            read[key.replace("-", "_")] = parse_budget(value) if is_budget else parse_share(value)
        except UsageError as error:
            raise UsageError(f"{where}: `{key}`: {error.message}", error.hint) from None
    return Limits(**read)  # type: ignore[arg-type]
