"""What processes did a second, from bundles: the numbers of a live table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from otel_gpuflame.events import apis
from otel_gpuflame.events.frames import Frame
from otel_gpuflame.events.records import SamplingWindow
from otel_gpuflame.events.wire import Kind
from otel_gpuflame.profile.model import Bundle, Profile
from otel_gpuflame.profile.sample_types import ESTIMATED_SCOPE, GPU_COPY, GPU_LAUNCH, GPU_WAIT
from otel_gpuflame.profile.top import TopRow, top_python_lines, total

_NS_PER_S: Final = 1e9
_PPB: Final = 1_000_000_000
_LAUNCHES: Final = (Kind.LAUNCH, Kind.GRAPH_LAUNCH)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRates:
    """One process in one interval; everything a second. `wait` is seconds waited a second, over all threads."""

    pid: int
    service: str
    wait: float = 0.0
    launches: float = 0.0
    copies: float = 0.0
    copied_bytes: float = 0.0
    is_estimated: bool = False
    """Launches and copies are scaled from sampling windows."""
    wait_is_estimated: bool = False
    """So are waits, or some of them: of a program that waits often (docs/decisions/0006-agent.md)."""
    top_wait: TopRow | None = None
    """Where it waited most; its value in nanoseconds."""


@dataclass(slots=True)
class _Work:
    """Submissions, bytes and seconds waited a second."""

    wait: float = 0.0
    top_wait: TopRow | None = None
    launches: float = 0.0
    copies: float = 0.0
    copied_bytes: float = 0.0
    end_unix_ns: int = 0


@dataclass(slots=True)
class _Process:
    service: str
    exact: _Work = field(default_factory=_Work)


class Rates:
    """Exact values of the last interval, and estimates of the last complete sampling stratum."""

    def __init__(self, unix_offset_ns: int) -> None:
        """`unix_offset_ns` + CLOCK_MONOTONIC = unix time."""
        self._offset_ns = unix_offset_ns
        self._processes: dict[int, _Process] = {}
        self._estimates: dict[int, _Work] = {}
        self._windows: list[SamplingWindow] = []
        self._has_complete_stratum = False

    @property
    def is_settled(self) -> bool:
        """Whether launches are known: all are captured, or one stratum of sampling is complete."""
        return self._has_complete_stratum or any(map(_is_whole, self._windows))

    def open_window(self, window: SamplingWindow) -> None:
        """A sampling window has opened. While everything is captured, older estimates would count twice."""
        if _is_whole(window):
            self._estimates.clear()
        self._windows.append(window)

    def add_estimates(self, bundles: Iterable[Bundle], complete_ns: int) -> None:
        """Take over estimates; those of strata before the last that is complete at `complete_ns` are out of date."""
        ended = [w for w in self._windows if w.stratum_end_ns <= complete_ns]
        if ended:
            self._has_complete_stratum = True
            self._windows = [w for w in self._windows if w.stratum_end_ns > complete_ns]
        for bundle in bundles:
            if bundle.scope == ESTIMATED_SCOPE:
                pid, _service = _identity(bundle)
                self._estimates[pid] = _work(bundle)
        newest_unix_ns = max((w.stratum_end_ns + self._offset_ns for w in ended), default=0)
        self._estimates = {
            pid: work for pid, work in self._estimates.items() if work.end_unix_ns >= newest_unix_ns
        }

    def close_interval(self, bundles: Iterable[Bundle]) -> None:
        """Replace the exact values by those of `bundles`, all of one interval."""
        self._processes = {}
        for bundle in bundles:
            if bundle.scope == ESTIMATED_SCOPE:
                continue
            pid, service = _identity(bundle)
            self._processes[pid] = _Process(service=service, exact=_work(bundle))

    def rows(self, targets: Iterable[tuple[int, str]]) -> list[ProcessRates]:
        """Rates of `targets`, (pid, service), and of whatever else was active; who waits most comes first."""
        processes = {pid: _Process(service) for pid, service in targets} | self._processes
        rows = [self._row(pid, process) for pid, process in processes.items()]
        return sorted(rows, key=lambda row: (-row.wait, -row.launches, row.pid))

    def _row(self, pid: int, process: _Process) -> ProcessRates:
        estimate = self._estimates.get(pid)
        scaled = estimate or _Work()
        return ProcessRates(
            pid=pid,
            service=process.service,
            wait=process.exact.wait + scaled.wait,
            launches=process.exact.launches + scaled.launches,
            copies=process.exact.copies + scaled.copies,
            copied_bytes=process.exact.copied_bytes + scaled.copied_bytes,
            is_estimated=estimate is not None,
            wait_is_estimated=scaled.wait > 0,
            top_wait=process.exact.top_wait or scaled.top_wait,
        )


def _is_whole(window: SamplingWindow) -> bool:
    return window.probability_ppb == _PPB


def _identity(bundle: Bundle) -> tuple[int, str]:
    resource = dict(bundle.resource)
    return int(resource.get("process.pid", 0)), str(resource.get("service.name", "unknown_service"))


def _work(bundle: Bundle) -> _Work:
    seconds = bundle.window.duration_ns / _NS_PER_S
    counts: Counter[Kind] = Counter()
    for profile in bundle.profiles:
        if profile.sample_type == GPU_LAUNCH:
            for kind, value in _submissions(bundle, profile):
                counts[kind] += value
    waits = top_python_lines([bundle], GPU_WAIT)
    return _Work(
        wait=total([bundle], GPU_WAIT) / bundle.window.duration_ns,
        top_wait=waits[0] if waits else None,
        launches=sum(counts[kind] for kind in _LAUNCHES) / seconds,
        copies=counts[Kind.COPY] / seconds,
        copied_bytes=total([bundle], GPU_COPY) / seconds,
        end_unix_ns=bundle.window.end_unix_ns,
    )


def _submissions(bundle: Bundle, profile: Profile) -> Iterator[tuple[Kind, int]]:
    """What was submitted is told by the driver call, the frame below the leaf; lost calls have none."""
    kinds = [_kind([bundle.frames[i] for i in stack[-2:-1]]) for stack in bundle.stacks]
    for stack, value in zip(profile.stack.tolist(), profile.value.tolist(), strict=True):
        kind = kinds[stack]
        if kind is not None:
            yield kind, value


def _kind(call: list[Frame]) -> Kind | None:
    api = apis.BY_NAME.get(call[0].name) if call else None
    return None if api is None else api.kind
