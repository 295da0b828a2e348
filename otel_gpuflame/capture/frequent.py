"""Calls that are probed all the time as long as they are rare: when a program makes them too often for that.

Most cost the program two traps and two programs, and what these take of its caches (docs/overhead.md).

Names: PyTorch's runtime asks for the CUfunction of a CUkernel at some launches, each time anew: 2,390 times a second in
a training loop on an H200. Such answers come again in the next window, before the launches that they name; names that
are asked for once are known only if they are probed always.

Backward passes: a small model on an H200 trains at 266 a second. Between windows nobody learns then who has called
`backward()`: what samples and waits of the engine's threads are on behalf of has a mark instead (docs/decisions/0014).

Waits: a token of a small model on an H200 takes 1.7 ms and ends with one. From 125 a second on, at the default budget,
they are captured in windows and scaled, as launches are.

Launches of graphs: one a step, or one for each of the 30 to 60 pieces of a model that is cut where it cannot be
captured. At 100 steps a second that is thousands, which would take all of the budget and more. From 200 a second on,
at the default budget, they are captured in windows too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.capture.bpf.probes import ProbeGroup
from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.events.records import CallArray
from otel_gpuflame.events.windowed import launch_graphs, may_wait

NAME_NS: Final = 4_000.0
"""What one answer is taken to cost the program: on an H200 1.3 µs in programs, two traps of 0.8 µs where caches are
warm, and some for where they are not."""
NAME_SHARE: Final = 0.1
"""Of the budget, which names may take."""
WAIT_NS: Final = 12_000.0
"""What one wait is taken to cost: 2.9 to 6.4 µs in programs, two traps, and what these take of the program's caches. On
an H200, `decode` with 435 waits a second lost 0.0058 more where they were probed, which is 13 µs each."""
WAIT_SHARE: Final = 0.15
"""All shares of what is always on together stay below the half of the budget that is used (`budget.AIM`): at 0.4 of
it, 260 waits a second on an H200 left nothing for windows."""
GRAPH_NS: Final = 5_000.0
"""What one launch of a graph is taken to cost: as any launch 2.2 to 3.0 µs in the program on an H200, one trap, and a
quarter for caches."""
GRAPH_SHARE: Final = 0.1
BACKWARD_NS: Final = 10_000.0
"""What the begin of one backward pass is taken to cost: on an H200 7.5 µs in the program, the trap of 0.8 µs, and some
for caches."""
BACKWARD_SHARE: Final = 0.1
_EVERY_NS: Final = 1_000_000_000
_OBSERVED_NS: Final = 250_000_000
"""A rate that was seen for less is not known."""
_BACK: Final = 0.5
"""What is windowed is captured always again below this share of the limit: else what lies at it would change each
time."""
_PASSES_BACK_AFTER_NS: Final = 1_000_000_000
"""So long must passes have been seen in windows, to be taken for rare: ten windows of an agent at a duty of 1 %. A
program trains for seconds, then evaluates."""


class RepeatedNames:
    """Counts what is asked for again, and decides once a second. `budget`: share of a program's time."""

    def __init__(self, budget: float) -> None:
        self._limit_per_s = NAME_SHARE * budget / (NAME_NS / 1e9)
        self._counts: Counter[tuple[ProcessKey, ProbeGroup]] = Counter()
        self._since_ns: int | None = None
        self._pids: frozenset[int] = frozenset()

    def count(self, repeated: Mapping[tuple[ProcessKey, ProbeGroup], int]) -> None:
        """So often were names asked for that are known, or cannot be."""
        self._counts.update(repeated)

    def too_dear(self, now_ns: int) -> set[ProbeGroup]:
        """What some program has asked for too often since the last decision; empty where none is due."""
        if self._since_ns is None:
            self._since_ns = now_ns
        elapsed_ns = now_ns - self._since_ns
        if elapsed_ns < _EVERY_NS:
            return set()
        limit = self._limit_per_s * elapsed_ns / 1e9
        dear = {group for (_, group), count in self._counts.items() if count > limit}
        self._counts.clear()
        self._since_ns = now_ns
        return dear

    def has_new(self, pids: Collection[int]) -> bool:
        """Whether one of these programs was not there when this was asked last: it will ask for names once."""
        known, self._pids = self._pids, frozenset(pids)
        return not self._pids <= known


class _Rate:
    """Counts of events by process while they are seen, and whether some process makes too many.

    `back_after_ns`: how long those that are windowed must have been seen before they are taken for rare.
    """

    def __init__(self, limit_per_s: float, back_after_ns: int = _OBSERVED_NS) -> None:
        self.counts: Counter[int] = Counter()
        self.since_ns: int | None = None
        self.until_ns: int | None = None
        self.is_too_high = False
        self._limit_per_s = limit_per_s
        self._back_after_ns = back_after_ns
        self._observed_ns = 0

    @property
    def is_observed(self) -> bool:
        """Whether all are seen now."""
        return self.since_ns is not None and self.until_ns is None

    def begin(self, now_ns: int) -> None:
        """From now on all are seen."""
        self.since_ns, self.until_ns = now_ns, None

    def end(self, now_ns: int) -> None:
        """From now on they are not."""
        if self.since_ns is not None and self.until_ns is None:
            self._observed_ns += now_ns - self.since_ns
            self.until_ns = now_ns

    def decide(self) -> bool:
        """Whether `is_too_high` has changed."""
        if self._observed_ns < (self._back_after_ns if self.is_too_high else _OBSERVED_NS):
            return False
        rate_per_s = max(self.counts.values(), default=0) * 1e9 / self._observed_ns
        limit_per_s = self._limit_per_s * (_BACK if self.is_too_high else 1.0)
        changes = (rate_per_s > limit_per_s) is not self.is_too_high
        self.counts.clear()
        self._observed_ns = 0
        self.is_too_high ^= changes
        return changes


class FrequentCalls:
    """Counts calls of one sort by process while they are seen; when a stratum begins it decides whether to see all.

    `chosen` tells which calls are of that sort. Times are CLOCK_MONOTONIC nanoseconds.
    """

    def __init__(
        self, limit_per_s: float, chosen: Callable[[CallArray], NDArray[np.bool_]]
    ) -> None:
        self._rate = _Rate(limit_per_s)
        self._chosen = chosen

    @property
    def are_windowed(self) -> bool:
        """Whether they are seen in windows only."""
        return self._rate.is_too_high

    def begin(self, now_ns: int) -> None:
        """From now on all are seen."""
        self._rate.begin(now_ns)

    def end(self, now_ns: int) -> None:
        """From now on they are not; some that began before may still come."""
        self._rate.end(now_ns)

    def count(self, rows: CallArray) -> None:
        """Calls as they come, of all kinds."""
        since_ns, until_ns = self._rate.since_ns, self._rate.until_ns
        if since_ns is None or not len(rows):
            return
        starts_ns = rows["start_ns"]
        counts = self._chosen(rows) & (starts_ns >= since_ns)
        if until_ns is not None:
            counts &= starts_ns < until_ns
        pids, numbers = np.unique(rows["tgid"][counts], return_counts=True)
        self._rate.counts.update(dict(zip(pids.tolist(), numbers.tolist(), strict=True)))

    def decide(self, now_ns: int) -> bool:
        """Whether they are to be windowed from now on has changed. While no window is open."""
        if not self.are_windowed:
            self.end(now_ns)
        changes = self._rate.decide()
        if not self.are_windowed:
            self.begin(now_ns)
        return changes


def frequent_waits(budget: float) -> FrequentCalls:
    """Of calls that may wait. `budget`: share of a program's time."""
    return FrequentCalls(WAIT_SHARE * budget / (WAIT_NS / 1e9), may_wait)


def frequent_graph_launches(budget: float) -> FrequentCalls:
    """Of launches of graphs."""
    return FrequentCalls(GRAPH_SHARE * budget / (GRAPH_NS / 1e9), launch_graphs)


class FrequentPasses:
    """The same for backward passes, which BPF counts: `totals` are those of each process, running, by pid."""

    def __init__(self, budget: float) -> None:
        limit_per_s = BACKWARD_SHARE * budget / (BACKWARD_NS / 1e9)
        self._rate = _Rate(limit_per_s, _PASSES_BACK_AFTER_NS)
        self._before: dict[int, int] = {}

    @property
    def are_windowed(self) -> bool:
        """Whether they are seen in windows only."""
        return self._rate.is_too_high

    def begin(self, now_ns: int, totals: Mapping[int, int]) -> None:
        """From now on all are seen."""
        self._before = dict(totals)
        self._rate.begin(now_ns)

    def end(self, now_ns: int, totals: Mapping[int, int]) -> None:
        """From now on they are not."""
        if self._rate.is_observed:
            for pid, total in totals.items():
                before = self._before.get(pid, 0)
                # Fewer than before: another program has that pid.
                self._rate.counts[pid] += total - before if total >= before else total
        self._rate.end(now_ns)

    def decide(self, now_ns: int, totals: Mapping[int, int]) -> bool:
        """Whether they are to be windowed from now on has changed. While no window is open."""
        if not self.are_windowed:
            self.end(now_ns, totals)
        changes = self._rate.decide()
        if not self.are_windowed:
            self.begin(now_ns, totals)
        return changes
