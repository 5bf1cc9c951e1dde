"""Regions of a model that may run in pieces, so that what is large inside them never exists whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from ckplan.errors import UsageError
from ckplan.units import format_bytes

Chunks = int | str
"""Into how many pieces regions go, as one writes it: ``off``, a number for all of them, or ``loss=16,attention=8``.

``loss=16x2`` is a loss head in 16 pieces that goes through its logits twice.
"""

OFF, AUTO = "off", "auto"
"""No region is cut; the planner decides."""

Kind = Literal["loss", "attention", "tokens", "batch", "masks"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_BY_NUMBER: tuple[Kind, ...] = ("loss", "attention")
"""The kinds that a number without a kind holds for: what is large by itself, and not the network as a whole."""

BITS = 8
"""Elements of a mask in a byte: the only pieces that masks go into."""

SMALLEST_MASK = 1024
"""Elements of a mask below which it stays as it is: its nodes would take more time than it is worth."""

_TWICE = "x2"
"""What stands behind a number of pieces that go through their logits twice."""

_REASONS = {
    "loss": "no loss is a cross-entropy of a linear layer whose logits nothing else reads",
    "attention": "no softmax of scores stands between two products with nothing else reading it",
    "tokens": "no stretch works token by token with more inside than at its ends",
    "batch": "nothing that is heavy works sample by sample, as far as is known",
    "masks": f"no Dropout draws a mask of {SMALLEST_MASK} elements or more that the backward pass reads",
}


@dataclass(frozen=True)
class Pieces:
    """Into how many pieces the regions of each kind go; 1 leaves them whole.

    Attributes:
        loss: cross-entropies with the linear layer before them, along samples.
        attention: scores, softmax and product with the values, along heads or queries.
        tokens: what works token by token between two attentions, along tokens.
        batch: what works sample by sample, along samples.
        masks: what a Dropout has drawn, so many elements in a byte; 1 or `BITS`.
        passes: how often a loss head goes through its logits: once where it can, or twice.
    """

    loss: int = 1
    attention: int = 1
    tokens: int = 1
    batch: int = 1
    masks: int = 1
    passes: int = 1

    @classmethod
    def of(cls, chunks: Chunks) -> Pieces:
        """Pieces as one writes them.

        Raises:
            UsageError: this is neither ``off`` nor a number, nor numbers by kind.
        """
        if chunks == OFF:
            return cls()
        if chunks == AUTO:
            raise UsageError("`--chunks auto` chooses together with a plan, and nothing is planned", "give a number")
        text = str(chunks)
        pairs = [_pair(part) for part in text.split(",")] if "=" in text else [(kind, text) for kind in _BY_NUMBER]
        given = dict(pairs)
        if len(given) < len(pairs):
            raise UsageError(
                f"`--chunks {chunks}` says twice into how many pieces regions of a kind go", "give one number for each"
            )
        passes = 2 if given.get("loss", "").endswith(_TWICE) else 1
        given = {kind: number.removesuffix(_TWICE) if kind == "loss" else number for kind, number in given.items()}
        if not given.keys() <= set(KINDS) or not all(n.isdecimal() and int(n) > 0 for n in given.values()):
            raise UsageError(
                f"`--chunks {chunks}` says no number of pieces",
                f"write auto, off, a number, or numbers by kind: {','.join(f'{kind}=8' for kind in KINDS)}",
            )
        if int(given.get("masks", 1)) not in (1, BITS):
            raise UsageError(
                f"`--chunks masks={given['masks']}` cannot be: a byte has {BITS} bits", f"write masks={BITS}"
            )
        return cls(**{kind: int(number) for kind, number in given.items()}, passes=passes)

    @classmethod
    def taken(cls, regions: Sequence[Region]) -> Pieces:
        """The pieces that regions are in."""
        cut = [region for region in regions if region.pieces > 1]
        numbers = {kind: max((r.pieces * r.blocks for r in cut if r.kind == kind), default=1) for kind in KINDS}
        return cls(**numbers, passes=max((r.passes for r in cut), default=1))

    def number(self, kind: Kind) -> int:
        """Into how many pieces the regions of a kind go."""
        return int(getattr(self, kind))

    def __str__(self) -> str:
        """The pieces as one writes them on the command line."""
        ends = {"loss": _TWICE if self.passes == 2 else ""}
        told = [f"{kind}={self.number(kind)}{ends.get(kind, '')}" for kind in KINDS if self.number(kind) > 1]
        return ",".join(told) or OFF


def _pair(text: str) -> tuple[str, str]:
    kind, _, number = text.partition("=")
    return kind.strip(), number.strip()


@dataclass(frozen=True)
class Region:
    """A region that runs in pieces, or could.

    Attributes:
        kind: what it is.
        tensor: name of the largest tensor inside it.
        along: what its pieces are cut along, in a word of the plural.
        rows: number of these.
        bytes: of the tensor when it is whole.
        node: name of the node that its nodes are called after.
        pieces: into how many pieces the region goes; 1: it is whole.
        passes: how often what is large in it is made.
        weight: the parameter whose gradient it makes, as large as that may be; empty without one.
        blocks: of how many regions it is one that pieces are spread over: an attention whose queries are in blocks.
    """

    kind: Kind
    tensor: str
    along: str
    rows: int
    bytes: int
    node: str
    pieces: int = 1
    passes: int = 1
    weight: str = ""
    blocks: int = 1

    def __str__(self) -> str:
        if self.kind == "masks":
            return f"mask of '{self.node}' {format_bytes(self.bytes)} -> {format_bytes(-(-self.bytes // self.pieces))}"
        sizes = format_bytes(self.bytes), format_bytes(self.bytes // self.pieces)
        twice = ", made twice" if self.passes == 2 else ""
        return (
            f"{self.along} 0..{self.rows - 1} in {self.pieces} pieces: '{self.tensor}' {sizes[0]} -> {sizes[1]}{twice}"
        )


def told(regions: Sequence[Region]) -> list[str]:
    """What is to be said of the regions that run in pieces, those of the same sizes in one line."""
    alike: dict[tuple[object, ...], list[Region]] = {}
    for region in regions:
        if region.pieces > 1:
            alike.setdefault((region.kind, region.rows, region.bytes, region.pieces), []).append(region)
    more = {key: f", and {len(found) - 1} more like this" for key, found in alike.items() if len(found) > 1}
    return [f"{found[0]}{more.get(key, '')}" for key, found in alike.items()]


def refuse_idle(pieces: Pieces, regions: Sequence[Region], heads: Sequence[str] = ()) -> None:
    """Make sure that what was to be cut is there.

    Args:
        pieces: into how many.
        regions: what there is.
        heads: notes on loss heads that cannot be cut.

    Raises:
        UsageError: no region of a kind that was to go into pieces can; where one number was given for all kinds, none
            of any kind can.
    """
    numbers = {kind: pieces.number(kind) for kind in KINDS}
    wanted = [kind for kind in KINDS if numbers[kind] > 1]
    there = {region.kind for region in regions}
    alike = tuple(wanted) == _BY_NUMBER and len({numbers[kind] for kind in wanted}) == 1
    if wanted and (there.isdisjoint(wanted) or (not alike and not set(wanted) <= there)):
        reasons = {**_REASONS, "loss": heads[0]} if heads else _REASONS
        what = " and ".join(reasons[kind] for kind in wanted if kind not in there)
        typed = numbers[wanted[0]] if alike else pieces
        raise UsageError(f"there is nothing to cut: {what}", f"leave out --chunks {typed}")


def largest_divisor(number: int, at_most: int) -> int:
    """The largest divisor of a number that is not above a limit; 1 if there is no other."""
    return next(n for n in range(max(1, min(number, at_most)), 0, -1) if number % n == 0)


def near_divisor(number: int, wanted: int) -> int:
    """A divisor near what is wanted: the smallest one from there to eight times as much, else the largest below.

    Vocabularies are seldom round: 50,257 words go into 29 pieces and into none below that.
    """
    above = (n for n in range(max(1, wanted), min(8 * wanted, number) + 1) if number % n == 0)
    return next(above, None) or largest_divisor(number, wanted)
