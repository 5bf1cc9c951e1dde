"""`list`: keep what the user names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ckplan.errors import UsageError
from ckplan.keys import CHECKPOINTS
from ckplan.planner.order import best_order
from ckplan.planner.problem import Problem
from ckplan.planner.recompute import recompute_schedule
from ckplan.planner.strategies.base import Strategy


@dataclass(frozen=True)
class KeepListed(Strategy):
    """Keep the tensors whose names are given or match a given regular expression; recompute the others.

    The explicit list and the `collection` of TensorFlow's memory-saving gradients (Salimans & Bulatov, 2018,
    github.com/cybertronai/gradient-checkpointing). Without names, the problem's collection is used, which a model
    carries in its metadata. O(names x tensors). The wrong choice unless you know the model.

    Attributes:
        keep: names or regular expressions (matched against the whole name), with ``;`` between them.
    """

    name: ClassVar[str] = "list"
    keep: tuple[str, ...] = ()

    def schedules(self, problem: Problem) -> Iterable[Sequence[int]]:
        """The one schedule that keeps what is listed.

        Raises:
            UsageError: nothing is listed, or a pattern fits no tensor.
        """
        patterns = self.keep or problem.collection
        if not patterns:
            raise UsageError(
                "strategy `list` was given no tensors and the model's metadata holds no collection",
                f"name them: `list:keep=name1;name2` or set the metadata entry `{CHECKPOINTS}`",
            )
        return [recompute_schedule(problem, self.matching(problem, patterns), best_order(problem))]

    def matching(self, problem: Problem, patterns: Sequence[str]) -> set[int]:
        """The forward tensors that the patterns name.

        Raises:
            UsageError: a pattern matches no forward activation, or is not a regular expression.
        """
        names = {
            problem.tensors[tensor].name: tensor for index in problem.forward for tensor in problem.ops[index].outputs
        }
        found: set[int] = set()
        for pattern in patterns:
            if pattern in names:
                found.add(names[pattern])
                continue
            try:
                matches = [tensor for name, tensor in names.items() if re.fullmatch(pattern, name)]
            except re.error as error:
                raise UsageError(f"`{pattern}` is neither a tensor nor a regular expression ({error})") from error
            if not matches:
                near = difflib.get_close_matches(pattern, names, n=3)
                hint = f"near matches: {', '.join(near)}" if near else "`ckplan analyze --json` lists the tensors"
                raise UsageError(f"no forward tensor matches `{pattern}`", hint)
            found.update(matches)
        return found
