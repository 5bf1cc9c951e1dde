"""Every test case of the onnx package as a gradient case, in older operator sets too, corner cases, and variants.

    python -m benchmarks.node_tests [--sets package older corners variants] [--oracles] [--second] [--only conv pool]
                                    [--jobs 2] [--list failed missing]

Each is right, refused with a reason, wrong or a crash, or there is nobody to judge it by. A case's floats become
parameters, a fixed random projection of all its floating outputs the loss. ckplan's gradients are compared with slopes
of the case's function in float64 by onnx's reference evaluator, and, run in float32 in onnxruntime, with themselves.
With ``--oracles`` torch's autograd and onnx-ad are asked about the same gradients. The function has to give the outputs
that onnx expects, or nothing is concluded from it. With ``--second`` the training graphs are differentiated in turn,
and the derivatives of the sum of all squared gradients are compared instead.
"""

from __future__ import annotations

import argparse
import multiprocessing
import signal
import time
import warnings
from collections import Counter
from collections.abc import Iterable

from tests.node_cases.cases import Case, all_cases, case_named
from tests.node_cases.check import (
    CRASHED,
    FAILED,
    MISSING,
    NO_FLOATS,
    PASSED,
    REFUSED,
    RIGHT,
    SKIPPED,
    UNJUDGED,
    WRONG,
    Outcome,
    check,
    verdict,
)
from tests.node_cases.corners import corner_cases
from tests.node_cases.older import older_cases
from tests.node_cases.second import check_second
from tests.node_cases.variants import variant_cases

_LIMIT = 180
"""Seconds that one case may take."""


class _TooLong(BaseException):
    """A case takes longer than it may."""


def _stop(*_: object) -> None:
    raise _TooLong


_SETS = {"package": all_cases, "older": older_cases, "corners": corner_cases, "variants": variant_cases}


def _check(job: tuple[str, str, bool, bool]) -> Outcome:
    chosen, name, oracles, second = job
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, _stop)
    signal.alarm(_LIMIT)
    try:
        case = case_named(name, _SETS[chosen]())
        return check_second(case) if second else check(case, oracles)
    except _TooLong:
        return Outcome(name, FAILED, f"crashed: takes more than {_LIMIT} s")
    finally:
        signal.alarm(0)


def _groups(outcomes: Iterable[Outcome]) -> Counter[str]:
    """Count reasons, without the names in them."""
    return Counter((outcome.reason.split("(")[0].split("'")[0].strip()[:90] or "-") for outcome in outcomes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=["package"], choices=list(_SETS))
    parser.add_argument("--oracles", action="store_true", help="ask torch and onnx-ad too")
    parser.add_argument("--second", action="store_true", help="second derivatives instead of first")
    parser.add_argument("--only", nargs="+", help="cases whose names hold one of these")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--list", nargs="+", default=[FAILED], choices=[PASSED, SKIPPED, MISSING, FAILED])
    arguments = parser.parse_args()
    start = time.perf_counter()
    outcomes: list[Outcome] = []
    for chosen in arguments.sets:
        cases: tuple[Case, ...] = _SETS[chosen]()
        names = [case.name for case in cases]
        if arguments.only:
            names = [name for name in names if any(part in name for part in arguments.only)]
        jobs = [(chosen, name, arguments.oracles, arguments.second) for name in names]
        found: list[Outcome] = []
        with multiprocessing.get_context("fork").Pool(arguments.jobs) as pool:
            for outcome in pool.imap_unordered(_check, jobs):
                found.append(outcome)
                if outcome.status in arguments.list:
                    print(f"{outcome.status} {outcome.name}: {outcome.reason}", flush=True)
        counts = Counter(verdict(outcome) for outcome in found if outcome.reason != NO_FLOATS)
        told = ", ".join(f"{counts[each]} {each}" for each in (RIGHT, REFUSED, WRONG, CRASHED, UNJUDGED))
        print(f"\n{chosen}: {sum(counts.values())} cases with floats: {told}\n", flush=True)
        outcomes += found
    report(outcomes, arguments.oracles)
    print(f"\n{time.perf_counter() - start:.0f} s")


def report(outcomes: list[Outcome], oracles: bool) -> None:
    held = [outcome for outcome in outcomes if outcome.reason != NO_FLOATS]
    print(f"\n{len(outcomes)} cases, {len(held)} with floats among inputs and outputs\n")
    print("| | cases |\n|---|---|")
    for status in (PASSED, SKIPPED, MISSING, FAILED):
        print(f"| {status} | {sum(outcome.status == status for outcome in held)} |")
    passed = [outcome for outcome in held if outcome.status == PASSED]
    print(f"| slopes compared | {sum(outcome.slopes for outcome in passed)} |")
    print(f"| function in float64 by the reference evaluator | {_count(passed, 'reference', True)} |")
    print(f"| function by the reference evaluator in its own type | {_count(passed, 'reference', False)} |")
    print(f"| function by onnxruntime | {_count(passed, 'onnxruntime')} |")
    print("\nTraining graphs in onnxruntime, float32\n\n| | cases |\n|---|---|")
    for text, count in Counter(outcome.runtime.split(":")[0] or "nothing to run" for outcome in passed).most_common():
        print(f"| {text} | {count} |")
    for status in (PASSED, SKIPPED, MISSING, FAILED):
        print(f"\nReasons: {status}\n\n| | cases |\n|---|---|")
        for text, count in _groups(outcome for outcome in held if outcome.status == status).most_common():
            print(f"| {text} | {count} |")
    if not oracles:
        return
    print("\nOther oracles\n\n| | compared | agree | differ | cannot |\n|---|---|---|---|---|")
    for name in ("torch", "onnx-ad"):
        answers = [outcome.oracles[name] for outcome in held if name in outcome.oracles]
        agree = sum(answer == "agrees" for answer in answers)
        differ = sum(answer.startswith("differs") for answer in answers)
        print(f"| {name} | {agree + differ} | {agree} | {differ} | {len(answers) - agree - differ} |")
    for outcome in held:
        for name, answer in outcome.oracles.items():
            if answer.startswith("differs"):
                print(f"- {name} {answer}: {outcome.name}")


def _count(outcomes: list[Outcome], function: str, exact: bool | None = None) -> int:
    return sum(o.function == function and (exact is None or o.exact == exact) for o in outcomes)


if __name__ == "__main__":
    main()
