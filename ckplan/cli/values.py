"""The values of options, from text to numbers, sizes and names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ckplan.errors import UsageError
from ckplan.units import parse_budget, parse_bytes, parse_share


class _Path(click.Path):
    """A path of any kind but an empty one, which Python takes for the current directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path of a text."""
        if value == "":
            self.fail("it is empty, as a variable of the shell that is not set leaves it", param, ctx)
        return super().convert(value, param, ctx)


class _Output(_Path):
    """A path to write to, which is not ``-``: files are written whole or not at all, and stdout is no file."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path of a text."""
        if value == "-":
            self.fail("it is -, and files are not written to stdout: give a name, or ./- for that one", param, ctx)
        return super().convert(value, param, ctx)


PATH = _Path(path_type=Path, readable=False)
"""A path of any kind; what reads the file says what is wrong with it."""

OUTPUT = _Output(path_type=Path, readable=False)
"""A file or folder to write; whether that can be is checked by the command."""


def _pairs(ctx: click.Context, param: click.Parameter, values: Sequence[str]) -> dict[str, str]:
    """Split repeated NAME=VALUE; the name may itself hold ``=``, so the last one counts."""
    pairs: dict[str, str] = {}
    for text in values:
        name, equals, value = text.rpartition("=")
        if not equals or not name:
            raise click.BadParameter(f"'{text}' is not {param.metavar}", ctx, param)
        if pairs.setdefault(name, value) != value:
            raise click.BadParameter(f"'{name}' is given twice, as {pairs[name]} and as {value}", ctx, param)
    return pairs


def _size(ctx: click.Context, param: click.Parameter, text: str, smallest: int) -> int:
    try:
        size = int(text)
    except ValueError:
        size = smallest - 1
    if size < smallest:
        raise click.BadParameter(f"'{text}' is not a whole number of at least {smallest}", ctx, param)
    return size


def read_dims(ctx: click.Context, param: click.Parameter, values: Sequence[str]) -> dict[str, int]:
    """``("batch=8",)`` to ``{"batch": 8}``."""
    return {name: _size(ctx, param, size, 0) for name, size in _pairs(ctx, param, values).items()}


def read_open_dims(ctx: click.Context, param: click.Parameter, values: Sequence[str]) -> dict[str, int | None]:
    """``("batch=?", "sequence=128")`` to ``{"batch": None, "sequence": 128}``."""
    return {n: None if size == "?" else _size(ctx, param, size, 0) for n, size in _pairs(ctx, param, values).items()}


def read_shapes(ctx: click.Context, param: click.Parameter, values: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """``("x=1,3,224,224",)`` to ``{"x": (1, 3, 224, 224)}``; an empty right side is a scalar."""
    return {
        name: tuple(_size(ctx, param, size, 0) for size in sizes.split(",")) if sizes else ()
        for name, sizes in _pairs(ctx, param, values).items()
    }


def read_numbers(ctx: click.Context, param: click.Parameter, values: Sequence[str]) -> dict[str, Any]:
    """``("sr=16000", "flags=1,0")`` to ``{"sr": 16000, "flags": (1, 0)}``; true and false are numbers, too."""
    words = {"true": True, "false": False}
    read: dict[str, Any] = {}
    for name, text in _pairs(ctx, param, values).items():
        try:
            numbers = tuple(
                words[item.lower()] if item.lower() in words else float(item) if set(item) & set(".enf") else int(item)
                for item in text.split(",")
            )
        except ValueError as error:
            raise click.BadParameter(f"'{text}' is not a number, or numbers with commas", ctx, param) from error
        read[name] = numbers[0] if len(numbers) == 1 else numbers
    return read


def read_budget(ctx: click.Context, param: click.Parameter, value: str | None) -> int | float | None:
    """``"512MiB"`` to bytes, ``"40%"`` to the ratio 0.4."""
    try:
        if value is None:
            return None
        return parse_budget(value)
    except UsageError as error:
        raise click.BadParameter(str(error), ctx, param) from error


def read_memory(ctx: click.Context, param: click.Parameter, value: str) -> int:
    """``"8GiB"`` to bytes."""
    try:
        return parse_bytes(value)
    except UsageError as error:
        raise click.BadParameter(str(error), ctx, param) from error


def read_reports(ctx: click.Context, param: click.Parameter, values: Sequence[str]) -> dict[str, Path]:
    """``("markdown=summary.md",)`` to ``{"markdown": Path("summary.md")}``."""
    return {kind: OUTPUT.convert(path, param, ctx) for kind, path in _pairs(ctx, param, values).items()}


def read_share(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """``"10%"`` to 0.1."""
    try:
        return None if value is None else parse_share(value)
    except UsageError as error:
        raise click.BadParameter(str(error), ctx, param) from error


def read_chunks(ctx: click.Context, param: click.Parameter, value: str | None) -> int | str | None:
    """``"sqrt"`` or a number of chunks."""
    return value if value is None or value == "sqrt" else _size(ctx, param, value, 1)
