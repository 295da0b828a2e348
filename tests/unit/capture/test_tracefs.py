# SPDX-License-Identifier: Apache-2.0
"""Fields of tracepoints, from the text in which the kernel describes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_gpuflame.capture.bpf import tracefs

FORMAT = """\
name: sched_switch
ID: 309
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

\tfield:char prev_comm[16];\toffset:8;\tsize:16;\tsigned:0;
\tfield:pid_t prev_pid;\toffset:24;\tsize:4;\tsigned:1;
\tfield:long prev_state;\toffset:32;\tsize:8;\tsigned:1;
\tfield:__data_loc char[] next_name;\toffset:40;\tsize:4;\tsigned:0;

print fmt: "prev_comm=%s offset:%d;", REC->prev_comm, REC->prev_pid
"""


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A mount point with one tracepoint."""
    folder = tmp_path / "events/sched/sched_switch"
    folder.mkdir(parents=True)
    (folder / "format").write_text(FORMAT)
    (folder / "id").write_text("309\n")
    monkeypatch.setattr(tracefs, "_MOUNT_POINTS", (tmp_path / "nowhere", tmp_path))
    monkeypatch.setattr(tracefs, "detached_mount", lambda _filesystem: None)
    return tmp_path


def test_each_field_has_its_offset(mounted: Path) -> None:
    """Common ones, plain ones, arrays, and those whose data lie elsewhere."""
    assert tracefs.tracepoint_fields("sched", "sched_switch") == {
        "common_type": 0,
        "common_pid": 4,
        "prev_comm": 8,
        "prev_pid": 24,
        "prev_state": 32,
        "next_name": 40,
    }


def test_the_number_is_read_from_whatever_is_mounted(mounted: Path) -> None:
    """The first mount point that has it."""
    assert tracefs.tracepoint_id("sched", "sched_switch") == 309


def test_an_unknown_tracepoint_has_neither(mounted: Path) -> None:
    """And it is no error."""
    assert tracefs.tracepoint_id("sched", "other") is None
    assert tracefs.tracepoint_fields("sched", "other") == {}
