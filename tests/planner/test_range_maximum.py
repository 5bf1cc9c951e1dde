"""The largest values of stretches."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ckplan.planner.range_maximum import maxima


@given(data=st.data(), values=st.lists(st.integers(-(2**60), 2**60), min_size=1, max_size=70))
def test_as_one_looks_at_each_stretch(data: st.DataObject, values: list[int]) -> None:
    places = st.tuples(st.integers(0, len(values) - 1), st.integers(1, len(values)))
    stretches = [(start, max(start + 1, stop)) for start, stop in data.draw(st.lists(places, max_size=20))]
    start, stop = np.array(stretches, np.int64).reshape(-1, 2).T
    found = maxima(np.array(values, np.int64), start, stop)
    assert found.tolist() == [max(values[first:last]) for first, last in stretches]
