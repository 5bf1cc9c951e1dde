from __future__ import annotations

from ckplan import errors


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
