"""One pass of eviction: the ops in their order, what is evicted for each, and what runs again before it."""

from __future__ import annotations

from collections.abc import Callable, Set
from heapq import heappop, heappush

from ckplan.planner.eviction.buffer_graph import Course
from ckplan.planner.eviction.weights import Weights, judge

_FORESIGHTS = 12
"""How often in the seconds of a step it is asked what has to run again for what is gone by then."""
_ROUNDING = 1 + 1e-9
"""By how much sums of seconds may differ that are added up in another order."""
_NONE: Set[int] = frozenset()


class Eviction:
    """The state of one pass, at first of its beginning: until memory runs out, nothing is judged."""

    def __init__(self, course: Course, budget: int) -> None:
        graph = course.graph
        self.graph, self.course, self.budget = graph, course, budget
        count = len(graph.size)
        self.score: Callable[[int], float] | None = None
        """What a root is judged by; None in the beginning that passes have in common."""
        self.most_cost = self.asked = float("inf")
        """The cost from which it is asked again whether the schedule will cost too much."""
        self.evictable = graph.evictable.copy()
        self.live = [not held for held in graph.counted]
        self.version = [0] * count
        """How often a root was made."""
        self.made_from = [-1] * count
        """The version of its root that a view stands for."""
        self.settled = [False] * count
        """Whether nothing will ever need a root again, nor what was made from it, but for what is held."""
        self.pins = [0] * count
        """How many ops that wait for something they read need a root."""
        self.next_use = course.first_use.copy()
        """The next position in the order where a root is read, or -1."""
        self.now = 0
        self.total = 0
        self.cost = 0.0
        self.schedule: list[int] = []
        self.short = False
        """Whether memory ever ran out; what may be evicted is not judged before."""
        self.heap: list[tuple[float, int, int]] = []
        self.stamp = [0] * count
        self.unjudged: set[int] = set()
        """The roots that an op touched since memory last ran out; all of them when it first does."""
        self.evicted: set[int] = set()
        self.contenders: frozenset[int] = frozenset()
        """The roots that may ever be judged."""

    def judged_by(self, weights: Weights, most_cost: float) -> Eviction:
        """A pass that goes on from this beginning."""
        state = Eviction(self.course, self.budget)
        state.score, state.most_cost = judge(state, weights), most_cost
        state.evictable[:], state.live[:], state.next_use[:] = self.evictable, self.live, self.next_use
        state.version, state.made_from = self.version.copy(), self.made_from.copy()
        state.now, state.total, state.cost = self.now, self.total, self.cost
        state.asked = self.cost + self.course.clock[-1] / _FORESIGHTS
        state.schedule, state.contenders = self.schedule.copy(), self.contenders
        return state

    def run(self) -> bool:
        """Run the ops that are left; whether that went to its end, and within the cost: a beginning ends with memory.

        All that is done for each op stands here: calls of functions for the parts of it would take as long as these.
        """
        graph, course, live, pins, version = self.graph, self.course, self.live, self.pins, self.version
        next_use, evictable, stamp = self.next_use, self.evictable, self.stamp
        bases, sources, producer, size = graph.bases, graph.sources, graph.producer, graph.size
        for position in range(self.now, len(course.order)):
            self.now = position
            if self.cost > self.asked and self._is_too_dear():
                return False
            index = course.order[position]
            waiting: list[int] = []  # ops that wait for one that runs again
            while True:
                # What is read and gone is made first; of a view whose memory is gone, what makes that.
                if graph.views[index]:
                    missing = self._missing(index)
                else:
                    missing = -1
                    for base in sources[index]:
                        if not live[base]:
                            missing = producer[base]
                            break
                if missing >= 0:
                    waiting.append(index)
                    for base in bases[index]:
                        pins[base] += 1
                    index = missing
                    continue
                overwritten = self._overwritten(index) if graph.overwrites[index] else ()
                need = graph.need[index]
                for held in overwritten:
                    need -= size[held]
                if self.total + need > self.budget:
                    if self.score is None:
                        return False
                    self._evict(need, index, self.score)
                for held in overwritten:
                    self._free(held)
                for tensor, taken, _ in graph.fresh[index]:
                    if not live[tensor]:
                        version[tensor] += 1
                        live[tensor] = True
                        self.total += taken
                    elif evictable[tensor]:
                        version[tensor] += 1  # else a view that cannot be recomputed holds the old one
                if graph.makes_views[index]:
                    self._view(index)
                self.schedule.append(index)
                self.cost += graph.cost[index]
                if not waiting:
                    for base, following in course.next_uses[position]:
                        next_use[base] = following
                elif self.cost > self.asked and self._is_too_dear():
                    return False
                # What nothing reads any more is freed; the rest may be evicted.
                for base in graph.touched[index]:
                    if not live[base] or pins[base]:
                        continue
                    if next_use[base] < 0:
                        if evictable[base] or not graph.heirs[base] or not self._keeps_others(base):
                            live[base] = False
                            self.total -= size[base]
                            stamp[base] += 1
                    elif self.short and evictable[base]:
                        self.unjudged.add(base)
                if not waiting:
                    break
                index = waiting.pop()
                for base in bases[index]:
                    pins[base] -= 1
        self.now = len(course.order)
        return self.cost <= self.most_cost

    def _is_too_dear(self) -> bool:
        """Whether the schedule will cost too much, with what is left of the order and what else has to run again."""
        clock = self.course.clock
        self.asked = self.cost + clock[-1] / _FORESIGHTS
        certain = self.cost + clock[-1] - clock[self.now]
        if certain + self.graph.most_owed <= self.most_cost:
            return False
        return certain + self._owed() > self.most_cost * _ROUNDING

    def _owed(self) -> float:
        """Seconds of the ops that have to run again for what is gone and still to be read, each once."""
        graph, live, next_use, version = self.graph, self.live, self.next_use, self.version
        producer, bases = graph.producer, graph.bases
        gone = [base for base in graph.repeatable if not live[base] and next_use[base] >= 0 and version[base]]
        makers: set[int] = set()
        while gone:
            maker = producer[gone.pop()]
            if maker not in makers:
                makers.add(maker)
                for read in bases[maker]:
                    if not live[read] and version[read]:
                        gone.append(read)
        return sum(map(graph.cost.__getitem__, makers))

    def _missing(self, index: int) -> int:
        """The op to run for the first of what an op that reads views reads and that is not there, -1 if all is.

        Of a view whose memory is gone it is what makes that.
        """
        graph, live = self.graph, self.live
        for tensor, base in graph.reads[index]:
            if not live[base]:
                return graph.producer[base]
            if tensor != base and self.made_from[tensor] != self.version[base]:
                return graph.producer[tensor]
        return -1

    def _view(self, index: int) -> None:
        """Note what the views that an op makes stand for, and hold what they are of where they stay."""
        graph = self.graph
        for tensor, base in graph.viewed[index]:
            self.made_from[tensor] = self.version[base]
        for base in graph.held[index]:
            self._hold(base)

    def _overwritten(self, index: int) -> tuple[int, ...]:
        """The roots whose memory an op takes."""
        overwritten: tuple[int, ...] = ()
        for tensor, _, sources in self.graph.fresh[index]:
            for held in sources:
                if held not in overwritten and not self.pins[held] and self._is_last_use(held, index):
                    overwritten = (*overwritten, held)
                    if not self.evictable[held]:
                        self._hold(tensor)  # nothing can recompute what this is made from
                    break
        return overwritten

    def _is_last_use(self, base: int, index: int) -> bool:
        """Whether nothing reads a root after the op that runs now, nor needs it for being recomputed."""
        following, course = self.next_use[base], self.course
        if following >= 0 and not (following == self.now == course.last_use[base] and course.order[following] == index):
            return False
        return self.evictable[base] or not self._keeps_others(base)

    def _keeps_others(self, base: int) -> bool:
        """Say whether something that was evicted needs a root that cannot be recomputed and is read no more.

        If nothing does, what is alive and was made from the root must not be evicted from now on.
        """
        heirs, live, version, settled = self.graph.heirs, self.live, self.version, self.settled
        stay: list[int] = []
        stack, seen = [base], {base}
        gone: list[int] = []
        while stack:
            for made in heirs[stack.pop()]:
                if made in seen or settled[made] or not version[made]:
                    continue  # of what was never made, nothing was made, either
                seen.add(made)
                if live[made]:
                    if self.next_use[made] >= 0 and self._is_viewed_again(made, seen):
                        return True
                    stay.append(made)
                elif self.next_use[made] >= 0:
                    return True
                else:
                    stack.append(made)
                    gone.append(made)
        for made in stay:
            self._hold(made)
        for made in gone:
            settled[made] = True  # all that was made from it is gone for good or stays
        return False

    def _is_viewed_again(self, base: int, given: Set[int]) -> bool:
        """Say whether a view stands for a copy of a root that is gone, and its op reads one of some other roots."""
        graph, made_from = self.graph, self.made_from
        return any(
            0 <= made_from[view] != self.version[base]
            and any(read != base and read in given for read in graph.bases[graph.producer[view]])
            for view in graph.views_of[base]
        )

    def _hold(self, base: int) -> None:
        """Never evict a root again, nor what is made together with it."""
        for sibling, _ in self.graph.outputs[self.graph.producer[base]]:
            self.evictable[sibling] = False
            self.stamp[sibling] += 1

    def _free(self, base: int) -> None:
        if self.live[base]:
            self.live[base] = False
            self.total -= self.graph.size[base]
            self.stamp[base] += 1

    def _evict(self, need: int, index: int, score: Callable[[int], float]) -> None:
        """Evict until there is room for an op, but nothing that it reads, or nothing is left to evict.

        Scores only grow as time passes and as ancestors go, so the least of the old ones that is still least when
        judged anew is the least of all.
        """
        heap, stamps, live, pins = self.heap, self.stamp, self.live, self.pins
        if not self.short:
            self.short = True
            self.unjudged.update(self.graph.repeatable)
        for base in self.unjudged:
            if live[base] and self.evictable[base]:
                stamps[base] += 1
                heappush(heap, (score(base), base, stamps[base]))
        just: Set[int] = self.unjudged  # until the first one goes their scores hold
        self.unjudged = set()
        read, pinned = self.graph.bases[index], []
        while self.total + need > self.budget and heap:
            judged, base, stamp = entry = heappop(heap)
            if stamp != stamps[base] or not live[base]:
                continue
            if pins[base] or base in read:
                pinned.append(entry)
                continue
            if base not in just:
                judged = score(base)
                if heap and judged > heap[0][0]:
                    heappush(heap, (judged, base, stamp))
                    continue
            self._free(base)
            self.evicted.add(base)
            just = _NONE
        for entry in pinned:
            heappush(heap, entry)
