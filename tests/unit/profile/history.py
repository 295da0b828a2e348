"""Random histories of a recording for property tests, with what must come out of them.

The expectations are computed call by call in plain Python, independently of the vectorised code.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from hypothesis import strategies as st

from otel_gpuflame.correlate.waits import ASYNC_COPY_WAITS_FROM_NS
from otel_gpuflame.events import apis, wire
from otel_gpuflame.events.apis import Blocking
from otel_gpuflame.events.frames import Frame, FrameKind, ProcessKey, Stack, StackKey
from otel_gpuflame.events.records import CallArray, Event, Stacks, Watermark
from otel_gpuflame.events.wire import CallFlag
from otel_gpuflame.profile.ledger import EVENT_KINDS, THREAD_KINDS
from tests.unit.profile.builders import (
    ROOT_ID,
    START,
    START_NS,
    TRACE_ID,
    batch,
    call,
    counters,
    name_event,
    target_event,
)

WINDOW_NS = 100_000
WINDOWS = 5
MAX_COPY_BYTES = 1 << 48
UNKNOWN_API = 9_999
UNKNOWN_KINDS = (0, 12, 15, 255)
DROPS = ("ring_full", "nested", "no_return", "table_full", "process_gone", "unreadable")
SUBMISSIONS = ("launch", "graph_launch", "copy", "set")
# A pid that is used again is another process.
PROCESSES = (ProcessKey(7, 1), ProcessKey(7, 2), ProcessKey(8, 1))
# The last one is never delivered; {0, 0} is a stack that was not taken.
KEYS = (StackKey(1, 1), StackKey(1, 2), StackKey(2, 1), StackKey(9, 9), StackKey(0, 0))

Operation: TypeAlias = tuple[str, Any]
_API = st.sampled_from([*apis.BY_ID, UNKNOWN_API])
_TIME_NS = st.integers(START_NS - WINDOW_NS // 2, START_NS + WINDOWS * WINDOW_NS - 1)
_SUBMITTED_BYTES = st.integers(0, 2**33) | st.sampled_from(
    [MAX_COPY_BYTES, MAX_COPY_BYTES + 1, 2**64 - 1]
)
_DURATION_NS = st.none() | st.integers(-50, 60_000) | st.just(ASYNC_COPY_WAITS_FROM_NS)
_FLAGS = st.sampled_from(
    [
        0,
        CallFlag.BLOCKING_ARG,
        CallFlag.HAS_SPAN,
        CallFlag.HAS_SPAN | CallFlag.SPAN_SAMPLED,
        CallFlag.HAS_SPAN | CallFlag.SPAN_SAMPLED | CallFlag.HAS_LOCAL_ROOT,
        CallFlag.ARGS_UNREADABLE,
    ]
)


@st.composite
def calls(draw: st.DrawFn) -> CallArray:
    """One call. Its kind is mostly that of its API, since nothing else comes from BPF."""
    api_id = draw(_API)
    fields: dict[str, Any] = {
        "process": draw(st.sampled_from(PROCESSES)),
        "key": draw(st.sampled_from(KEYS)),
        "start_ns": draw(_TIME_NS),
        "flags": draw(_FLAGS),
        "bytes": draw(_SUBMITTED_BYTES),
        "object": draw(st.integers(0, 2)),
        "voluntary_switches": draw(st.integers(0, 1)),
        "trace_id": TRACE_ID,
        "span_id": bytes([1, 0, 0, 0, 0, 0, 0, draw(st.integers(0, 1))]),
        "local_root_span_id": ROOT_ID,
    }
    if draw(st.integers(0, 9)) == 0:
        fields["kind"] = draw(st.sampled_from([*map(int, wire.Kind), *UNKNOWN_KINDS]))
    return call(api_id, duration_ns=draw(_DURATION_NS), **fields)


def _stack(key: StackKey) -> Stack:
    # Keys 1 and 2 of the first half have equal frames: other addresses, the same code.
    frame = Frame(FrameKind.PYTHON, f"f{key.high}", file="/srv/a.py", line=key.high)
    return Stack(key, PROCESSES[0], (frame,))


_OPERATION: st.SearchStrategy[Operation] = st.one_of(
    st.tuples(st.just("call"), calls()),
    st.tuples(st.just("call"), calls()),
    st.tuples(st.just("call"), calls()),
    st.tuples(st.just("drop"), st.tuples(st.sampled_from(EVENT_KINDS), st.sampled_from(DROPS))),
    st.tuples(st.just("enter"), st.sampled_from(EVENT_KINDS)),
    st.tuples(st.just("stack"), st.sampled_from(KEYS[:3])),
    st.tuples(
        st.just("name"),
        st.tuples(st.integers(1, 2), st.sampled_from("ab"), st.sampled_from(PROCESSES)),
    ),
    st.tuples(
        st.just("target"), st.tuples(st.sampled_from(PROCESSES), st.sampled_from(["one", "two"]))
    ),
    st.tuples(st.just("watermark"), _TIME_NS),
    st.tuples(st.just("counters"), st.none()),
)
OPERATIONS = st.lists(_OPERATION, max_size=50)


@dataclass(slots=True)
class Expected:
    """What must come out of a history."""

    seen: Counter[str] = field(default_factory=Counter)
    profiled: Counter[str] = field(default_factory=Counter)
    dropped: Counter[tuple[str, str]] = field(default_factory=Counter)
    pending: Counter[str] = field(default_factory=Counter)
    unknown_kinds: int = 0
    inverted: int = 0
    impossible: int = 0
    submissions: int = 0
    lost_submissions: int = 0
    cpu_samples: int = 0
    lost_cpu_samples: int = 0
    copied_bytes: int = 0
    waited_ns: int = 0
    off_cpu_ns: int = 0
    driver_ns: int = 0

    def take(self, operation: Operation) -> None:
        """Add one operation."""
        what, detail = operation
        if what == "call":
            self._take_call(detail[0])
        elif what == "drop":
            kind, reason = detail
            self.seen[kind] += 1
            self.dropped[kind, reason] += 1
            self.lost_submissions += kind in SUBMISSIONS and reason != "nested"
            self.lost_cpu_samples += kind == "cpu_sample" and reason != "nested"
        elif what == "enter":
            self.seen[detail] += 1
            self.pending[detail] += 1

    def counters(self) -> Event:
        """The source's running totals."""
        totals: dict[str, dict[str, int]] = {}
        for kind, count in self.seen.items():
            totals.setdefault(kind, {})["seen"] = count
        for (kind, reason), count in self.dropped.items():
            totals.setdefault(kind, {})[reason] = count
        return counters(START_NS, **totals)

    def _take_call(self, row: Any) -> None:
        names = {int(kind): kind.name.lower() for kind in wire.Kind}
        kind = names.get(int(row["kind"]), "")
        if kind in EVENT_KINDS:
            self.seen[kind] += 1
            self.profiled[kind] += 1
        else:
            self.unknown_kinds += 1
        self.submissions += kind in SUBMISSIONS
        self.cpu_samples += kind == "cpu_sample"
        if kind == "copy":
            size = int(row["bytes"])
            self.impossible += size > MAX_COPY_BYTES
            self.copied_bytes += size if size <= MAX_COPY_BYTES else 0
        self._take_duration(row, kind)

    def _take_duration(self, row: Any, kind: str) -> None:
        flags = int(row["flags"])
        if not flags & CallFlag.RETURNED:
            return
        duration_ns = int(row["end_ns"]) - int(row["start_ns"])
        if duration_ns < 0:
            self.inverted += 1
            return
        if kind in THREAD_KINDS:
            self.off_cpu_ns += duration_ns if kind == "off_cpu" else 0
            self.driver_ns += duration_ns if kind == "driver" else 0
            return
        api = apis.BY_ID.get(int(row["api"]))
        blocking = api.blocking if api else Blocking.NEVER
        if (
            blocking is Blocking.ALWAYS
            or (blocking is Blocking.BY_ARGUMENT and flags & CallFlag.BLOCKING_ARG)
            or (blocking is Blocking.BY_DURATION and duration_ns >= ASYNC_COPY_WAITS_FROM_NS)
        ):
            self.waited_ns += duration_ns


def events(operations: list[Operation], *, cuts: frozenset[int]) -> tuple[list[Event], Expected]:
    """The history as events: neighbouring calls share a batch, except at positions in `cuts`."""
    expected = Expected()
    found: list[Event] = [START]
    pending: list[CallArray] = []

    def flush() -> None:
        if pending:
            found.append(batch(*pending))
            pending.clear()

    for position, operation in enumerate(operations):
        expected.take(operation)
        what, detail = operation
        if what == "call":
            if position in cuts:
                flush()
            pending.append(detail)
        elif what not in ("drop", "enter"):
            flush()
            found.append(_event(what, detail, expected))
    flush()
    found.append(expected.counters())
    return found, expected


def _event(what: str, detail: Any, expected: Expected) -> Event:
    if what == "stack":
        return Stacks((_stack(detail),))
    if what == "name":
        handle, name, process = detail
        return name_event(handle, name, process=process)
    if what == "target":
        process, service = detail
        return target_event(process, service)
    return Watermark(detail) if what == "watermark" else expected.counters()
