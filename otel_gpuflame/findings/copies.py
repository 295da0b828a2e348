"""Copies between host and device that a thread waits for, and which of them only read a value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from otel_gpuflame.events.apis import Blocking
from otel_gpuflame.events.frames import Frame
from otel_gpuflame.events.wire import Kind
from otel_gpuflame.findings.back_pressure import is_device_behind
from otel_gpuflame.findings.facts import At, Facts
from otel_gpuflame.findings.model import Confidence, Loss, Rule

SCALAR_BYTES: Final = 4_096
"""Copies from the device of so few bytes on average read results: what is lost is the synchronisation."""
_SLOWEST_COPY: Final = 500_000_000
"""Bytes a second. On an H200 copies of 4 KiB from the device to pageable memory are as slow, those of 64 KiB seven
times as fast: what waits for longer waits mostly for the work before it."""
_MIN_COPIES: Final = 10
_MIN_SHARE: Final = 0.02
_HELD_BACK_FOR: Final = 10
"""Executions. On an H200 a launch was held back for one; a full queue holds 1,024."""
_ON_DEVICE: Final = frozenset({"copy DtoD", "copy peer", "copy 3D peer", "copy DtoA", "copy AtoD"})
_FROM_DEVICE: Final = frozenset({"copy DtoH", "copy AtoH"})


@dataclass(slots=True)
class Waiting:
    """All that a line waits for, other than launches."""

    place: Frame
    wait_ns: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    """Nanoseconds by call."""
    copies: int = 0
    """Between host and device."""
    copied_bytes: int = 0
    copy_waits: int = 0
    """Those of the copies that waited themselves."""
    is_pageable: bool = False
    """Asynchronous copies waited: what only those from or to pageable memory do, where the queue is not full."""
    async_wait_ns: int = 0
    """Of asynchronous copies."""
    synchronises: int = 0
    """Calls that wait, and copy nothing."""
    reads_only: bool = True
    """All copies are from the device."""

    @property
    def mean_bytes(self) -> float:
        """Of a copy; 0 without any."""
        return self.copied_bytes / self.copies if self.copies else 0.0

    @property
    def longest_call(self) -> str:
        """The name of the call in which most of the time went."""
        return max(self.calls.items(), key=lambda item: (item[1], item[0]))[0]

    @property
    def is_copy(self) -> bool:
        """Whether data are moved here, rather than a result read or work awaited."""
        is_small = self.mean_bytes <= SCALAR_BYTES
        is_late = self.copied_bytes * 1_000_000_000 < _SLOWEST_COPY * self.wait_ns
        return bool(self.copies) and not (self.reads_only and (is_small or is_late))


def waiting_places(facts: Facts) -> list[Waiting]:
    """Every line that waits in a synchronise, a free or a copy, and not only for room in the queue."""
    found: dict[Frame, Waiting] = {}
    for at in {*facts.wait_ns, *facts.waits, *filter(_is_host_copy, facts.submissions)}:
        if at.api is None or not (at.is_of(Kind.WAIT, Kind.FREE) or _is_host_copy(at)):
            continue
        waiting = found.setdefault(at.place, Waiting(at.place))
        waiting.wait_ns += facts.wait_ns[at]
        waiting.calls[at.api.name] += facts.wait_ns[at]
        if _is_host_copy(at):
            waiting.copies += facts.submissions[at]
            waiting.copied_bytes += facts.copied_bytes[at]
            waiting.copy_waits += facts.waits[at]
            waiting.reads_only &= at.api.detail in _FROM_DEVICE
            if at.api.blocking is Blocking.BY_DURATION:
                waiting.is_pageable |= facts.waits[at] > 0
                waiting.async_wait_ns += facts.wait_ns[at]
        else:
            waiting.synchronises += facts.waits[at]
    is_behind = is_device_behind(facts)
    return [
        waiting
        for waiting in found.values()
        if waiting.wait_ns and not (is_behind and _is_held_back(waiting, facts))
    ]


def _is_held_back(waiting: Waiting, facts: Facts) -> bool:
    """Whether its copies waited as launches do that are given to a full queue, until a few executions were over.

    Those of pageable memory wait until all is done that the queue holds.
    """
    if waiting.wait_ns > waiting.async_wait_ns or not facts.kernel_executions:
        return False
    execution_ns = facts.gpu_time_ns / facts.kernel_executions
    return waiting.wait_ns <= _HELD_BACK_FOR * execution_ns * waiting.copy_waits


def _is_host_copy(at: At) -> bool:
    return at.is_of(Kind.COPY) and at.api is not None and at.api.detail not in _ON_DEVICE


def _find(facts: Facts) -> Iterator[Loss]:
    for waiting in waiting_places(facts):
        if not waiting.is_copy or facts.seen(waiting.copies) < _MIN_COPIES:
            continue
        if waiting.wait_ns < _MIN_SHARE * facts.window_ns:
            continue
        yield Loss(
            place=waiting.place,
            lost_ns=waiting.wait_ns,
            evidence=(
                ("copies", waiting.copies),
                ("mean_copy_bytes", round(waiting.mean_bytes)),
                ("copies_that_waited", waiting.copy_waits),
                ("synchronises", waiting.synchronises),
                ("bytes_per_second_waited", round(waiting.copied_bytes * 1e9 / waiting.wait_ns)),
                ("memory", "pageable" if waiting.is_pageable else "unknown"),
            ),
            # Pinned memory and a synchronise may be meant: the results are needed here.
            confidence=Confidence.HIGH if waiting.is_pageable else Confidence.MEDIUM,
        )


UNPINNED_COPY: Final = Rule(
    id="unpinned-copy",
    title="Unpinned or synchronous copy",
    remedy="Keep the host's side in pinned memory (pin_memory=True) and copy with non_blocking=True, so that the copy "
    "runs beside other work and the thread goes on.",
    find=_find,
)
