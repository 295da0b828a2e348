"""What is known of the launches and executions of one process, and not yet decided: input of `inferred`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.correlate.gpu.launches import IS_SUBMISSION
from otel_gpuflame.correlate.gpu.processes import FOREVER
from otel_gpuflame.events import apis
from otel_gpuflame.events.executions import ExecutionArray
from otel_gpuflame.events.records import CallArray
from otel_gpuflame.events.wire import Kind

IDS: Final = 1 << 32
"""Correlation ids, which wrap."""
SYNC_DETAIL: Final = {
    apis.BY_NAME[name].id: detail
    for name, detail in (
        ("cuEventSynchronize", 1),
        ("cuStreamSynchronize", 3),
        ("cuCtxSynchronize", 4),
    )
}
"""Calls that CUPTI records as a synchronisation of that detail."""


@dataclass(slots=True)
class Undecided:
    """What is known of one process and not decided yet. Parts are arrays in the order of their arrival."""

    begin_ns: int
    complete_ns: int
    """All executions of launches before it are here."""
    done_ns: int = 0
    calls: list[CallArray] = field(default_factory=list)
    """Launches."""
    waits: list[CallArray] = field(default_factory=list)
    executions: list[ExecutionArray] = field(default_factory=list)
    recorded: list[ExecutionArray] = field(default_factory=list)
    """Launches that CUPTI recorded itself."""
    synchronisations: list[ExecutionArray] = field(default_factory=list)
    is_anchored: bool = False
    """Both sides begin with the same launch: until then, what repeats itself could be paired a turn too early."""
    is_lossy: bool = False
    """Calls were lost since the last cut: only the next one tells where both sides agree again."""
    may_begin: bool = False
    """The program called nothing before `begin_ns`: if it then takes its time, it was creating its context."""
    end_ns: int = FOREVER
    """Executions of later launches are not delivered."""
    launches: int = 0
    kernels: int = 0
    has_ended: bool = False
    base_id: int = -1
    """Ids are counted from here, so that they may wrap."""

    def add_calls(self, rows: CallArray) -> None:
        """Launches, and waits that CUPTI records too."""
        is_launch = IS_SUBMISSION[rows["kind"]]
        self.launches += int(np.count_nonzero(rows["kind"] == Kind.LAUNCH))
        self.calls += parts(rows, is_launch)
        self.waits += parts(rows, np.isin(rows["api"], list(SYNC_DETAIL)))

    def launches_after(self, time_ns: int) -> int:
        """Launches of kernels that no window of executions has seen: probes go later than it."""
        return sum(
            int(np.count_nonzero((rows["kind"] == Kind.LAUNCH) & (rows["start_ns"] > time_ns)))
            for rows in self.calls
        )

    def counted_ids(self, rows: ExecutionArray) -> NDArray[np.int64]:
        """Ids as a count that does not wrap within half of their range."""
        ids = rows["correlation_id"].astype(np.int64)
        if self.base_id < 0 and len(ids):
            self.base_id = int(ids.min())
        # A little below the base too: what was launched before may end later.
        return (ids - self.base_id + IDS // 4) % IDS

    def waiting(self) -> dict[str, int]:
        """Rows of each sort."""
        return {name: sum(map(len, getattr(self, name))) for name in _PARTS}

    def drop_all(self) -> None:
        """Begin anew: what is left of both sides no longer begins with the same launch."""
        for name in _PARTS:
            setattr(self, name, [])
        self.is_anchored = self.may_begin = False


_PARTS: Final = ("calls", "waits", "executions", "recorded", "synchronisations")


def parts(
    rows: NDArray[np.void], chosen: NDArray[np.bool_] | None = None
) -> list[NDArray[np.void]]:
    """The chosen rows as a part, if there are any."""
    if chosen is not None and not chosen.all():
        rows = rows.take(np.flatnonzero(chosen))
    return [rows] if len(rows) else []
