"""Text of strangers, and numbers that a format does not know."""

from __future__ import annotations

import json
import math

from ckplan.report.untrusted import json_text


def test_numbers_that_json_does_not_know_are_null() -> None:
    data = {"epochs": ({"loss": math.nan, "number": 1}, [math.inf, -math.inf, 0.5, True, None]), "name": "##[error]"}

    def refused(constant: str) -> None:
        raise AssertionError(constant)

    found = json.loads(json_text(data, indent=1), parse_constant=refused)
    assert found == {"epochs": [{"loss": None, "number": 1}, [None, None, 0.5, True, None]], "name": "##[error]"}
