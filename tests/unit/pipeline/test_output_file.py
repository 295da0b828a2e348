"""The file of a recording that is refused, and of one that begins."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from otel_gpuflame.errors import TargetError
from otel_gpuflame.pipeline.output_file import OutputFile, open_output


def never() -> bool:
    """Nobody has had enough."""
    return False


def test_a_refused_recording_leaves_no_file(tmp_path: Path) -> None:
    """Neither an empty one nor part of one."""
    path = tmp_path / "new.ogfcap"
    with pytest.raises(TargetError), open_output(path, never):
        raise TargetError("refused")
    assert not path.exists()


def test_a_refused_recording_leaves_an_earlier_one_alone(tmp_path: Path) -> None:
    """What was recorded yesterday is not lost by a mistyped command."""
    path = tmp_path / "old.ogfcap"
    path.write_bytes(b"yesterday")
    with pytest.raises(TargetError), open_output(path, never):
        raise TargetError("refused")
    assert path.read_bytes() == b"yesterday"


@pytest.mark.parametrize("before", [None, b"", b"yesterday's was longer"])
def test_a_recording_that_begins_starts_an_empty_file(before: bytes | None, tmp_path: Path) -> None:
    """Nothing of an earlier one is left behind the end."""
    path = tmp_path / "test.ogfcap"
    if before is not None:
        path.write_bytes(before)
    output = OutputFile(path, never)
    output.begin().write(b"today")
    output.close()
    assert path.read_bytes() == b"today"


def test_a_path_that_cannot_be_written_is_known_at_once(tmp_path: Path) -> None:
    """The message names path and reason."""
    path = tmp_path / "none" / "test.ogfcap"
    with pytest.raises(TargetError, match=r"cannot write .*test\.ogfcap: No such file"):
        open_output(path, never).__enter__()


def test_devices_can_be_written_to() -> None:
    """They cannot be cut, and stay."""
    with open_output(Path(os.devnull), never) as output:
        assert output is not None
        output.begin().write(b"x")
    assert Path(os.devnull).exists()


def test_no_path_is_no_file() -> None:
    """A recording for its summary only."""
    with open_output(None, never) as output:
        assert output is None


def test_a_pipe_waits_for_its_reader(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is said once; what is written then waits for the reader, as in any pipe."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    received: list[bytes] = []

    def read() -> None:
        while "waiting until somebody reads" not in caplog.text:
            time.sleep(0.01)
        with path.open("rb") as file:
            received.append(file.read())

    reader = threading.Thread(target=read)
    reader.start()
    data = bytes(1 << 20)
    with open_output(path, never) as output:
        assert output is not None
        left = memoryview(data)
        while left:
            left = left[output.begin().write(left) :]
    reader.join()
    assert received == [data]
    assert caplog.text.count("waiting until somebody reads") == 1


def test_a_pipe_that_nobody_reads_is_given_up_when_told(tmp_path: Path) -> None:
    """Ctrl-C ends the wait, and the pipe stays."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    answers = iter([False, False, True])
    with (
        pytest.raises(TargetError, match="nobody reads from this pipe"),
        open_output(path, lambda: next(answers)),
    ):
        pytest.fail("opened")
    assert path.is_fifo()
