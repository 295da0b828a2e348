# SPDX-License-Identifier: Apache-2.0
"""Calls recorded on an H200, made again by the fake driver, and recorded again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from otel_gpuflame.capture.replay import ReplaySource
from otel_gpuflame.events import wire
from otel_gpuflame.events.apis import BY_ID
from otel_gpuflame.events.records import CallArray, Calls
from otel_gpuflame.events.wire import Kind
from tests.fakes.build import app_command
from tests.fakes.transcript_from_capture import transcript_lines
from tests.integration.bpf.recording import ROOT, record

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("bpf_tier")]

H200 = ROOT / "examples" / "captures" / "h200_train.ogfcap"
CALLS = 1_009


def rows_of(path: Path) -> CallArray:
    """All GPU calls of a capture, without what its threads did besides."""
    with ReplaySource(path, call_dtype=wire.CALL) as source:
        rows = np.concatenate([e.rows for e in source.events() if isinstance(e, Calls)])
    return rows[rows["kind"] <= Kind.FREE]


def by_shape(rows: CallArray) -> Counter[tuple[str, tuple[int, ...], tuple[int, ...], int]]:
    """How often each API was called with each grid, block and size; copies capped as transcripts cap them."""
    return Counter(
        (
            BY_ID[int(row["api"])].name,
            tuple(row["grid"].tolist()),
            tuple(row["block"].tolist()),
            min(int(row["bytes"]), 64 << 20),
        )
        for row in rows
    )


def test_a_recording_made_again_is_recorded_the_same(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    """The first 1,009 calls of the H200 recording come back: APIs, grids, blocks and sizes."""
    transcript = tmp_path / "h200.transcript"
    transcript.write_text("\n".join(transcript_lines(str(H200), CALLS)) + "\n")
    output = tmp_path / "again.ogfcap"
    done = record(output, *app_command("app_replay", transcript), environment=environment)
    assert done.exit_code == 0, done.stderr
    made = by_shape(rows_of(H200)[: CALLS + 100])
    again = by_shape(rows_of(output))
    assert again.total() == CALLS
    assert not again - made
