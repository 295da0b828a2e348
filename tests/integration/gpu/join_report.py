"""What recordings say of how executions were joined, of torch.profiler beside them, and of what devices counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.capture.replay import ReplaySource
from otel_gpuflame.events import wire
from otel_gpuflame.events.device_errors import DeviceErrors
from otel_gpuflame.events.device_metrics import DeviceMetric, DeviceMetrics
from otel_gpuflame.events.executions import EXECUTION, Executions, ExecutionsEnd
from otel_gpuflame.events.records import Calls, Event, Names
from otel_gpuflame.events.wire import Kind
from otel_gpuflame.events.wire_gpu import GpuKind
from otel_gpuflame.pipeline import replay
from otel_gpuflame.profile.aggregate import AggregateOptions
from otel_gpuflame.profile.sample_types import GPU_TIME
from otel_gpuflame.symbolize.demangle import Demangler
from tests.integration.gpu.root_report import report_roots, report_whole
from tests.integration.gpu.truth_report import accounts, samples

MIN_JOINED: Final = 0.999
SAME: Final = 0.01
LARGEST: Final = 10
RESOLUTION_US: Final = 0.032
"""Of an H200's times. Where it is more than half of what is the same, as in 6 µs in total, nothing can be compared."""
WORK: Final = {GpuKind.KERNEL: "kernel", GpuKind.COPY: "gpu_memcpy", GpuKind.SET: "gpu_memset"}
"""What we call an execution, and torch.profiler does."""
Rows = NDArray[np.void]


def events_of(capture: Path) -> list[Event]:
    """Everything in a file."""
    with ReplaySource(capture, call_dtype=wire.CALL) as source:
        return list(source.events())


def executions_of(events: Sequence[Event]) -> Rows:
    """Kernels, copies and sets."""
    rows = np.concatenate(
        [np.empty(0, EXECUTION), *(e.rows for e in events if isinstance(e, Executions))]
    )
    return rows[np.isin(rows["kind"], list(WORK))]


def report_joins(name: str, capture: Path, since_ns: int) -> dict[str, Any]:
    """How many executions have their launch and why others have none, nodes of graphs, and where launches come from.

    `since_ns`: when the program began what it had done once before.
    """
    events = events_of(capture)
    result = replay(capture, AggregateOptions(window_ns=None))
    rows = executions_of(events)
    remarks, books = dict(result.ledger.remarks), accounts(result)
    without = sum(n for text, n in remarks.items() if text.startswith("executions without a stack"))
    left_out = sum(books.get("execution", {}).get("dropped", {}).values())
    seen = books.get("execution", {}).get("seen", 0)
    joined = (seen - without - left_out) / seen if seen else 0.0
    calls = np.concatenate(
        [np.empty(0, wire.CALL), *(e.rows for e in events if isinstance(e, Calls))]
    )
    captured = result.ledger.dropped["launch", "captured"]
    launches = int((calls["kind"] == Kind.LAUNCH).sum()) - captured
    of_graphs = int(((rows["kind"] == GpuKind.KERNEL) & (rows["graph_node_id"] != 0)).sum())
    kernels = int((rows["kind"] == GpuKind.KERNEL).sum()) - of_graphs
    total_ns = int((rows["end_ns"] - rows["start_ns"]).astype(np.int64).sum())
    stacks = list(samples(result, GPU_TIME))
    profiled_ns = sum(value for _, value in stacks)
    roots, whole = report_roots(name, stacks), report_whole(events, since_ns)
    is_joined = joined >= MIN_JOINED and total_ns == profiled_ns and launches == kernels
    return {
        "workload": name,
        "ok": is_joined and roots["ok"] and whole["ok"],
        "roots": roots,
        "whole": whole,
        "executions": seen,
        "joined": joined,
        "without_launch": {
            text.rpartition(": ")[2]: n
            for text, n in remarks.items()
            if text.startswith("executions without a stack")
        },
        "left_out": books.get("execution", {}).get("dropped", {}),
        "launches_by_probes": launches,
        "kernels_by_cupti": kernels,
        "probe_coverage": launches / kernels if kernels else None,
        "gpu_time_ns": profiled_ns,
        "gpu_time_is_exact": total_ns == profiled_ns,
        "captured_launches": captured,
        "node_executions": of_graphs,
        "node_executions_under_their_captured_launch": sum(
            n for text, n in remarks.items() if "under a captured launch" in text
        ),
        "windows": Counter(
            e.incomplete or "complete" for e in events if isinstance(e, ExecutionsEnd)
        ),
        "remarks": remarks,
        "accounts": books,
        "capture_bytes": capture.stat().st_size,
    }


def report_profiler(capture: Path, lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each case: what we recorded before and after, against what torch.profiler saw in between."""
    events, demangle = events_of(capture), Demangler().demangle
    rows = executions_of(events)
    names = {each.handle: each.name for e in events if isinstance(e, Names) for each in e.names}
    found = []
    for line in lines:
        torch_us = Counter(
            {demangle(name): us for name, us in line["profiled"]["kernels_us"].items()}
        )
        total_us = sum(line["profiled"]["times_us"].values())
        turns = {}
        for turn in ("before", "after"):
            span = line[turn]
            inside = rows[
                (rows["start_ns"] >= span["start_ns"])
                & (rows["start_ns"] < span["end_ns"])
                & (rows["tgid"] == line["pid"])
            ]
            ours_us = by_kernel(inside, names)
            counts = Counter(WORK[GpuKind(kind)] for kind in inside["kind"].tolist())
            turns[turn] = {
                "counts": dict(counts),
                "counts_equal": dict(counts) == line["profiled"]["counts"],
                "total_ratio": float(durations_us(inside).sum()) / total_us if total_us else None,
                "largest": [
                    {"kernel": name[:120], "torch_us": us, "ratio": ours_us[name] / us}
                    for name, us in torch_us.most_common(LARGEST)
                    if us * SAME >= 2 * RESOLUTION_US
                ],
            }
        after = turns["after"]
        ratios = [after["total_ratio"], *(each["ratio"] for each in after["largest"])]
        is_same = all(ratio is not None and abs(ratio - 1) <= SAME for ratio in ratios)
        found.append(
            {
                "case": line["case"],
                "ok": after["counts_equal"] and is_same,
                "torch_counts": line["profiled"]["counts"],
                "worst_of_largest": max(
                    (abs(each["ratio"] - 1) for each in after["largest"]), default=None
                ),
                **turns,
            }
        )
    return found


def durations_us(rows: Rows) -> NDArray[np.float64]:
    """Of executions."""
    lasted: NDArray[np.float64] = (rows["end_ns"] - rows["start_ns"]).astype(np.float64) / 1e3
    return lasted


def by_kernel(rows: Rows, names: dict[int, str]) -> Counter[str]:
    """Microseconds by demangled name."""
    demangle = Demangler().demangle
    kernels = rows[rows["kind"] == GpuKind.KERNEL]
    found: Counter[str] = Counter()
    for handle, us in zip(kernels["name"].tolist(), durations_us(kernels).tolist(), strict=True):
        found[demangle(names.get(handle, "?"))] += us
    return found


def report_counters(capture: Path) -> dict[str, Any]:
    """What devices said of themselves while a recording ran."""
    events = events_of(capture)
    rows = [e.rows for e in events if isinstance(e, DeviceMetrics)]
    found: dict[str, Any] = {}
    for metric in DeviceMetric:
        values = [v for part in rows for v in part["value"][part["metric"] == metric].tolist()]
        if values:
            found[metric.name] = {
                "readings": len(values),
                "mean": sum(values) / len(values),
                "max": max(values),
            }
    errors = sum(len(e.errors) for e in events if isinstance(e, DeviceErrors))
    return {"ok": bool(found), "metrics": found, "xid_errors": errors}
