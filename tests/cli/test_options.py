from __future__ import annotations

from typing import Any

import click
import pytest
from click.testing import CliRunner

from ckplan.cli.options import budget_option, shape_options


def parsed(*arguments: str) -> dict[str, Any] | str:
    """The values that the shared options make of arguments, or the complaint."""
    found: dict[str, Any] = {}

    @click.command()
    @shape_options
    @budget_option
    def command(**options: Any) -> None:
        found.update(options)

    result = CliRunner().invoke(command, list(arguments))
    return found if result.exit_code == 0 else result.stderr


def test_dims_and_shapes_are_read() -> None:
    assert parsed("--dim", "batch=8", "--dim", "seq=128", "--shape", "x=8,3,224,224", "--budget", "1.5MiB") == {
        "dims": {"batch": 8, "seq": 128},
        "shapes": {"x": (8, 3, 224, 224)},
        "budget": 3 * 2**19,
    }


def test_nothing_given_is_nothing_chosen() -> None:
    assert parsed() == {"dims": {}, "shapes": {}, "budget": None}


def test_a_name_may_hold_an_equals_sign() -> None:
    assert parsed("--dim", "a=b=8", "--shape", "scalar=", "--shape", "empty=0,3") == {
        "dims": {"a=b": 8},
        "shapes": {"scalar": (), "empty": (0, 3)},
        "budget": None,
    }


def test_the_same_value_may_be_given_twice() -> None:
    assert parsed("--dim", "b=8", "--dim", "b=8") == {"dims": {"b": 8}, "shapes": {}, "budget": None}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--dim", "batch"], "'batch' is not NAME=N"),
        (["--dim", "=8"], "'=8' is not NAME=N"),
        (["--dim", "batch=-1"], "'-1' is not a whole number of at least 0"),
        (["--dim", "batch=two"], "'two' is not a whole number"),
        (["--dim", "b=8", "--dim", "b=9"], "'b' is given twice, as 8 and as 9"),
        (["--shape", "x"], "'x' is not INPUT=N,N,..."),
        (["--shape", "x=1,,3"], "'' is not a whole number of at least 0"),
        (["--shape", "x=1x3"], "'1x3' is not a whole number"),
        (["--budget", "much"], "`much` is not a size; write it like 512MiB"),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments: list[str], complaint: str) -> None:
    said = parsed(*arguments)
    assert isinstance(said, str)
    assert complaint in said
    assert arguments[0] in said
