"""Names that run-time compilers leave in /tmp."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpuflame.symbolize.perf_map import (
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
    assert PerfMap(TEXT).name_at(address) == name


@given(st.text(max_size=200), st.integers(0, 1 << 64))
def test_any_text_is_parsed(text: str, address: int) -> None:
    """A compiler may be writing the file right now."""
    name = PerfMap(text).name_at(address)
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
