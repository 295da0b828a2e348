"""What the agent says at its start about rights that it lacks."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from otel_gpuflame.pipeline.agent import warn_of_unreadable_processes
from tests.unit.doctor.hosts import healthy, refused


def test_processes_that_cannot_be_read_are_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In the words of doctor, with the remedy."""
    warn_of_unreadable_processes(healthy(tmp_path, read_guarded_process=refused()))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.message == (
        "CAP_SYS_PTRACE: other users' processes cannot be read: no Python frames, no names, no description "
        "(Operation not permitted); run as root, or give CAP_SYS_PTRACE"
    )


def test_nothing_is_said_where_all_is_well(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A healthy host has no warning."""
    warn_of_unreadable_processes(healthy(tmp_path))
    assert not caplog.records
