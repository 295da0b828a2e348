"""Names that run-time compilers leave in /tmp."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpuflame.symbolize.perf_map import (
    MAX_PERF_MAP_BYTES,
    REREAD_INTERVAL_S,
    LivePerfMap,
    PerfMap,
    read_perf_map,
)

TEXT = """\
7f00 10 first
7f10 20 second with blanks
not a line
7f40 zz broken size
7f20 8 nested
8000 10
"""


@pytest.mark.parametrize(
    ("address", "name"),
    [
        (0x7EFF, None),
        (0x7F00, "first"),
        (0x7F0F, "first"),
        (0x7F10, "second with blanks"),
        (0x7F20, "nested"),
        (0x7F30, None),
        (0x7F40, None),
        (0x8000, None),
    ],
)
def test_addresses_get_the_name_of_their_range(address: int, name: str | None) -> None:
    """Start and size are hexadecimal; lines that are not understood are skipped."""
    assert PerfMap(TEXT.encode()).name_at(address) == name


def test_a_line_that_comes_later_replaces_an_equal_one() -> None:
    """Compilers use memory again."""
    assert PerfMap(b"10 8 old\n10 4 new\n8 2 other\n").name_at(0x13) == "new"
    assert PerfMap(b"10 8 old\n10 4 new\n8 2 other\n").name_at(0x15) is None


@pytest.mark.parametrize("line", ["-5 9 x", f"{1 << 64:x} 9 x", "5 -9 x", f"5 {1 << 64:x} x"])
def test_numbers_that_are_no_addresses_are_skipped(line: str) -> None:
    """The file may say anything."""
    assert PerfMap(f"{line}\n1 8 good".encode()).name_at(5) == "good"


def test_a_range_to_the_end_of_all_addresses_holds_its_own() -> None:
    """Start and size together may not fit into a word."""
    text = f"5 {(1 << 64) - 1:x} all".encode()
    assert PerfMap(text).name_at((1 << 64) - 2) == "all"


def test_a_large_map_takes_little_memory() -> None:
    """Half a million lines of 12 MB: the newest names are there, and no line is an object for longer than its turn."""
    text = b"".join(b"%x 10 function_%d\n" % (16 * n, n) for n in range(500_000))
    tracemalloc.start()
    try:
        found = PerfMap(text)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.name_at(16 * 499_999 + 3) == "function_499999"
    assert found.name_at(16 * 250_000) == "function_250000"
    assert found.name_at(3) is None
    assert kept < 12_000_000
    assert peak < 40_000_000


def test_of_a_file_that_is_too_large_the_end_is_read(tmp_path: Path) -> None:
    """Compilers of long-lived services add lines for days."""
    path = _fake_proc(tmp_path, "77") / "perf-77.map"
    with path.open("wb") as file:
        file.truncate(MAX_PERF_MAP_BYTES)
        file.seek(0, os.SEEK_END)
        file.write(b"\n9000 10 newest\n")
    assert read_perf_map(77, tmp_path).name_at(0x9001) == "newest"


@given(st.text(st.characters(codec="utf-8"), max_size=200), st.integers(0, 1 << 64))
def test_any_text_is_parsed(text: str, address: int) -> None:
    """A compiler may be writing the file right now."""
    name = PerfMap(text.encode()).name_at(address)
    assert name is None or name


def _fake_proc(folder: Path, pids: str) -> Path:
    process = folder / "77"
    (process / "root" / "tmp").mkdir(parents=True)
    (process / "status").write_text(f"Name:\tx\nPid:\t77\nNSpid:\t{pids}\n")
    return process / "root" / "tmp"


def test_the_map_is_named_after_the_pid_inside_the_container(tmp_path: Path) -> None:
    """The innermost of the process's pids."""
    (_fake_proc(tmp_path, "77\t9\t3") / "perf-3.map").write_text(TEXT)
    assert read_perf_map(77, tmp_path).name_at(0x7F00) == "first"


def test_a_map_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    """The target must not make its reader open other files."""
    other = tmp_path / "other"
    other.write_text(TEXT)
    (_fake_proc(tmp_path, "77") / "perf-77.map").symlink_to(other)
    assert read_perf_map(77, tmp_path).name_at(0x7F00) is None


def test_names_added_later_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A map is read again for an unknown address, but not for each one."""
    now = [100.0]
    monkeypatch.setattr("otel_gpuflame.symbolize.perf_map.time.monotonic", lambda: now[0])
    path = _fake_proc(tmp_path, "77") / "perf-77.map"
    path.write_text(TEXT)
    live = LivePerfMap(77, tmp_path)
    assert live.name_at(0x9000) is None
    path.write_text(TEXT + "9000 10 later\n")
    assert live.name_at(0x9000) is None
    now[0] += REREAD_INTERVAL_S
    assert live.name_at(0x9000) == "later"


def test_without_a_map_there_are_no_names() -> None:
    """Neither for this process nor for one that is gone."""
    assert read_perf_map(os.getpid(), Path("/proc")).name_at(1) is None
    assert read_perf_map(1 << 30, Path("/proc")).name_at(1) is None


def test_an_unchanged_map_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most maps are complete soon, and unknown addresses come for ever."""
    now, parsed = _counted(monkeypatch, 0.0)
    path = _fake_proc(tmp_path, "77") / "perf-77.map"
    path.write_text(TEXT)
    live = LivePerfMap(77, tmp_path)
    for _ in range(5):
        now[0] += 2 * REREAD_INTERVAL_S
        assert live.name_at(0x9000) is None
        assert live.name_at(0x7F00) == "first"
    assert parsed == [len(TEXT)]
    path.unlink()
    now[0] += 2 * REREAD_INTERVAL_S
    assert live.name_at(0x9000) is None
    assert live.name_at(0x7F00) is None


def test_a_map_that_takes_long_is_read_seldom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that writes a large map and goes on adding to it costs a tenth of a CPU."""
    took_s = 0.5
    now, parsed = _counted(monkeypatch, took_s)
    path = _fake_proc(tmp_path, "77") / "perf-77.map"
    live = LivePerfMap(77, tmp_path)
    begin_s = now[0]
    for number in range(1_000):
        path.write_text(TEXT + "x" * number)
        live.name_at(0x9000)
        now[0] += 0.1
    assert 2 <= len(parsed) <= (now[0] - begin_s) / (10 * took_s)


def _counted(monkeypatch: pytest.MonkeyPatch, took_s: float) -> tuple[list[float], list[int]]:
    """(a clock, sizes of maps that were parsed), each of which takes so long."""
    now, parsed = [100.0], list[int]()
    parse = PerfMap.__init__

    def init(self: PerfMap, data: bytes) -> None:
        parse(self, data)
        if data:
            parsed.append(len(data))
            now[0] += took_s

    monkeypatch.setattr("otel_gpuflame.symbolize.perf_map.time.monotonic", lambda: now[0])
    monkeypatch.setattr(PerfMap, "__init__", init)
    return now, parsed
