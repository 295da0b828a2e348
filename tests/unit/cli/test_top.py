"""`top`: tables and JSON lines of hand-made views."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from otel_gpuflame.cli import top as module
from otel_gpuflame.cli.top_table import view_json, view_table
from otel_gpuflame.errors import SourceUnavailable
from otel_gpuflame.events.frames import Frame, FrameKind, mark
from otel_gpuflame.pipeline import HostView, WatchOptions
from otel_gpuflame.profile.rates import ProcessRates
from otel_gpuflame.profile.top import TopRow
from tests.unit.cli.captures import run

LOSS = Frame(FrameKind.PYTHON, "log_loss", file="/srv/app/train.py", line=117)
TRAIN = ProcessRates(
    pid=4242,
    service="train",
    wait=0.75,
    launches=12_345.6,
    copies=2.0,
    copied_bytes=4_194_304.0,
    is_estimated=True,
    top_wait=TopRow(LOSS, 1_500_000_000),
)
SERVE = ProcessRates(pid=77, service="[red]serve[/]", wait=0.0, launches=3.0)


def view(*rows: ProcessRates, **fields: Any) -> HostView:
    """A view; what a test does not care about has a default."""
    defaults: dict[str, Any] = {
        "end_unix_ns": 1_700_000_000_500_000_000,
        "interval_ns": 2_000_000_000,
        "duty": 0.05,
        "lost": 0,
        "targets": len(rows),
        "rows": rows,
        "overheads": {4242: 0.0081},
        "is_settled": True,
    }
    return HostView(**(defaults | fields))


def text(shown: HostView, limit: int = 100, width: int = 160) -> list[str]:
    """Lines of the table."""
    console = Console(width=width, highlight=False, color_system=None)
    with console.capture() as capture:
        console.print(view_table(shown, limit, width))
    return capture.get().splitlines()


def test_a_row_shows_what_a_process_does() -> None:
    """Estimates are marked, the line is the innermost of the program, the host is in the title."""
    title, _header, train, serve = text(view(TRAIN, SERVE))

    assert "2 targets, duty 5.0%, 0 lost" in title
    assert train.split() == [
        "train", "4242", "0.750", "s/s", "~12,346", "~2", "~4.00", "MiB", "0.81%", "log_loss", "train.py:117"
    ]  # fmt: skip
    assert "~0.750 s/s" in text(view(replace(TRAIN, wait_is_estimated=True)))[2]
    assert serve.split() == ["[red]serve[/]", "77", "0.000", "s/s", "3", "0", "0", "B", "…"]


def test_what_is_not_known_yet_is_not_shown_as_zero() -> None:
    """Before the first sampling window is over there are no launches to show."""
    (row,) = text(view(TRAIN, is_settled=False))[2:]

    assert row.split()[4:7] == ["…", "…", "…"]
    assert "12,346" not in row


def test_waits_outside_of_python_are_named() -> None:
    """A process without Python frames has a mark."""
    other = ProcessRates(
        pid=1, service="cpp", wait=1.0, top_wait=TopRow(mark("no Python frame"), 5)
    )
    assert "[no Python frame]" in text(view(other))[2]


def test_rows_that_do_not_fit_are_counted() -> None:
    """A busy host does not push the title off the screen."""
    rows = [ProcessRates(pid=n, service=f"s{n}") for n in range(1, 9)]
    lines = text(view(*rows), limit=3)

    assert len(lines) == 6
    assert lines[-1].strip() == "… 5 more"


def test_a_narrow_terminal_cuts_names_only() -> None:
    """One line a process, whatever its names; numbers are shown in full, copies left out."""
    where = TopRow(LOSS._replace(name="f" * 200), 1)
    long = replace(TRAIN, service="s" * 200, top_wait=where)
    (row,) = text(view(long), width=80)[2:]

    assert len(row) <= 80
    assert row.startswith("sssssss")
    for number in ("4242", "0.750 s/s", "~12,346", "0.81%"):
        assert f" {number} " in row
    assert "MiB" not in row


def test_an_empty_host_is_a_title() -> None:
    """Without processes there is still the line about the host."""
    title, _header = text(view())
    assert "0 targets" in title


def test_json_has_full_numbers_and_null_for_unknown() -> None:
    """For scripts: nothing is rounded, nothing is guessed."""
    assert view_json(view(TRAIN, lost=2)) == {
        "unix_s": 1_700_000_000.5,
        "interval_s": 2.0,
        "duty": 0.05,
        "lost": 2,
        "targets": 1,
        "processes": [
            {
                "pid": 4242,
                "service": "train",
                "gpu_wait_s_per_s": 0.75,
                "launches_per_s": 12_345.6,
                "copies_per_s": 2.0,
                "copied_bytes_per_s": 4_194_304.0,
                "is_estimated": True,
                "gpu_wait_is_estimated": False,
                "overhead": 0.0081,
                "top_wait": {
                    "function": "log_loss",
                    "file": "/srv/app/train.py",
                    "line": 117,
                    "gpu_wait_ns": 1_500_000_000,
                },
            }
        ],
    }
    (unknown,) = view_json(view(SERVE, is_settled=False))["processes"]  # type: ignore[misc]
    assert unknown["launches_per_s"] is None
    assert unknown["overhead"] is None
    assert unknown["top_wait"] is None


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[WatchOptions]:
    """Two views in place of a capture; the options that it would have had."""
    asked: list[WatchOptions] = []

    def watch(options: WatchOptions, _stopped: Callable[[], bool]) -> Iterator[HostView]:
        asked.append(options)
        yield view(TRAIN)
        yield view(SERVE)

    monkeypatch.setattr(module, "watch", watch)
    return asked


def test_without_a_terminal_tables_come_one_below_the_other(watched: list[WatchOptions]) -> None:
    """Piped into a file, each interval is a table, without control characters."""
    result = run("top")

    assert result.exit_code == 0
    assert result.stdout.count("service") == 2
    assert "train.py:117" in result.stdout
    assert "\x1b" not in result.stdout
    assert watched[0] == WatchOptions(interval_ns=2_000_000_000, budget=0.01)


def test_once_ends_after_one_table(watched: list[WatchOptions]) -> None:
    """For scripts; it waits for launches to be known."""
    result = run("top", "--once", "--interval", "5", "--duty", "50%")

    assert result.stdout.count("service") == 1
    assert watched == [WatchOptions(interval_ns=5_000_000_000, budget=0.01, duty=0.5, settle=True)]


def test_json_is_a_line_for_each_interval(watched: list[WatchOptions]) -> None:
    """Each line is a document of its own."""
    lines = [json.loads(line) for line in run("top", "--json").stdout.splitlines()]

    assert [[p["service"] for p in line["processes"]] for line in lines] == [
        ["train"],
        ["[red]serve[/]"],
    ]


def test_rows_can_be_limited(watched: list[WatchOptions], monkeypatch: pytest.MonkeyPatch) -> None:
    """The number is kept also where there is no terminal."""
    monkeypatch.setattr(module, "watch", lambda *_: iter([view(TRAIN, SERVE)]))
    assert "… 1 more" in run("top", "--rows", "1").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--interval", "0.1"], "0.1 is not in the range"),
        (["--budget", "0"], "'0' is not above 0"),
        (["--budget", "200%"], "'200%' is not above 0 and at most 1"),
        (["--duty", "half"], "'half' is not a share"),
        (["--rows", "0"], "0 is not in the range"),
    ],
)
def test_wrong_values_are_told(arguments: list[str], message: str) -> None:
    """A mistake has exit code 2 and names what is wrong."""
    result = run("top", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_host_that_cannot_capture_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The remedy comes as with the other commands, with exit code 3 and no half of a table."""

    def watch(*_arguments: object) -> Iterator[HostView]:
        raise SourceUnavailable("needs root")
        yield

    monkeypatch.setattr(module, "watch", watch)
    result = run("top", "--json")
    assert (result.exit_code, result.stdout, result.stderr) == (3, "", "error: needs root\n")
