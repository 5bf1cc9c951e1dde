from __future__ import annotations

import ast
import inspect
import operator
import re
from pathlib import Path

import pytest

import ckplan
from ckplan import errors
from ckplan.meter.measurement import measure
from ckplan.pipeline.options import READERS


def test_every_error_has_a_documented_exit_code() -> None:
    codes = {
        name: error.exit_code
        for name, error in vars(errors).items()
        if isinstance(error, type) and issubclass(error, errors.CkplanError)
    }
    assert codes == {
        "CkplanError": 1,
        "CheckFailedError": 1,
        "UsageError": 2,
        "ModelError": 3,
        "UnsupportedOperatorsError": 3,
        "InfeasibleError": 4,
        "EnvironmentUnavailableError": 5,
    }


def test_a_hint_follows_the_message() -> None:
    assert str(errors.ModelError("bad file")) == "bad file"
    assert str(errors.ModelError("bad file", "try another")) == "bad file; try another"


def test_unsupported_operators_are_listed_at_once() -> None:
    error = errors.UnsupportedOperatorsError(
        [("ArgMax 'a'", "has no derivative"), ("Foo 'b'", "is not known")], hint="pass --no-grad"
    )
    assert str(error) == (
        "no gradient for 2 node(s): ArgMax 'a' (has no derivative), Foo 'b' (is not known); pass --no-grad"
    )


@pytest.mark.parametrize(
    ("message", "hint", "notes"),
    [
        ("a node has no gradient", "loosen --wrt or --no-grad", ["in Python, --wrt is `wrt`, --no-grad is `no_grad`"]),
        ("`--shape x=3` and --shape y=4", "", ["in Python, --shape is `shapes`"]),
        ("there is no plan (--time-limit)", "", ["in Python, --time-limit is `seconds`"]),
        ("there is no file a--b.onnx", "write it with `ckplan plan MODEL --force`", []),
        ("there is nothing to name", "", []),
    ],
)
def test_a_note_says_what_options_are_in_python(message: str, hint: str, notes: list[str]) -> None:
    assert getattr(errors.UsageError(message, hint), "__notes__", []) == notes


def arguments() -> set[str]:
    """The names of what functions and classes of the package take."""
    found = [getattr(ckplan, name) for name in ckplan.__all__]
    calls = [call for one in found if inspect.isclass(one) for call in (one.__init__, *vars(one).values())]
    calls += [*found, measure]
    return {name for call in calls if inspect.isfunction(call) for name in inspect.signature(call).parameters}


def test_options_that_messages_name_are_arguments() -> None:
    known = {*READERS, *arguments()}
    of_commands_alone = {"adapter", "config", "force_reinstall", "save_baseline", "upgrade"}
    for file in sorted(Path(ckplan.__file__).parent.rglob("*.py")):
        if not {"cli", "report"}.isdisjoint(file.parts):
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                note = " ".join(getattr(errors.CkplanError(node.value), "__notes__", ()))
                named = re.findall(r" is `(\w+)`", note)
                assert set(named) <= known | of_commands_alone, node.value


def test_functions_that_do_what_an_option_does_are_there() -> None:
    for option in ("custom-ops", "run-limit"):
        (note,) = errors.CkplanError(f"--{option}").__notes__
        path = note.removeprefix(f"in Python, --{option} is `ckplan.").removesuffix("`")
        assert callable(operator.attrgetter(path)(ckplan))
