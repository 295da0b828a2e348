"""What a recording of one of truth_programs.py says, against what the program says of itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from otel_gpuflame.events.attributions import Leaf
from otel_gpuflame.events.frames import Frame
from otel_gpuflame.findings.find import find
from otel_gpuflame.findings.model import Finding
from otel_gpuflame.pipeline import ReplayResult, replay
from otel_gpuflame.profile.aggregate import AggregateOptions
from otel_gpuflame.profile.labels import reason_frame
from otel_gpuflame.profile.model import ValueType
from otel_gpuflame.profile.sample_types import GPU_IDLE, GPU_QUEUE, GPU_TIME, GPU_WAIT
from otel_gpuflame.profile.top import innermost_python

PROGRAMS: Final = Path(__file__).with_name("truth_programs.py")
LIMIT: Final = 0.05
EDGES: Final = tuple(map(reason_frame, (Leaf.BEFORE_FIRST, Leaf.AFTER_LAST)))
"""Before the first kernel and after the last: under no line."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """Which time a program knows, and what a rule has to say of it; none: nothing."""

    sample_type: ValueType
    finding: str = ""
    leaf: Frame | None = None
    """Only samples with that leaf."""
    program: str = ""
    """Which tells it, where that has another name."""


EXPECTED: Final = {
    "clean": Expectation(GPU_TIME),
    "item": Expectation(GPU_WAIT, "synchronise-in-loop"),
    "unpinned": Expectation(GPU_WAIT, "unpinned-copy"),
    "sleeping": Expectation(GPU_IDLE, "input-bound"),
    "python_loop": Expectation(GPU_IDLE, "input-bound"),
    "back_pressure": Expectation(GPU_WAIT, "back-pressure-bound"),
    "two_streams": Expectation(GPU_TIME),
    "copy_awaited_by_event": Expectation(GPU_QUEUE, leaf=reason_frame(Leaf.WAITS_FOR_EVENT)),
    "kernel_awaited_by_copy": Expectation(
        GPU_QUEUE, leaf=reason_frame(Leaf.WAITS_FOR_EVENT), program="copy_awaited_by_event"
    ),
}


def lines_of(name: str) -> set[int]:
    """Under which the time has to be."""
    text = PROGRAMS.read_text().splitlines()
    return {number for number, line in enumerate(text, 1) if line.endswith(f"# truth: {name}")}


def samples(result: ReplayResult, sample_type: ValueType) -> Iterator[tuple[list[Frame], int]]:
    """Stacks, root first, and values."""
    for bundle in result.bundles:
        for profile in bundle.profiles:
            if profile.sample_type == sample_type:
                for stack, value in zip(
                    profile.stack.tolist(), profile.value.tolist(), strict=True
                ):
                    yield [bundle.frames[index] for index in bundle.stacks[stack]], value


def report(capture: Path, told: dict[str, Any]) -> list[dict[str, Any]]:
    """One line of the table for each truth that the program tells, and what explains it."""
    result = replay(capture, AggregateOptions(window_ns=None))
    found = find(result.bundles)
    truths = told["expected_ns"]
    rows = [_compared(name, ns, result, found, truths) for name, ns in truths.items()]
    common = {
        "remarks": dict(result.ledger.remarks),
        "accounts": accounts(result),
        "totals_ns": {
            each.type: sum(value for _, value in samples(result, each))
            for each in (GPU_WAIT, GPU_TIME, GPU_QUEUE, GPU_IDLE)
        },
        "capture_bytes": capture.stat().st_size,
    }
    return [row | common for row in rows]


def _compared(
    name: str,
    expected_ns: int,
    result: ReplayResult,
    found: Sequence[Finding],
    truths: Collection[str],
) -> dict[str, Any]:
    expected, lines = EXPECTED[name], lines_of(name)
    measured_ns = 0
    by_place: Counter[str] = Counter()
    by_leaf: Counter[str] = Counter()
    for frames, value in samples(result, expected.sample_type):
        if frames[-1] in EDGES:
            continue
        place = innermost_python(frames)
        is_right = place.file.endswith(PROGRAMS.name) and place.line in lines
        by_place[f"{Path(place.file).name}:{place.line}"] += value
        if is_right:
            by_leaf[frames[-1].name] += value
        if is_right and expected.leaf in (None, frames[-1]):
            measured_ns += value
    findings = [
        {
            "rule": finding.rule,
            "line": finding.place.line,
            "file": Path(finding.place.file).name,
            "lost_ns": finding.lost_ns,
            "confidence": finding.confidence.value,
            "evidence": dict(finding.evidence),
        }
        for finding in found
    ]
    error = measured_ns / expected_ns - 1
    wanted = [expected.finding] if expected.finding else []
    has_findings = [each["rule"] for each in findings] == wanted and all(
        each["file"] == PROGRAMS.name and each["line"] in lines for each in findings
    )
    of_others = {
        f"{PROGRAMS.name}:{line}"
        for other in truths
        if other != name and EXPECTED[other].sample_type == expected.sample_type
        for line in lines_of(other)
    }
    most = max(
        (place for place in by_place if place not in of_others),
        key=lambda place: by_place[place],
        default="",
    )
    return {
        "truth": name,
        "of": expected.sample_type.type,
        "expected_ns": expected_ns,
        "measured_ns": measured_ns,
        "error": error,
        # The most of it is under that line, and not under another one, but for those of which another truth knows.
        "line_ok": most in {f"{PROGRAMS.name}:{line}" for line in lines},
        "places": by_place.most_common(5),
        "leaves": by_leaf.most_common(5),
        "findings": findings,
        "findings_ok": has_findings,
        "ok": abs(error) <= LIMIT and has_findings,
    }


def accounts(result: ReplayResult) -> dict[str, dict[str, Any]]:
    """The books."""
    return {
        each.kind: {
            "seen": each.seen,
            "profiled": each.profiled,
            "dropped": dict(each.dropped),
            "pending": each.pending,
        }
        for each in result.ledger.accounts()
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """For people."""
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "truth": lambda row: str(row["truth"]),
        "of": lambda row: str(row["of"]),
        "expected ms": lambda row: f"{row['expected_ns'] / 1e6:,.1f}",
        "measured ms": lambda row: f"{row['measured_ns'] / 1e6:,.1f}",
        "error": lambda row: f"{row['error']:+.2%}",
        "line ok": lambda row: "yes" if row["line_ok"] else "NO",
        "findings": lambda row: (
            ", ".join(f"{each['rule']}@{each['line']}" for each in row["findings"]) or "none"
        ),
        "verdict": lambda row: "ok" if row["ok"] and row["line_ok"] else "NOT OK",
    }
    cells = [list(columns), *([of(row) for of in columns.values()] for row in rows)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(columns))]
    return "\n".join(
        " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    )
