"""Tables for the terminal. Numbers are the exact ones, rounded for reading only."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from otel_gpuflame.events.frames import FrameKind
from otel_gpuflame.profile import sample_types
from otel_gpuflame.profile.ledger import (
    CALL_KINDS,
    CAPTURED,
    EXECUTION_KIND,
    LINKED,
    NO_SPAN,
    NOT_SAMPLED,
    TOO_MANY,
    Ledger,
)
from otel_gpuflame.profile.model import Bundle, ValueType
from otel_gpuflame.profile.top import TopRow, top_leaves, top_python_lines, total
from otel_gpuflame.profile.view import has_device_times

_NS_UNITS: Final = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1, "ns"))
_BYTE_UNITS: Final = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))
_NAME_WIDTH: Final = 60
_NO_LINK: Final = {
    NO_SPAN: "outside of spans",
    NOT_SAMPLED: "in spans that are not sampled",
    TOO_MANY: "in spans beyond the limit",
}
_THREAD_EVENTS: Final = {
    "cpu_sample": "CPU samples",
    "off_cpu": "times off the CPU",
    "driver": "calls on GPU devices",
    "execution": "executions on devices",
}


def human(value: float, unit: str) -> str:
    """`12.3 ms`, `4.00 MiB`, `1,234`: three significant digits with a unit, counts in full."""
    units = {"nanoseconds": _NS_UNITS, "bytes": _BYTE_UNITS}.get(unit)
    if units is None:
        return f"{value:,.0f}"
    # The limit is where rounding begins to show 1.00 of the larger unit instead of 1000 of the smaller.
    size, name = next((u for u in units if value >= 0.9995 * u[0]), units[-1])
    number = value / size
    digits = 0 if size == 1 or number >= 100 else 1 if number >= 10 else 2
    return f"{number:.{digits}f} {name}"


def say(console: Console, text: str, style: str = "") -> None:
    """Print text as it is: brackets in paths are no markup, and a path that is wrapped cannot be copied."""
    console.print(Text(text, style), soft_wrap=True)


def print_summary(console: Console, bundles: Sequence[Bundle], limit: int) -> None:
    """Waits by Python line, what for, what the GPU was given or did, why it idled, totals."""
    wait, launch = sample_types.GPU_WAIT, sample_types.GPU_LAUNCH
    _print_rows(console, "GPU waits by Python line", top_python_lines(bundles, wait), wait, limit)
    if any(map(has_device_times, bundles)):
        _print_executions(console, bundles, limit)
    else:
        _print_rows(console, "How the CPU waited", top_leaves(bundles, wait), wait, limit)
        _print_rows(console, "What the GPU was given", top_leaves(bundles, launch), launch, limit)
    console.print(_totals(bundles))


def _print_executions(console: Console, bundles: Sequence[Bundle], limit: int) -> None:
    """What only executions tell."""
    wait, time, idle = sample_types.GPU_WAIT, sample_types.GPU_TIME, sample_types.GPU_IDLE
    _print_rows(console, "What the CPU waited for", top_leaves(bundles, wait), wait, limit)
    _print_rows(console, "GPU time by Python line", top_python_lines(bundles, time), time, limit)
    _print_rows(console, "What the GPU executed", top_leaves(bundles, time), time, limit)
    _print_rows(console, "GPU idle by Python line", top_python_lines(bundles, idle), idle, limit)
    _print_rows(console, "Why the GPU idled", top_leaves(bundles, idle), idle, limit)


def print_ledger(console: Console, ledger: Ledger) -> None:
    """One line if nothing was lost, else a row for each kind with losses."""
    everything = ledger.accounts()
    accounts = [account for account in everything if account.kind in CALL_KINDS]
    seen = sum(account.seen for account in accounts)
    lost = sum(account.lost for account in accounts)
    pending = sum(account.pending for account in accounts)
    nested = sum(
        account.seen - account.profiled - account.lost - account.pending for account in accounts
    )
    captured = sum(n for a in accounts for reason, n in a.dropped if reason == CAPTURED)
    nested -= captured
    parts = [
        f"{seen:,} calls seen",
        f"{sum(a.profiled for a in accounts):,} profiled",
        f"{lost:,} lost",
    ]
    parts += [f"{nested:,} inside another call"] if nested else []
    parts += [f"{captured:,} captured into graphs"] if captured else []
    parts += [f"{pending:,} still in the driver"] if pending else []
    say(console, ", ".join(parts))
    _say_links(console, ledger)
    others = [f"{a.seen:,} {_THREAD_EVENTS[a.kind]}" for a in everything if a not in accounts]
    if others:
        say(console, ", ".join(others))
    for account in everything:
        if account.lost:
            reasons = ", ".join(
                f"{reason.replace('_', ' ')} {n:,}" for reason, n in account.dropped
            )
            say(console, f"  {account.kind}: {reasons}", "yellow")
    remarks = {text: count for text, count in ledger.remarks.items() if count}
    stacks = ledger.source_count("stack", "lost")
    if stacks:
        remarks["stacks lost on the way (sent again)"] = stacks
    unresolved = ledger.source_count("name", "unresolved")
    if unresolved:
        remarks["answers about kernels that had got their names before the capture began"] = (
            unresolved
        )
    forgotten = ledger.source_count("name", "forgotten")
    if forgotten:
        remarks["names of kernels forgotten, since their process has too many"] = forgotten
    refused = ledger.source_count("process", "table_full") + ledger.source_count(
        "target", "table_full"
    )
    if refused:
        remarks["processes not captured, since there are more than the table of targets holds"] = (
            refused
        )
    faults = ledger.source_count("xid", "table_full")
    if faults:
        remarks["errors of devices (Xid) lost, since too many came at once"] = faults
    refusals = ledger.source_count("device_metric", "unreadable")
    if refusals:
        remarks["readings of counters that devices refused"] = refusals
    for text, count in sorted(remarks.items()):
        say(console, f"  {text}: {count:,}", "yellow")


def _say_links(console: Console, ledger: Ledger) -> None:
    """Which calls and executions belong to spans, where any has one."""
    for kinds, name in ((CALL_KINDS, "calls"), ((EXECUTION_KIND,), "executions")):
        counts: Counter[str] = Counter()
        for (kind, outcome), count in ledger.links.items():
            if kind in kinds:
                counts[outcome] += count
        linked = counts.pop(LINKED, 0)
        if linked or counts[NOT_SAMPLED]:
            rest = ", ".join(f"{n:,} {_NO_LINK[why]}" for why, n in counts.items() if n)
            say(console, f"{linked:,} {name} linked to a span{', ' if rest else ''}{rest}")


def _print_rows(
    console: Console, title: str, rows: Sequence[TopRow], sample_type: ValueType, limit: int
) -> None:
    whole = sum(row.value for row in rows)
    if not whole:
        console.print(f"[bold]{title}[/]: none\n")
        return
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, title_style="bold")
    table.add_column(sample_type.type, justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("where", overflow="fold")
    for row, where in zip(rows, _places(rows[:limit]), strict=False):
        table.add_row(human(row.value, sample_type.unit), f"{100 * row.value / whole:.1f}%", where)
    if len(rows) > limit:
        rest = sum(row.value for row in rows[limit:])
        table.add_row(
            human(rest, sample_type.unit),
            f"{100 * rest / whole:.1f}%",
            f"… {len(rows) - limit} more",
        )
    console.print(table)
    console.print()


def _places(rows: Sequence[TopRow]) -> list[Text]:
    """What each row is about. Long names of kernels are cut; a hash tells those apart that would look the same."""
    times = Counter(_cut(row.frame.name, _NAME_WIDTH) for row in rows)
    return [_place(row, alone=times[_cut(row.frame.name, _NAME_WIDTH)] == 1) for row in rows]


def _place(row: TopRow, *, alone: bool) -> Text:
    name = row.frame.name
    if row.frame.kind is FrameKind.PYTHON:
        return Text.assemble(f"{name}  ", (os.path.basename(row.place), "dim"))
    if alone:
        return Text(_cut(name, _NAME_WIDTH))
    identity = hashlib.sha256((row.frame.system_name or name).encode()).hexdigest()[:4]
    return Text.assemble(_cut(name, _NAME_WIDTH - len(identity) - 1), (f"#{identity}", "dim"))


def _cut(name: str, width: int) -> str:
    return name if len(name) <= width else f"{name[: width - 1]}…"


def _totals(bundles: Sequence[Bundle]) -> str:
    values = {t: total(bundles, t) for t in sample_types.ALL}
    # What is only recorded on request is left out where there is none.
    shown = (t for t, value in values.items() if value or t in sample_types.OF_CALLS)
    return "[bold]Totals[/]: " + ", ".join(f"{t.type} {human(values[t], t.unit)}" for t in shown)
