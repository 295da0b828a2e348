"""A capture file as a source of events."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from otel_gpuflame.capture.replay import ReplaySource
from otel_gpuflame.errors import CaptureFileError
from otel_gpuflame.events import wire
from otel_gpuflame.events.records import Calls, CaptureStart, Event
from tests.unit.events.capture_samples import (
    START,
    assert_same,
    calls,
    capture_bytes,
    small_recording,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The small recording as a file."""
    path = tmp_path / "a.ogfcap"
    path.write_bytes(capture_bytes(small_recording()))
    return path


def test_replay_gives_the_recorded_events(path: Path) -> None:
    """A replay is the recording, event by event, and knows its origin."""
    with ReplaySource(path) as replay:
        assert_same(list(replay.events()), small_recording())
        assert replay.created == {"version": "test"}
    assert replay.damage is None
    assert not replay.skipped_blocks
    assert replay.bytes_read == path.stat().st_size


def test_shift_moves_the_start_and_nothing_else(path: Path) -> None:
    """Shifted to another time of day, only the offset to unix time differs."""
    now_ns = 1_900_000_000_000_000_000
    with ReplaySource(path, shift_to_unix_ns=now_ns) as replay:
        start, *rest = replay.events()
    assert isinstance(start, CaptureStart)
    assert start.time_ns + start.unix_offset_ns == now_ns
    assert (start.time_ns, start.attributes) == (START.time_ns, START.attributes)
    assert_same(rest, small_recording()[1:])


def test_damage_is_told_with_the_path(path: Path) -> None:
    """After a cut file has given what it has, the damage names file and offset."""
    path.write_bytes(path.read_bytes()[:-25])
    with ReplaySource(path) as replay:
        events = list(replay.events())
        assert_same(events, small_recording()[: len(events)])
    assert 0 < len(events) < len(small_recording())
    assert str(replay.damage).startswith(f"{path}: at offset ")


def test_calls_are_delivered_in_the_wanted_dtype(tmp_path: Path) -> None:
    """A capture of an older version feeds a pipeline that knows the current one."""
    path = tmp_path / "old.ogfcap"
    names = [name for name in wire.CALL.names or () if name != "bytes"]
    old = calls(2, dtype=np.dtype([(name, wire.CALL[name]) for name in names]))
    path.write_bytes(capture_bytes([START, Calls(old)]))
    with ReplaySource(path, call_dtype=wire.CALL) as replay:
        events: list[Event] = list(replay.events())
    assert isinstance(events[1], Calls)
    assert events[1].rows.dtype == wire.CALL
    assert events[1].rows["tid"].tolist() == old["tid"].tolist()


def test_calls_that_do_not_fit_the_wanted_dtype_are_an_error(path: Path) -> None:
    """A column that would lose bits is refused by name, with the path."""
    with (
        ReplaySource(path, call_dtype=np.dtype([("tid", "<u2")])) as replay,
        pytest.raises(CaptureFileError, match=r"a\.ogfcap: column 'tid'"),
    ):
        list(replay.events())


def test_missing_files_and_directories_are_named(tmp_path: Path) -> None:
    """What cannot be opened or read is an error with path and reason."""
    with (
        pytest.raises(CaptureFileError, match=r"none\.ogfcap: No such file"),
        ReplaySource(tmp_path / "none.ogfcap"),
    ):
        pass
    with pytest.raises(CaptureFileError, match="directory"), ReplaySource(tmp_path):
        pass


def test_other_files_are_refused_with_their_path(tmp_path: Path) -> None:
    """A file that is no capture is an error with its path."""
    path = tmp_path / "profile.pb"
    path.write_bytes(b"\x0a\x04abcd")
    with (
        pytest.raises(CaptureFileError, match=r"profile\.pb: not a capture file"),
        ReplaySource(path),
    ):
        pass


def test_replay_must_be_entered(path: Path) -> None:
    """Asking a replay that was never opened says how to use it."""
    with pytest.raises(CaptureFileError, match="context manager"):
        list(ReplaySource(path).events())
