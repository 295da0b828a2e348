# SPDX-License-Identifier: Apache-2.0
"""What `record` writes to need not be a file, and need not take everything."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from otel_gpuflame.events.wire import Kind
from tests.fakes.build import app_command
from tests.integration.bpf.recording import Recording, record

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("bpf_tier")]

LAUNCHES = 23
FULL = Path("/dev/full")


def record_through_pipe(
    tmp_path: Path, reader: list[str], command: list[str], environment: dict[str, str]
) -> tuple[Recording, Path]:
    """Record into a FIFO from which another program reads; what came out at its other end."""
    pipe, received = tmp_path / "pipe", tmp_path / "received.ogfcap"
    os.mkfifo(pipe)
    with pipe_reader(reader, pipe, received) as process:
        recording = record(pipe, *command, environment=environment)
        assert process.wait(60) == 0
    return recording, received


def pipe_reader(reader: list[str], pipe: Path, received: Path) -> subprocess.Popen[bytes]:
    """A shell opens both, so that neither end waits for the other here."""
    script = 'exec "$@" <"$0" >"$RECEIVED"'
    return subprocess.Popen(
        ["sh", "-c", script, str(pipe), *reader], env={**os.environ, "RECEIVED": str(received)}
    )


def test_a_pipe_gets_the_whole_recording(tmp_path: Path, environment: dict[str, str]) -> None:
    """As `-o >(zstd …)` has it; tables and the end are those of any recording."""
    recording, received = record_through_pipe(
        tmp_path, ["cat"], app_command("app_launch", LAUNCHES), environment
    )

    assert recording.exit_code == 0, recording.stderr
    assert f"{recording.path}: " in recording.stderr
    assert "Look at it" not in recording.stderr
    whole = Recording(received, 0, recording.stdout, recording.stderr)
    assert len(whole.capture.kind(Kind.LAUNCH)) == whole.truth["launches"] == LAUNCHES


def test_a_pipe_that_nobody_reads_any_more_ends_the_file_only(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    """The program runs to its end, its calls are in the tables, and the exit code says that the file is not whole."""
    launches = 100_003
    command = app_command("app_launch", launches, "--rate", 50_000)
    recording, received = record_through_pipe(
        tmp_path, ["head", "-c", "1000"], command, environment
    )

    assert recording.exit_code == 1, recording.stderr
    assert received.stat().st_size == 1_000
    assert recording.stderr.count("the file ends here: Broken pipe") == 1
    assert_tables(recording, launches)


def test_a_full_disk_costs_the_file_only(environment: dict[str, str]) -> None:
    """Nothing can be written at all: the summary is there all the same, and exit code 1."""
    recording = record(FULL, *app_command("app_launch", LAUNCHES), environment=environment)

    assert recording.exit_code == 1, recording.stderr
    assert recording.stderr.count("the file ends here: No space left on device") == 1
    assert "not the whole recording: No space left on device" in recording.stderr
    assert_tables(recording, LAUNCHES)


def test_the_exit_code_of_a_failed_command_goes_first(environment: dict[str, str]) -> None:
    """Whoever asks for it wants to know how the command ended."""
    recording = record(FULL, "sh", "-c", "exit 7", environment=environment)

    assert recording.exit_code == 7, recording.stderr
    assert "the file ends here" in recording.stderr


def assert_tables(recording: Recording, launches: int) -> None:
    """The program made them all, and they are in the books that are printed at the end."""
    assert "Traceback" not in recording.stderr
    assert recording.truth["launches"] == launches
    assert f"{launches:,}" in recording.stderr
