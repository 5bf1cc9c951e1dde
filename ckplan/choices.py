"""Choices that are written ``name`` or ``name:field=value,field=value``: strategies, optimizers.

Each is a frozen dataclass with a ``name``; its fields are its options.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol, TypeVar, get_type_hints

from ckplan.arguments import shown
from ckplan.display import did_you_mean
from ckplan.errors import UsageError
from ckplan.units import parse_bytes


class Choice(Protocol):
    """A dataclass that has a name on the command line."""

    name: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


C = TypeVar("C", bound=Choice)


def parse_choice(text: str, kinds: Sequence[type[C]], what: str) -> C:
    """Make one of several dataclasses from ``name`` or ``name:field=value,field=value``.

    A value that holds commas (a list of names) is written with ``;`` between its items.

    Args:
        text: what the user wrote.
        kinds: the classes to choose from.
        what: what they are, in a word, for errors.

    Raises:
        UsageError: no such name or field, a value is missing, there twice or does not fit its field, or it is no text.
    """
    if not isinstance(text, str):
        raise UsageError(f"{shown(text)} is no {what}", "write it as text, as on the command line")
    name, _, rest = text.partition(":")
    by_name = {kind.name: kind for kind in kinds}
    if name not in by_name:
        hint = did_you_mean(name, by_name) or f"choose one of {', '.join(by_name)}"
        raise UsageError(f"there is no {what} `{name}`", hint)
    kind = by_name[name]
    types = get_type_hints(kind)
    fields = {field.name: types[field.name] for field in dataclasses.fields(kind)}
    values: dict[str, object] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if key not in fields:
            known = ", ".join(f"{field}=…" for field in fields) or "none"
            raise UsageError(f"{what} `{name}` has no option `{key}`", f"its options: {known}")
        if key in values:
            raise UsageError(f"option `{key}` of {what} `{name}` is given twice", "give it once")
        if not equals:
            raise UsageError(f"option `{key}` of {what} `{name}` has no value", f"write `{key}=…`")
        try:
            values[key] = _converter(key, fields[key])(value)
        except UsageError as error:  # of a size
            raise UsageError(f"option `{key}` of {what} `{name}`: {error.message}", error.hint) from None
        except ValueError as error:
            needed = "a whole number" if fields[key] is int else "a number"
            raise UsageError(f"`{value}` does not fit option `{key}` of {what} `{name}`", f"give {needed}") from error
    return kind(**values)


def _converter(key: str, kind: Any) -> Callable[[str], object]:
    if key.endswith("_bytes"):
        return parse_bytes
    if kind == tuple[str, ...]:
        return lambda value: tuple(filter(None, value.split(";")))
    convert: Callable[[str], object] = kind
    return convert


def spell(choice: Choice) -> str:
    """The choice as one writes it on the command line, options that differ from their default included."""
    options = [
        f"{field.name}={';'.join(value) if isinstance(value, tuple) else value}"
        for field in dataclasses.fields(choice)
        if (value := getattr(choice, field.name)) != field.default
    ]
    return f"{choice.name}:{','.join(options)}" if options else choice.name
