"""Numbers and names in the tables for the terminal."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from otel_gpuflame.cli.tables import human, print_ledger, print_summary
from otel_gpuflame.events.wire import Kind
from otel_gpuflame.profile.ledger import Ledger
from tests.unit.findings import programs
from tests.unit.profile.builders import batch, call, counters, name_event, run, usual


def console(width: int = 100) -> tuple[Console, io.StringIO]:
    """A console and what is written to it."""
    text = io.StringIO()
    return Console(file=text, width=width, highlight=False), text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, "nanoseconds", "0 ns"),
        (999, "nanoseconds", "999 ns"),
        (1_000, "nanoseconds", "1.00 µs"),
        (12_345, "nanoseconds", "12.3 µs"),
        (123_456, "nanoseconds", "123 µs"),
        (999_499, "nanoseconds", "999 µs"),
        (999_999, "nanoseconds", "1.00 ms"),
        (1_480_000_000, "nanoseconds", "1.48 s"),
        (3_600_000_000_000, "nanoseconds", "3600 s"),
        (0, "bytes", "0 B"),
        (1023, "bytes", "1023 B"),
        (1024, "bytes", "1.00 KiB"),
        (21 * 2**30, "bytes", "21.0 GiB"),
        (0, "count", "0"),
        (1_234_567, "count", "1,234,567"),
    ],
)
def test_numbers_have_three_digits_and_a_unit(value: int, unit: str, text: str) -> None:
    """Times and sizes are rounded for reading, counts are given in full."""
    assert human(value, unit) == text


def rows_of(names: list[str], width: int = 100) -> str:
    """The tables of launches of these kernels, one more of each than of the next."""
    events = usual()
    for handle, name in enumerate(names, 1):
        rows = [call("cuLaunchKernel", object=handle)] * (len(names) - handle + 1)
        events += [name_event(handle, name), batch(*rows)]
    out, text = console(width)
    print_summary(out, run(events)[0], 10)
    return text.getvalue()


def test_long_names_are_cut_where_they_stay_different() -> None:
    """A long name needs one line, if its beginning tells it from the others."""
    text = rows_of(["a" * 200, "b" * 200])
    assert f"{'a' * 59}…" in text
    assert f"{'b' * 59}…" in text
    assert "a" * 60 not in text


def test_names_that_would_look_the_same_are_told_apart() -> None:
    """Two kernels are never two rows with the same text: a hash of the whole name follows the cut ones."""
    names = [f"{'k' * 100}_{suffix}" for suffix in ("one", "two")] + ["other" * 30]
    text = rows_of(names, width=160)
    tags = re.findall(r"k{54}…#([0-9a-f]{4})", text)
    assert len(set(tags)) == 2
    assert text.count("#") == 2


def test_names_are_no_markup() -> None:
    """What a program calls its kernels is shown, whatever brackets it has."""
    assert "[bold]k[/nothing]" in rows_of(["[bold]k[/nothing]"])


def ledger_text(ledger: Ledger) -> str:
    """What is printed of a ledger."""
    out, text = console()
    print_ledger(out, ledger)
    return text.getvalue()


def test_a_ledger_without_losses_is_one_line() -> None:
    """There is nothing to say beyond the totals."""
    ledger = Ledger()
    ledger.profiled.update({"launch": 1_200, "copy": 34})
    assert ledger_text(ledger) == "1,234 calls seen, 1,234 profiled, 0 lost\n"


def test_a_ledger_with_losses_says_of_what_and_why() -> None:
    """The line adds up, and each kind with losses has its reasons; remarks of 0 are left out."""
    ledger = Ledger()
    ledger.profiled.update({"launch": 90, "copy": 5})
    ledger.take_source(
        counters(
            launch={"seen": 100, "ring_full": 7, "no_return": 1},
            copy={"seen": 9, "nested": 4},
            stack={"lost": 3},
            name={"seen": 50, "sent": 50, "unresolved": 6},
        )
    )
    ledger.remarks.update({"inverted times": 0, "late for their window": 2})
    assert ledger_text(ledger).splitlines() == [
        "109 calls seen, 95 profiled, 8 lost, 4 inside another call, 2 still in the driver",
        "  launch: no return 1, ring full 7",
        "  answers about kernels that had got their names before the capture began: 6",
        "  late for their window: 2",
        "  stacks lost on the way (sent again): 3",
    ]


def test_what_was_captured_into_graphs_is_neither_lost_nor_nested() -> None:
    """It is no work, and the line adds up."""
    ledger = Ledger()
    ledger.profiled.update({"launch": 90})
    ledger.dropped["launch", "captured"] = 8
    ledger.take_source(counters(launch={"seen": 100, "nested": 2}))
    assert ledger_text(ledger) == (
        "100 calls seen, 90 profiled, 0 lost, 2 inside another call, 8 captured into graphs\n"
    )


def test_events_of_threads_are_no_calls() -> None:
    """They have a line of their own, and their losses are named like those of calls."""
    ledger = Ledger()
    ledger.profiled.update({"launch": 5, "cpu_sample": 1_980, "off_cpu": 12, "driver": 23})
    ledger.take_source(counters(off_cpu={"seen": 15, "ring_full": 3}))
    assert ledger_text(ledger).splitlines() == [
        "5 calls seen, 5 profiled, 0 lost",
        "1,980 CPU samples, 15 times off the CPU, 23 calls on GPU devices",
        "  off_cpu: ring full 3",
    ]


def test_totals_name_what_was_recorded() -> None:
    """Types of calls always; samples, off-CPU times and device calls only where there are some."""
    sample = call(0, kind=Kind.CPU_SAMPLE)
    for rows, shown in (
        ([call("cuLaunchKernel")], "gpu_wait 0 ns, gpu_launch 1, gpu_copy 0 B"),
        ([sample, sample], "gpu_wait 0 ns, gpu_launch 0, gpu_copy 0 B, samples 2"),
    ):
        out, text = console()
        print_summary(out, run([*usual(), batch(*rows)])[0], 10)
        assert text.getvalue().splitlines()[-1] == f"Totals: {shown}"


def test_rows_have_their_share_of_the_whole() -> None:
    """Shares are of the sum of all rows."""
    names = ("first", "second", "third")
    lines = [line.rstrip() for line in rows_of(list(names)).splitlines()]
    assert [line.split()[1] for line in lines if line.endswith(names)] == [
        "50.0%",
        "33.3%",
        "16.7%",
    ]


def test_executions_tell_what_the_cpu_waited_for_and_why_the_gpu_idled() -> None:
    """With executions the kernels waited for take the place of how the thread waited."""
    target, text = console()
    print_summary(target, programs.item_a_step().bundles(), 5)
    tables = {block.splitlines()[0].strip(): block for block in text.getvalue().split("\n\n")}
    assert "gemm" in tables["What the CPU waited for"]
    assert "8.01 s  100.0%  f20  train.py:20" in tables["GPU waits by Python line"]
    assert "9.50 s  100.0%  f10  train.py:10" in tables["GPU time by Python line"]
    assert "9.50 s  100.0%  gemm" in tables["What the GPU executed"]
    assert "100 ms  83.3%  f10  train.py:10" in tables["GPU idle by Python line"]
    assert "20.0 ms  16.7%  [driver call]" in tables["Why the GPU idled"]
    assert "gpu_time 9.50 s, gpu_idle 120 ms, gpu_launch 101,000" in text.getvalue()
    assert "How the CPU waited" not in text.getvalue()


def links_said(**counts: int) -> list[str]:
    """Lines about links, where so many launches and executions have some."""
    ledger = Ledger()
    for name, count in counts.items():
        kind, _, outcome = name.partition("_")
        ledger.links[kind, outcome] = count
    out, text = console(200)
    print_ledger(out, ledger)
    return text.getvalue().splitlines()[1:]


def test_how_much_is_linked_is_said() -> None:
    """And why the rest is not; nothing is said of programs without spans."""
    assert links_said(launch_no_span=9, wait_no_span=1) == []
    assert links_said(launch_linked=1_000, copy_linked=1, wait_no_span=7, launch_too_many=2) == [
        "1,001 calls linked to a span, 7 outside of spans, 2 in spans beyond the limit"
    ]
    assert links_said(execution_not_sampled=3, launch_linked=1) == [
        "1 calls linked to a span",
        "0 executions linked to a span, 3 in spans that are not sampled",
    ]
