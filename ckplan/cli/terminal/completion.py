"""Completion in the shell: names of strategies, optimizers and schedules, then their options."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class

_BREAKS = (":", "=")
"""Where bash breaks words besides blanks (``COMP_WORDBREAKS``)."""


def strategies(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Strategies, and behind ``name:`` their options."""
    from ckplan.planner.strategies import strategies

    return choices(strategies(), incomplete)


def optimizers(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Optimizers, and behind ``name:`` their options."""
    from ckplan.autodiff import OPTIMIZERS

    return choices(OPTIMIZERS, incomplete)


def schedules(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Schedules of the learning rate, and behind ``name:`` their options."""
    from ckplan.training.schedules import SCHEDULES

    return choices(SCHEDULES, incomplete)


def choices(kinds: Sequence[type[Any]], incomplete: str) -> list[CompletionItem]:
    """What a choice that is written ``name:field=value,field=value`` may go on with.

    Args:
        kinds: dataclasses with a ``name``.
        incomplete: what is there already.
    """
    name, colon, rest = incomplete.partition(":")
    if not colon:
        found = [kind for kind in kinds if kind.name.startswith(name)]
        return [CompletionItem(kind.name, help=(kind.__doc__ or "").partition("\n")[0]) for kind in found]
    kind = next((kind for kind in kinds if kind.name == name), None)
    if kind is None:
        return []
    *given, last = rest.split(",")
    known = {part.partition("=")[0] for part in given}
    before = ",".join([*given, ""])
    return [
        CompletionItem(f"{name}:{before}{field.name}=", help=f"default: {field.default}")
        for field in dataclasses.fields(kind)
        if field.name.startswith(last) and field.name not in known
    ]


class Bash(BashComplete):
    """Completion in bash of words that hold ``:`` and ``=``, at which bash breaks them.

    It hands over the pieces as words of their own, and replaces no more than the last of them.
    """

    source_template = BashComplete.source_template.replace(
        "COMPREPLY+=($value)",
        "COMPREPLY+=($value)\n            [[ $value == *= ]] && compopt -o nospace",
    )

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words before the one that is completed, and that one, put together again."""
        before, last = super().get_completion_args()
        words: list[str] = []
        joining = False
        for word in [*before, last]:
            if word == "=" and words and words[-1].startswith("--"):
                joining = False  # of `--strategy=name`: what follows is a word
                if word is last:
                    words.append("")
            elif words and (joining or word in _BREAKS):
                words[-1] += word
                joining = word.endswith(_BREAKS)
            else:
                words.append(word)
                joining = False
        self._prefix = max(words[-1].rfind(mark) for mark in _BREAKS) + 1
        return words[:-1], words[-1]

    def format_completion(self, item: CompletionItem) -> str:
        """A completion without the pieces that stand there already."""
        value = item.value[self._prefix :] if self._prefix else item.value
        return super().format_completion(CompletionItem(value, item.type, item.help))


add_completion_class(Bash)
