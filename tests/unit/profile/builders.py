"""Calls, stacks and other events with defaults, and what a list of bundles says, as plain dictionaries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

from otel_gpuflame.events import apis, wire
from otel_gpuflame.events.attributions import (
    ATTRIBUTION,
    AttributionArray,
    Attributions,
    Leaf,
    Measure,
)
from otel_gpuflame.events.executions import (
    EXECUTION,
    NO_DEVICE,
    DeviceInfo,
    Devices,
    ExecutionArray,
    Executions,
)
from otel_gpuflame.events.frames import Frame, FrameKind, ProcessKey, Stack, StackKey
from otel_gpuflame.events.records import (
    CallArray,
    Calls,
    CaptureStart,
    Event,
    HandleName,
    LossCount,
    Names,
    SourceCounters,
    Stacks,
    TargetInfo,
    Targets,
)
from otel_gpuflame.events.wire import CallFlag
from otel_gpuflame.events.wire_gpu import GpuKind
from otel_gpuflame.profile.aggregate import AggregateOptions, Aggregator
from otel_gpuflame.profile.model import Bundle, Link, ValueType

START_NS = 1_000_000
UNIX_OFFSET_NS = 1_700_000_000_000_000_000
START = CaptureStart(START_NS, UNIX_OFFSET_NS, (("target", "test"),))
PROCESS = ProcessKey(4242, 77)
OTHER = ProcessKey(4243, 78)
MAIN = Frame(FrameKind.PYTHON, "main", file="/srv/app/train.py", line=10)
STEP = Frame(FrameKind.PYTHON, "step", file="/srv/app/train.py", line=88)
KEY = StackKey(1, 2)
STACK = Stack(KEY, PROCESS, (MAIN, STEP))
TRACE_ID = bytes(range(1, 17))
SPAN_ID = bytes(range(0x21, 0x29))
ROOT_ID = bytes(range(0x31, 0x39))
DEVICE = DeviceInfo(
    index=3,
    uuid="GPU-11111111-2222-3333-4444-555555555555",
    model="NVIDIA H200",
    multiprocessors=132,
    threads_per_multiprocessor=2048,
    blocks_per_multiprocessor=32,
    registers_per_multiprocessor=65_536,
    shared_bytes_per_multiprocessor=233_472,
)
SAMPLED = CallFlag.HAS_SPAN | CallFlag.SPAN_SAMPLED


def call(api: str | int, *, duration_ns: int | None = None, **fields: Any) -> CallArray:
    """One call of the API, an array of one row. `duration_ns` None: it has no return probe.

    Other keywords are columns of `wire.CALL`; `process`, `key` and `flags` have their obvious meaning.
    """
    row = np.zeros(1, wire.CALL)
    known = apis.BY_NAME[api] if isinstance(api, str) else apis.BY_ID.get(api)
    process = fields.pop("process", PROCESS)
    flags = int(fields.pop("flags", 0))
    row["api"] = known.id if known else api
    row["kind"] = known.kind if known else wire.Kind.LAUNCH
    row["start_ns"] = START_NS + 10
    row["tgid"], row["process_start_ns"] = process.tgid, process.start_ns
    row["stack_hash"] = fields.pop("key", KEY)
    for name, value in fields.items():
        row[name] = np.frombuffer(value, "u1") if isinstance(value, bytes) else value
    if duration_ns is not None:
        row["end_ns"] = int(row["start_ns"][0]) + duration_ns
        flags |= CallFlag.RETURNED
    row["flags"] = flags
    return row


def batch(*calls: CallArray) -> Calls:
    """Calls as one event."""
    return Calls(np.concatenate(calls) if calls else np.zeros(0, wire.CALL))


def attribution(
    measure: Measure, value_ns: int, leaf: Leaf = Leaf.KERNEL, *, api: str = "", **fields: Any
) -> AttributionArray:
    """One row of `ATTRIBUTION` of the process PROCESS and the stack KEY; `leaf_api` is a name too."""
    row = np.zeros(1, ATTRIBUTION)
    row["measure"], row["value_ns"], row["leaf"] = measure, value_ns, leaf
    row["api"] = apis.BY_NAME[api].id if api else 0
    leaf_api = fields.pop("leaf_api", "")
    row["leaf_api"] = apis.BY_NAME[leaf_api].id if leaf_api else 0
    row["time_ns"], row["device"] = START_NS + 10, NO_DEVICE
    process = fields.pop("process", PROCESS)
    row["tgid"], row["process_start_ns"] = process.tgid, process.start_ns
    row["stack_hash"] = fields.pop("key", KEY)
    for name, value in fields.items():
        row[name] = np.frombuffer(value, "u1") if isinstance(value, bytes) else value
    return row


def attributed(*rows: AttributionArray) -> Attributions:
    """Attributions as one event."""
    return Attributions(np.concatenate(rows))


def execution(
    kind: GpuKind = GpuKind.KERNEL, *, duration_ns: int = 100, **fields: Any
) -> ExecutionArray:
    """One row of `EXECUTION` of the process PROCESS on DEVICE; other keywords are columns."""
    row = np.zeros(1, EXECUTION)
    row["kind"], row["device"] = kind, DEVICE.index
    row["start_ns"] = START_NS + 20
    row["tgid"], row["process_start_ns"] = PROCESS.tgid, PROCESS.start_ns
    for name, value in fields.items():
        row[name] = value
    row["end_ns"] = int(row["start_ns"][0]) + duration_ns
    return row


def executed(*rows: ExecutionArray) -> Executions:
    """Executions as one event."""
    return Executions(np.concatenate(rows))


def devices(*infos: DeviceInfo) -> Devices:
    """Devices, DEVICE unless told."""
    return Devices(infos or (DEVICE,))


def name_event(handle: int, name: str, *, process: ProcessKey = PROCESS, time_ns: int = 0) -> Names:
    """A handle gets a name."""
    return Names((HandleName(process, time_ns, handle, name),))


def target_event(process: ProcessKey = PROCESS, service: str = "train") -> Targets:
    """A process gets its description."""
    attributes = (("process.pid", process.tgid), ("service.name", service))
    return Targets((TargetInfo(process, attributes),))


def counters(time_ns: int = START_NS, /, **counts: dict[str, int]) -> SourceCounters:
    """Running totals: `counters(launch={"seen": 3, "ring_full": 1})`."""
    return SourceCounters(
        time_ns,
        tuple(
            LossCount(kind, outcome, count)
            for kind, outcomes in counts.items()
            for outcome, count in outcomes.items()
        ),
    )


def usual() -> list[Event]:
    """What comes before the calls: start, description of the process, its one stack."""
    return [START, target_event(), Stacks((STACK,))]


def run(
    events: Iterable[Event], options: AggregateOptions | None = None
) -> tuple[list[Bundle], Aggregator]:
    """All bundles that `events` give, and the aggregator for its ledger. One window unless told."""
    aggregator = Aggregator(options or AggregateOptions(window_ns=None))
    bundles = [bundle for event in events for bundle in aggregator.feed(event)]
    return bundles + aggregator.finish(), aggregator


def samples(
    bundles: Iterable[Bundle], sample_type: ValueType
) -> Counter[tuple[tuple[str, ...], Link | None]]:
    """Values by (frame names root first, link), over all bundles."""
    found: Counter[tuple[tuple[str, ...], Link | None]] = Counter()
    for bundle in bundles:
        for profile in bundle.profiles:
            if profile.sample_type == sample_type:
                rows = zip(profile.stack, profile.link, profile.value.tolist(), strict=True)
                for stack, link, value in rows:
                    frames = tuple(bundle.frames[i].name for i in bundle.stacks[stack])
                    found[frames, bundle.links[link] if link >= 0 else None] += value
    return found


def leaves(bundles: Iterable[Bundle], sample_type: ValueType) -> dict[str, int]:
    """Values by the name of the leaf frame."""
    found: Counter[str] = Counter()
    for (frames, _), value in samples(bundles, sample_type).items():
        found[frames[-1]] += value
    return dict(found)
