"""One view of the host as a table, and as JSON."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from otel_gpuflame.cli.tables import human
from otel_gpuflame.events.frames import FrameKind
from otel_gpuflame.pipeline import HostView
from otel_gpuflame.profile.rates import ProcessRates
from otel_gpuflame.profile.top import TopRow

_NS_PER_S: Final = 1e9
_UNKNOWN: Final = "…"
_NUMBERS: Final[tuple[str, ...]] = (
    "pid",
    "gpu_wait",
    "launches/s",
    "copies/s",
    "copied/s",
    "overhead",
)
_COPIES: Final = ("copies/s", "copied/s")
_ENOUGH: Final = 40
"""Columns for names below which copies are left out."""
_GAP: Final = 2
_MIN_NAME: Final = 8
_MAX_SERVICE: Final = 32


def view_table(view: HostView, limit: int, width: int) -> Table:
    """Processes that wait most, at most `limit` of them; the host in the title.

    In a terminal of few columns copies are left out, and names are cut, but no number.
    """
    rows = view.rows[:limit]
    numbers = [_numbers(row, view) for row in rows]
    shown = _NUMBERS
    if _room(shown, numbers, width) < _ENOUGH:
        shown = tuple(name for name in _NUMBERS if name not in _COPIES)
    room = max(_room(shown, numbers, width), 2 * _MIN_NAME)
    longest = max((cell_len(row.service) for row in rows), default=0)
    service_width = min(max(longest, _MIN_NAME), _MAX_SERVICE, room // 2)
    table = Table(
        title=_title(view), title_justify="left", title_style="bold", box=None, pad_edge=False
    )
    table.add_column("service", no_wrap=True, overflow="ellipsis", width=service_width)
    for name in shown:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column(
        "waits most in", no_wrap=True, overflow="ellipsis", max_width=room - service_width
    )
    for row, cells in zip(rows, numbers, strict=True):
        table.add_row(Text(row.service), *(cells[name] for name in shown), _place(row.top_wait))
    if len(view.rows) > limit:
        table.add_row(Text(f"… {len(view.rows) - limit} more", "dim"))
    return table


def _room(shown: Sequence[str], numbers: Sequence[dict[str, str]], width: int) -> int:
    """Columns of the terminal that are left for names."""
    widths = [max(map(len, (name, *(cells[name] for cells in numbers)))) for name in shown]
    return width - sum(widths) - _GAP * (len(shown) + 1)


def _numbers(row: ProcessRates, view: HostView) -> dict[str, str]:
    """Cells by the names in _NUMBERS."""
    overhead = view.overheads.get(row.pid)
    return {
        "pid": str(row.pid),
        "gpu_wait": _marked(f"{row.wait:.3f} s/s", is_estimated=row.wait_is_estimated),
        "launches/s": _rate(row, f"{row.launches:,.0f}", view),
        "copies/s": _rate(row, f"{row.copies:,.0f}", view),
        "copied/s": _rate(row, human(row.copied_bytes, "bytes"), view),
        "overhead": _UNKNOWN if overhead is None else f"{100 * overhead:.2f}%",
    }


def view_json(view: HostView) -> dict[str, object]:
    """All processes; rates are a second, `launches_per_s` and the like null while not known."""
    return {
        "unix_s": view.end_unix_ns / _NS_PER_S,
        "interval_s": view.interval_ns / _NS_PER_S,
        "duty": view.duty,
        "lost": view.lost,
        "targets": view.targets,
        "processes": [_row_json(row, view) for row in view.rows],
    }


def _row_json(row: ProcessRates, view: HostView) -> dict[str, object]:
    return {
        "pid": row.pid,
        "service": row.service,
        "gpu_wait_s_per_s": row.wait,
        "launches_per_s": row.launches if view.is_settled else None,
        "copies_per_s": row.copies if view.is_settled else None,
        "copied_bytes_per_s": row.copied_bytes if view.is_settled else None,
        "is_estimated": row.is_estimated,
        "gpu_wait_is_estimated": row.wait_is_estimated,
        "overhead": view.overheads.get(row.pid),
        "top_wait": _place_json(row.top_wait),
    }


def _place_json(top: TopRow | None) -> dict[str, object] | None:
    if top is None:
        return None
    return {
        "function": top.frame.name,
        "file": top.frame.file,
        "line": top.frame.line,
        "gpu_wait_ns": top.value,
    }


def _title(view: HostView) -> Text:
    at = datetime.fromtimestamp(view.end_unix_ns / _NS_PER_S).astimezone()
    lost = (f"{view.lost:,} lost", "bold red" if view.lost else "")
    return Text.assemble(
        f"{at:%H:%M:%S}  {view.targets} targets, duty {100 * view.duty:.1f}%, ", lost
    )


def _rate(row: ProcessRates, text: str, view: HostView) -> str:
    if not view.is_settled:
        return _UNKNOWN
    return _marked(text, is_estimated=row.is_estimated)


def _marked(text: str, *, is_estimated: bool) -> str:
    return f"~{text}" if is_estimated else text


def _place(top: TopRow | None) -> Text:
    if top is None:
        return Text("")
    if top.frame.kind is not FrameKind.PYTHON:
        return Text(top.frame.name, "dim")
    return Text.assemble(f"{top.frame.name}  ", (os.path.basename(top.place), "dim"))
