"""A recording whose file has to end before it does."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Sequence

import pytest

from otel_gpuflame.events.capture_reader import read_capture
from otel_gpuflame.events.records import Calls, CaptureStart, Event, Watermark
from otel_gpuflame.pipeline.recording import Recorder
from otel_gpuflame.profile.sample_types import GPU_LAUNCH
from otel_gpuflame.profile.top import total
from tests.unit.profile.builders import START, START_NS, call, usual

SECOND_NS = 1_000_000_000
SECONDS = 5


class Disk(io.BytesIO):
    """Takes so many bytes; `at_close`: it says so only then, as network file systems do."""

    def __init__(self, room_bytes: int = 1 << 20, *, at_close: bool = False) -> None:
        super().__init__()
        self._room_bytes = room_bytes
        self._at_close = at_close
        self.refusals = 0
        self.data = b""

    def write(self, data: memoryview, /) -> int:  # type: ignore[override]
        taken = data[: self._room_bytes - len(self.data)]
        if not taken:
            self.refusals += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.data += taken
        return len(taken)

    def tell(self) -> int:
        raise OSError(errno.ESPIPE, os.strerror(errno.ESPIPE))

    def close(self) -> None:
        if not self.closed and self._at_close:
            super().close()
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        super().close()


def events() -> Sequence[Event]:
    """A launch a second, each in a segment of its own."""
    found: list[Event] = [START, *usual()[1:]]
    for second in range(SECONDS):
        at_ns = START_NS + second * SECOND_NS
        found += [Calls(call("cuLaunchKernel", start_ns=at_ns)), Watermark(at_ns + SECOND_NS)]
    return found


def record_to(disk: Disk) -> Recorder:
    """A whole recording."""
    recorder = Recorder(disk, {"target": "test"})
    recorder.take(events())
    recorder.close()
    assert total(recorder.digest.bundles(), GPU_LAUNCH) == SECONDS
    assert recorder.file is not None
    assert recorder.file.written_bytes == len(disk.data)
    assert disk.closed
    return recorder


def launches_in(disk: Disk) -> int:
    """Launches that can be read back."""
    return sum(len(e.rows) for e in read_capture(io.BytesIO(disk.data)) if isinstance(e, Calls))


def error_of(recorder: Recorder) -> str | None:
    """Why the file is not the whole recording."""
    assert recorder.file is not None
    return recorder.file.error


def test_what_cannot_tell_its_length_is_a_file_too(caplog: pytest.LogCaptureFixture) -> None:
    """A pipe has no position; nothing is wrong with it."""
    disk = Disk()
    assert error_of(record_to(disk)) is None
    assert launches_in(disk) == SECONDS
    assert caplog.text == ""


def test_a_full_disk_ends_the_file_and_not_the_recording(caplog: pytest.LogCaptureFixture) -> None:
    """It is said once, with the reason; whole segments before it can be read, and tables have everything."""
    whole = Disk()
    record_to(whole)
    # The block at the end is of 20 bytes: the last segment is cut.
    disk = Disk(len(whole.data) - 30)
    assert error_of(record_to(disk)) == "No space left on device"
    assert launches_in(disk) == SECONDS - 1
    assert disk.refusals == 1
    assert caplog.text.count("the file ends here: No space left on device") == 1


def test_a_disk_that_was_full_before_costs_no_table(caplog: pytest.LogCaptureFixture) -> None:
    """Not even the header can be written."""
    disk = Disk(0)
    assert error_of(record_to(disk)) == "No space left on device"
    assert disk.refusals == 1
    assert caplog.text.count("the file ends here") == 1


def test_a_loss_that_is_known_at_the_end_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """Closing may fail as well."""
    assert error_of(record_to(Disk(at_close=True))) == "Disk quota exceeded"
    assert "the file ends here: Disk quota exceeded" in caplog.text


def test_an_event_that_the_format_does_not_take_costs_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A time that fits no column; what comes after it is in the file."""
    disk = Disk()
    recorder = Recorder(disk, {})
    assert recorder.file is not None
    recorder.file.write(CaptureStart(1 << 70, 0, ()))
    recorder.take(events())
    recorder.close()
    assert launches_in(disk) == SECONDS
    assert recorder.file.error is not None
    assert "an event is not in the file" in caplog.text
