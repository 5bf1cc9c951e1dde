"""The moments that bounds are proven at together."""

import itertools
import random

from ckplan.planner.exact.heaviest_path import heaviest_path


def test_it_is_the_heaviest_of_all_paths() -> None:
    for seed in range(200):
        draw = random.Random(seed)
        ops = sorted(draw.sample(range(20), 7))
        edges = {op: [later for later in ops if later > op and draw.random() < 0.4] for op in ops}
        bounds = {op: draw.uniform(0.1, 1.0) for op in ops if draw.random() < 0.7}
        found = heaviest_path(ops, bounds, edges.__getitem__)
        paths = [
            path
            for count in range(len(ops) + 1)
            for path in itertools.combinations(ops, count)
            if all(later in edges[op] for op, later in itertools.pairwise(path))
        ]
        best = max(paths, key=lambda path: sum(bounds.get(op, 0.0) for op in path))
        assert sorted(found) == [op for op in best if op in bounds], seed
        assert found == sorted(found, key=lambda op: -bounds[op])
