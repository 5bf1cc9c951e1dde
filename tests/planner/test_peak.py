"""The fast peak is the peak of the simulated timeline."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ckplan.planner import Kind, Problem, Timeline, recompute_schedule, simulate
from ckplan.planner.order import best_order, eager_order, late_order
from ckplan.planner.peak import live_bytes, peak_of
from ckplan.planner.simulate import lifetimes
from tests.planner.problems import ProblemBuilder, problems


def by_steps(problem: Problem, schedule: list[int]) -> Timeline:
    """The timeline by going through the schedule step by step, without the arrays of the fast peak."""
    return simulate(problem, schedule, lives=lifetimes(problem, schedule))


@given(problems(), st.data())
def test_equals_the_timelines(problem: Problem, data: st.DataObject) -> None:
    kept = data.draw(st.sets(st.sampled_from(range(len(problem.tensors)))))
    schedule = recompute_schedule(problem, kept)
    assert peak_of(problem, schedule) == by_steps(problem, schedule).peak_activations


@given(problems())
def test_eager_order_is_a_valid_order(problem: Problem) -> None:
    order = eager_order(problem)
    assert sorted(order) == list(range(len(problem.ops)))
    simulate(problem, order)


@given(problems(), st.booleans())
def test_late_order_is_a_valid_order(problem: Problem, eager: bool) -> None:
    order = late_order(problem, eager_order(problem) if eager else range(len(problem.ops)))
    assert sorted(order) == list(range(len(problem.ops)))
    simulate(problem, order)


def test_a_derivative_is_made_before_the_gradient_that_it_is_multiplied_by() -> None:
    build = ProblemBuilder()
    x = build.tensor(0, Kind.INPUT)
    y, gradient, square, slope, product = (build.tensor(size) for size in (4, 4, 4, 4, 1))
    seed = build.tensor(1)
    build.op([x], [y])
    build.op([x], [seed], backward=True)
    build.op([seed], [gradient], backward=True)
    build.op([y], [square], backward=True)
    build.op([square], [slope], backward=True)
    build.op([gradient, slope], [product], backward=True)
    problem = build.build()
    order = late_order(problem, range(6))
    assert order.index(2) == 4
    assert best_order(problem) == order
    assert (peak_of(problem, order), peak_of(problem, range(6))) == (9, 12)


def test_an_op_is_put_off_until_before_the_first_of_readers_that_are_put_off_themselves() -> None:
    build = ProblemBuilder()
    x = build.tensor(0, Kind.INPUT)
    y, seed = build.tensor(1), build.tensor(1)
    left, right, one, other, last = (build.tensor(size) for size in (4, 4, 9, 9, 1))
    build.op([x], [y])
    build.op([y], [seed], backward=True)
    build.op([seed], [left, right], backward=True)
    build.op([right], [one], backward=True)
    build.op([left], [other], backward=True)
    build.op([one, other], [last], backward=True)
    assert late_order(build.build(), range(6)) == [0, 1, 2, 3, 4, 5]


@st.composite
def graphs_with_repeats(draw: st.DrawFn) -> tuple[Problem, list[int]]:
    """Ops of several outputs that view, overwrite and return what they like, and schedules that repeat any of them."""
    build = ProblemBuilder()
    build.tensor(1, Kind.INPUT)
    schedule: list[int] = []
    for index in range(draw(st.integers(1, 10))):
        inputs = draw(st.lists(st.sampled_from(range(len(build.tensors))), min_size=1, max_size=3))
        views: dict[int, int] = {}
        inplace: dict[int, tuple[int, ...]] = {}
        outputs = []
        for _ in range(draw(st.integers(1, 3))):
            how = draw(st.sampled_from(["new", "inplace"] if views or inplace else ["new", "inplace", "view"]))
            size = build.tensors[inputs[0]].bytes if how == "view" else draw(st.integers(0, 2))
            made = build.tensor(size, draw(st.sampled_from([Kind.ACTIVATION] * 4 + [Kind.OUTPUT])))
            outputs.append(made)
            if how == "view":
                views[made] = inputs[0]
            elif how == "inplace" and not views:
                inplace[made] = tuple(draw(st.permutations(inputs)))
        build.op(inputs, outputs, workspace=draw(st.integers(0, 1)), views=views, inplace=inplace)
        schedule += [index, *draw(st.lists(st.sampled_from(range(index + 1)), max_size=2))]
    return build.build(), schedule


@given(graphs_with_repeats())
def test_follows_views_and_what_is_overwritten_through_repeats(drawn: tuple[Problem, list[int]]) -> None:
    problem, schedule = drawn
    expected = by_steps(problem, schedule)
    assert live_bytes(problem, schedule).tolist() == [step.activations for step in expected.steps]
    assert simulate(problem, schedule) == expected
