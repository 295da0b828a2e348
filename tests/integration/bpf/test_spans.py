# SPDX-License-Identifier: Apache-2.0
"""Launches and waits belong to the span that was current in their thread, and to no other."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from otel_gpuflame.correlate.spans import SpanLink
from otel_gpuflame.events.wire import CallFlag, Kind
from otel_gpuflame.profile.sample_types import GPU_LAUNCH
from tests.fakes.build import app_command
from tests.integration.bpf.recording import ROOT, Recording, app, samples_of, total
from tests.integration.bpf.session import attach_and_record, record_in_step

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("bpf_tier")]


@pytest.fixture(scope="module")
def spans(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Recording:
    """Two threads with spans, recorded from before their first call to their end."""
    output = tmp_path_factory.mktemp("spans") / "test.ogfcap"
    recording = attach_and_record(output, app("spans", "--hold"), environment)
    assert recording.truth["publishes"] is True
    return recording


def expected(recording: Recording, key: str, kind: str) -> Counter[str]:
    """Calls by span id (`key`: of the active span or of its local root)."""
    counts: Counter[str] = Counter()
    for span in recording.truth["spans"]:
        counts[span[key]] += span[kind]
    return counts


def test_every_call_is_on_the_span_of_its_thread(spans: Recording) -> None:
    """Launches and waits of two threads with overlapping spans: each call has its own span's ids."""
    by_tid_and_span = {(s["tid"], s["trace_id"], s["span_id"]): s for s in spans.truth["spans"]}
    seen: Counter[tuple[tuple[int, str, str], int]] = Counter()
    for row in spans.capture.calls:
        if not row["flags"] & CallFlag.SPAN_SAMPLED:
            continue
        key = (int(row["tid"]), row["trace_id"].tobytes().hex(), row["span_id"].tobytes().hex())
        root = row["local_root_span_id"].tobytes().hex()
        assert root == by_tid_and_span[key]["root_span_id"]
        seen[key, int(row["kind"])] += 1
    for key, span in by_tid_and_span.items():
        assert seen.pop((key, Kind.LAUNCH)) == span["launches"]
        assert seen.pop((key, Kind.WAIT)) == span["waits"]
    assert not seen


def test_calls_outside_of_spans_and_in_unsampled_ones_have_no_link(spans: Recording) -> None:
    """Without a span, or with one that nobody stores, a sample has no link."""
    outside, unsampled = spans.truth["outside"], spans.truth["unsampled"]
    launches = spans.capture.kind(Kind.LAUNCH)
    has_span = (launches["flags"] & CallFlag.HAS_SPAN) != 0
    sampled = (launches["flags"] & CallFlag.SPAN_SAMPLED) != 0
    assert int((~has_span).sum()) == outside["launches"]
    assert int((has_span & ~sampled).sum()) == unsampled["launches"]
    unlinked = [s.value for s in spans.samples(GPU_LAUNCH) if s.link is None]
    assert sum(unlinked) == outside["launches"] + unsampled["launches"]


@pytest.mark.parametrize(
    ("mode", "key"), [(SpanLink.ACTIVE, "span_id"), (SpanLink.LOCAL_ROOT, "root_span_id")]
)
def test_samples_link_to_the_span_that_was_asked_for(
    spans: Recording, mode: SpanLink, key: str
) -> None:
    """`active` links to innermost spans, `local_root` to the request's first one; totals stay."""
    linked: Counter[str] = Counter()
    for sample in samples_of(spans.replayed(mode).bundles, GPU_LAUNCH):
        if sample.link is not None:
            linked[sample.link.span_id.hex()] += sample.value
    assert linked == expected(spans, key, "launches")


@pytest.mark.parametrize("mode", ["active", "local_root"])
def test_replay_selects_exactly_the_samples_of_one_span(spans: Recording, mode: str) -> None:
    """`replay --span-id` keeps what belongs to that span, and nothing else."""
    key = {"active": "span_id", "local_root": "root_span_id"}[mode]
    for span_id, launches in expected(spans, key, "launches").items():
        flags = ["--span-id", span_id, "--span-link", mode, "--folded", "-"]
        command = ["replay", str(spans.path), *flags, "--sample-type", "gpu_launch"]
        done = subprocess.run(
            [sys.executable, "-m", "otel_gpuflame", *command],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        values = [int(line.rpartition(" ")[2]) for line in done.stdout.splitlines()]
        assert sum(values) == launches


def test_replay_of_a_span_that_has_no_samples_says_so(spans: Recording) -> None:
    """An id that nothing belongs to is an error that names it, not an empty profile."""
    command = ["replay", str(spans.path), "--span-id", "00000000deadbeef"]
    done = subprocess.run(
        [sys.executable, "-m", "otel_gpuflame", *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "no sample belongs to span 00000000deadbeef" in done.stderr


def test_every_launch_of_concurrent_requests_is_on_its_own_span(
    output: Path, environment: dict[str, str]
) -> None:
    """Tasks, threads, pools and batches, 64 requests at a time: no launch without its span, none on another's."""
    recording = attach_and_record(output, app("served_requests", "--hold"), environment)
    truth = recording.truth
    assert truth["publishes"] is True
    rows = recording.capture.kind(Kind.LAUNCH)
    linked = (rows["flags"] & CallFlag.HAS_SPAN) != 0
    seen = Counter(row["span_id"].tobytes().hex() for row in rows[linked][["span_id"]])
    assert seen == truth["launches"]
    assert int((~linked).sum()) == truth["outside"] > 0
    roots = {
        (row["span_id"].tobytes().hex(), row["local_root_span_id"].tobytes().hex())
        for row in rows[linked][["span_id", "local_root_span_id"]]
    }
    assert roots == set(truth["roots"].items())


@pytest.mark.parametrize("held", [False, True], ids=["from its start", "held"])
def test_a_program_recorded_from_its_start_has_no_wrong_span(
    held: bool, output: Path, environment: dict[str, str]
) -> None:
    """Calls made before the recorder has found the published span may have none; all after that have the right one."""
    command = app_command("app_launch", 10_007, "--rate", 20_000, "--threads", 2, "--span")
    command += ["--hold"] * held
    recording = record_in_step(output, *command, environment=environment)
    threads = recording.truth["threads"]
    made = {(thread["tid"], thread["span_id"]): thread["launches"] for thread in threads}
    rows = recording.capture.kind(Kind.LAUNCH)
    linked = rows[(rows["flags"] & CallFlag.HAS_SPAN) != 0]
    seen = Counter(
        (int(row["tid"]), row["span_id"].tobytes().hex()) for row in linked[["tid", "span_id"]]
    )
    assert total(recording.samples(GPU_LAUNCH)) == sum(made.values()) == 10_007
    assert seen <= Counter(made)
    if held:
        assert seen == made
