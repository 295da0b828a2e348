"""Which execution is of which launch, by order alone: both come in the order in which the driver was called.

On an H200, CUPTI 13.0 recorded launches only where a library calls the driver itself: not those of the CUDA runtime,
which are 19 of 20 in PyTorch. Its correlation ids count calls, so that executions sorted by them are in the order of
launches. In a training run of 3,401 launches by two threads, every name, kind and size agreed.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.correlate.gpu.match import Positions, Times

_SWAPPED_NS: Final = 1_000_000
"""Threads that call at the same time may get their ids in another order than our probes saw them enter. A launch that
is so much older than one after it which has its execution will have none: it was captured into a graph, or failed."""
_NEAR: Final = 32
"""So many launches further down one that swapped places is looked for."""
_FAR: Final = 1 << 16
"""So many launches may be without an execution in a row: a captured graph has thousands."""
_RUNS: Final = (4, 2, 1)
"""So many should agree in a row before launches are taken to have no execution."""
_FIRST_STEP: Final = 4

_KIND_SHIFT: Final = np.uint64(56)
_WHICH: Final = np.uint64((1 << 56) - 1)

Signatures = NDArray[np.uint64]
"""Kind << 56 | which of that kind; 0: not known which."""


class Sequence(NamedTuple):
    """What was called, in order, and when: of launches their entry, of executions the start of their first one."""

    signatures: Signatures
    times_ns: Times

    def __len__(self) -> int:
        return len(self.signatures)


class Aligned(NamedTuple):
    """Pairs, and what is left to be decided."""

    launch: Positions
    execution: Positions
    launches_left: Positions
    """In the order in which they are to be given to the next call."""
    executions_done: int
    skipped: int
    """Executions that fit no launch."""


def align(launches: Sequence, executions: Sequence, *, is_last: bool = False) -> Aligned:
    """Pair executions with launches, each once, in order but for swaps between threads.

    A launch may have no execution. An execution that fits no launch is left out; whether it does is not decided while
    its launch may still come, unless this `is_last`.
    """
    search = _Search(launches, executions)
    skipped = 0
    while search.launches_left and search.executions_left:
        if search.take_agreeing() or search.take_overtaking() or search.leave_behind():
            continue
        if not is_last and search.may_come():
            break
        skipped += 1
        search.execution += 1
    if is_last:
        skipped += search.executions_left
        search.execution = len(executions)
    return Aligned(
        np.concatenate([pair[0] for pair in search.pairs]),
        np.concatenate([pair[1] for pair in search.pairs]),
        search.order[search.launch :],
        search.execution,
        skipped,
    )


class _Search:
    """Both sequences, and how far they have been followed."""

    def __init__(self, launches: Sequence, executions: Sequence) -> None:
        self._launches = launches
        self._executions = executions
        self.order: Positions = np.arange(len(launches))
        self.launch = 0
        self.execution = 0
        none: Positions = np.empty(0, np.intp)
        self.pairs: list[tuple[Positions, Positions]] = [(none, none)]

    @property
    def launches_left(self) -> int:
        return len(self.order) - self.launch

    @property
    def executions_left(self) -> int:
        return len(self._executions) - self.execution

    def take_agreeing(self) -> bool:
        """Pair what agrees from here on, one by one."""
        count = min(self.launches_left, self.executions_left)
        taken = 0
        # In steps that grow: where much disagrees, little is looked at in vain.
        step = _FIRST_STEP
        while taken < count:
            size = min(step, count - taken)
            places = self.order[self.launch : self.launch + size]
            agrees = self._fits(places, self.execution + np.arange(size))
            good = size if agrees.all() else int(np.argmin(agrees))
            if good:
                self.pairs.append((places[:good].copy(), self.execution + np.arange(good)))
            self.launch += good
            self.execution += good
            taken += good
            if good < size:
                break
            step *= 4
        return taken > 0

    def take_overtaking(self) -> bool:
        """Pair the next execution with a launch a little further down: two threads called at the same time."""
        near = self.order[self.launch : self.launch + _NEAR]
        found = np.flatnonzero(self._fits(near, np.full(len(near), self.execution)))
        if not len(found):
            return False
        place = int(found[0])
        entry_ns = self._launches.times_ns
        overtaken = near[:place]
        still = overtaken[entry_ns[overtaken] >= entry_ns[near[place]] - _SWAPPED_NS]
        self.pairs.append((near[place : place + 1].copy(), np.array([self.execution])))
        self.execution += 1
        self.launch += place + 1 - len(still)
        self.order[self.launch : self.launch + len(still)] = still
        return True

    def leave_behind(self) -> bool:
        """Find the next executions further down: the launches before are without one."""
        # The next ones may be separated by launches without one again: then fewer have to agree.
        return any(self._leave_behind(run) for run in _RUNS if run <= self.executions_left)

    def _leave_behind(self, run: int) -> bool:
        ahead = self.order[self.launch : self.launch + _FAR]
        count = len(ahead) - run + 1
        if count <= 0:
            return False
        agrees = np.ones(count, np.bool_)
        for step in range(run):
            agrees &= self._fits(ahead[step : step + count], np.full(count, self.execution + step))
        if not agrees.any():
            return False
        self.launch += int(np.argmax(agrees))
        return True

    def may_come(self) -> bool:
        """Whether the launch of the next execution can be later than all that are known."""
        last_ns = self._launches.times_ns[self.order[self.launch :]].max()
        return bool(self._executions.times_ns[self.execution] >= last_ns)

    def _fits(self, launches: Positions, executions: Positions) -> NDArray[np.bool_]:
        """Whether each execution can be of the launch beside it."""
        ours = self._launches.signatures[launches]
        theirs = self._executions.signatures[executions]
        same_kind = ours >> _KIND_SHIFT == theirs >> _KIND_SHIFT
        unknown = ((ours & _WHICH) == 0) | ((theirs & _WHICH) == 0)
        begun = self._launches.times_ns[launches] <= self._executions.times_ns[executions]
        result: NDArray[np.bool_] = begun & same_kind & ((ours == theirs) | unknown)
        return result
