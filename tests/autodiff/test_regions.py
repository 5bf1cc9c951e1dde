"""Pieces as one writes them, and what is said of regions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ckplan.autodiff.pieces.regions import Pieces, Region, refuse_idle, told
from ckplan.errors import UsageError

HEAD = Region("loss", "logits", "samples", 2048, 250 * 2**20, "loss_node", 8)


@pytest.mark.parametrize(
    ("written", "pieces", "spelled"),
    [
        ("off", Pieces(), "off"),
        (1, Pieces(), "off"),
        (8, Pieces(8, 8), "loss=8,attention=8"),
        ("8", Pieces(8, 8), "loss=8,attention=8"),
        ("loss=16", Pieces(loss=16), "loss=16"),
        ("attention=4, loss=2", Pieces(2, 4), "loss=2,attention=4"),
        ("loss=16x2", Pieces(loss=16, passes=2), "loss=16x2"),
        ("batch=2,tokens=4", Pieces(tokens=4, batch=2), "tokens=4,batch=2"),
        ("masks=8,loss=2", Pieces(loss=2, masks=8), "loss=2,masks=8"),
    ],
)
def test_pieces_as_one_writes_them(written: int | str, pieces: Pieces, spelled: str) -> None:
    assert Pieces.of(written) == pieces
    assert str(pieces) == spelled
    assert Pieces.of(spelled) == pieces


@pytest.mark.parametrize(
    "written",
    [
        "",
        "many",
        "0",
        -1,
        "loss=0",
        "loss",
        "logits=4",
        "loss=4,",
        "loss=x2",
        "attention=4x2",
        "loss=4x3",
        "loss=4,loss=8",
    ],
)
def test_what_are_no_pieces(written: int | str) -> None:
    with pytest.raises(UsageError, match=r"pieces|--chunks"):
        Pieces.of(written)


def test_pieces_that_a_plan_chooses_are_no_number() -> None:
    with pytest.raises(UsageError, match="with a plan"):
        Pieces.of("auto")


def test_regions_are_told_in_a_line() -> None:
    whole = Region("loss", "other", "samples", 4, 64, "other_node")
    assert told([HEAD, whole]) == ["samples 0..2047 in 8 pieces: 'logits' 250.0 MiB -> 31.2 MiB"]
    assert told([HEAD, HEAD, HEAD])[0].endswith("31.2 MiB, and 2 more like this")
    assert Pieces.taken([HEAD, whole]) == Pieces(loss=8)
    twice = replace(HEAD, passes=2)
    assert told([twice])[0].endswith("31.2 MiB, made twice")
    assert Pieces.taken([twice, whole]) == Pieces(loss=8, passes=2)


def test_what_is_to_be_cut_has_to_be_there() -> None:
    refuse_idle(Pieces(8, 8), [HEAD])
    refuse_idle(Pieces(), [])
    for pieces, found in ((Pieces(8, 8), []), (Pieces(loss=4), []), (Pieces(1, 4), [HEAD]), (Pieces(2, 4), [HEAD])):
        with pytest.raises(UsageError, match="nothing to cut"):
            refuse_idle(pieces, found)


@pytest.mark.parametrize(("chunks", "typed"), [("4", "4"), ("loss=4", "loss=4"), ("loss=4,batch=2", "loss=4,batch=2")])
def test_what_is_to_be_left_out_is_what_was_typed(chunks: str, typed: str) -> None:
    with pytest.raises(UsageError, match=rf"leave out --chunks {typed}\n"):
        refuse_idle(Pieces.of(chunks), [])
