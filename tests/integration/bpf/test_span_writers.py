# SPDX-License-Identifier: Apache-2.0
"""Publishers written from the specification that stop in the middle, break the rules, or die: never a wrong span."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from otel_gpuflame.correlate.spans import SpanLink
from otel_gpuflame.events.wire import CallFlag, Kind
from otel_gpuflame.profile.sample_types import GPU_LAUNCH
from tests.fakes.build import FAKES
from tests.fakes.steps import STAYS
from tests.integration.bpf.recording import Recording, samples_of, total
from tests.integration.bpf.session import (
    GrowingFile,
    attach_and_record,
    attached,
    finished,
    running,
)

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("bpf_tier")]

PROGRAMS = Path(__file__).parent / "programs"
SOURCE = PROGRAMS / "span_writer.c"
OPENER = PROGRAMS / "opens_library.c"
RACED_LAUNCHES = 5000


@pytest.fixture(scope="module", params=["program", "opened library"])
def writer(
    tmp_path_factory: pytest.TempPathFactory, fakes: Path, request: pytest.FixtureRequest
) -> Path:
    """`span_writer.c` on the fake driver.

    What exports the thread-local pointer is the program itself (static TLS), or a library that it opens and that is too
    large for static TLS: each thread has it elsewhere.
    """
    program = tmp_path_factory.mktemp("writer") / "span_writer"
    base = ("cc", "-std=gnu11", "-O2", "-pthread", f"-I{FAKES / 'cuda'}")
    driver = (f"-L{fakes}", "-l:libcuda.so.1")
    if request.param == "program":
        command = [*base, "-rdynamic", "-o", str(program), str(SOURCE), *driver]
        subprocess.run(command, check=True)
        return program
    library = program.with_name("libwriter.so")
    dynamic = ("-shared", "-fPIC", "-ftls-model=global-dynamic", f"-DTLS_PADDING={1 << 20}")
    named = ("-Dmain=writer_main", "-o", str(library))
    subprocess.run([*base, *dynamic, *named, str(SOURCE), *driver], check=True)
    opening = (f'-DLIBRARY="{library}"', "-o", str(program), str(OPENER))
    subprocess.run([*base, *opening, *driver], check=True)
    return program


State = dict[str, Any]


def seen_states(recording: Recording, states: Sequence[State]) -> list[State]:
    """What was recorded of the launches of each state: they come one after the other."""
    rows = recording.capture.kind(Kind.LAUNCH)
    rows = rows[rows["start_ns"].argsort()]
    assert len(rows) == sum(state["launches"] for state in states)
    found = []
    for state in states:
        some, rows = rows[: state["launches"]], rows[state["launches"] :]
        kinds = {
            (
                row["trace_id"].tobytes().hex() if row["flags"] & CallFlag.HAS_SPAN else "",
                row["span_id"].tobytes().hex() if row["flags"] & CallFlag.HAS_SPAN else "",
                row["local_root_span_id"].tobytes().hex()
                if row["flags"] & CallFlag.HAS_LOCAL_ROOT
                else "",
                bool(row["flags"] & CallFlag.SPAN_SAMPLED),
            )
            for row in some
        }
        assert len(kinds) == 1, (state, kinds)
        names = ("trace_id", "span_id", "root", "sampled")
        found.append({**state, **dict(zip(names, kinds.pop(), strict=True))})
    return found


def linked(recording: Recording, mode: SpanLink) -> dict[str, int]:
    """Launches by the span that samples are linked to, "" for none; the books have the same."""
    result = recording.replayed(mode)
    by_span: dict[str, int] = {}
    for sample in samples_of(result.bundles, GPU_LAUNCH):
        span_id = sample.link.span_id.hex() if sample.link is not None else ""
        by_span[span_id] = by_span.get(span_id, 0) + sample.value
    counts = {outcome: n for (kind, outcome), n in result.ledger.links.items() if kind == "launch"}
    assert counts.pop("linked", 0) == sum(n for span_id, n in by_span.items() if span_id)
    assert sum(counts.values()) == by_span.get("", 0)
    return by_span


def expected(states: Sequence[State], mode: SpanLink) -> dict[str, int]:
    """The same, from what the program says that it did."""
    by_span: dict[str, int] = {}
    for state in states:
        is_linked = state["sampled"] and int(state["span_id"] or "0", 16)
        root = state["root"] if mode is SpanLink.LOCAL_ROOT else ""
        span_id = (root or state["span_id"]) if is_linked else ""
        by_span[span_id] = by_span.get(span_id, 0) + state["launches"]
    return by_span


@pytest.mark.parametrize("what", ["stops", "lies"])
def test_each_launch_has_what_is_published_at_that_moment(
    what: str, writer: Path, output: Path, environment: dict[str, str]
) -> None:
    """And nothing where the record is not valid, half written, gone, out of reach, or of a thread that has ended."""
    recording = attach_and_record(output, [str(writer), what], environment)
    states = recording.truth["states"]
    assert len(states) > 10
    assert seen_states(recording, states) == states
    for mode in SpanLink:
        assert linked(recording, mode) == expected(states, mode)


def test_the_local_root_goes_by_its_published_name(
    writer: Path, output: Path, environment: dict[str, str]
) -> None:
    """An attribute that looks like one is none; what was learned holds when the context is withdrawn in a request."""
    names = ["http.route", "a", "b", "local_root_span_id"]
    attribute = KeyValue(key="threadlocal.attribute_key_map")
    attribute.value.array_value.values.extend(AnyValue(string_value=name) for name in names)
    message = attribute.SerializeToString()
    context = bytes([2 << 3 | 2, len(message)]) + message
    recording = attach_and_record(output, [str(writer), "names", context.hex()], environment)
    states = recording.truth["states"]
    assert len(states) == 3
    assert seen_states(recording, states) == states
    for mode in SpanLink:
        assert linked(recording, mode) == expected(states, mode)


def test_a_record_that_another_thread_rewrites_costs_no_launch(
    writer: Path, output: Path, environment: dict[str, str]
) -> None:
    """Whatever is read is the publisher's own nonsense: all launches are there, linked or counted as not."""
    recording = attach_and_record(output, [str(writer), "races"], environment)
    by_span = linked(recording, SpanLink.ACTIVE)
    assert sum(by_span.values()) == RACED_LAUNCHES
    assert len(recording.capture.kind(Kind.LAUNCH)) == RACED_LAUNCHES


def test_a_program_that_is_replaced_in_a_span_leaves_none_behind(
    writer: Path, output: Path, environment: dict[str, str]
) -> None:
    """The thread goes on as another program, which has no span until it publishes one."""
    recording = attach_and_record(output, [str(writer), "exec"], environment)
    states = [state for truth in recording.truths for state in truth["states"]]
    assert [state["state"] for state in states] == ["in a span", "another program", "in a span"]
    assert seen_states(recording, states) == states


def test_a_program_that_is_killed_in_a_span(
    writer: Path, output: Path, environment: dict[str, str]
) -> None:
    """What it did until then is on its span, all of it."""
    with running([str(writer), "killed"], {**environment, STAYS: "1"}) as target:
        assert target.truth()["ready"] is True
        with attached(output, target.process.pid) as recorder:
            target.go()
            states = target.truth(1)["states"]
            GrowingFile(output).wait_for(recorder, time.monotonic_ns())
            target.process.send_signal(signal.SIGKILL)
            assert target.finish() == -signal.SIGKILL
            recording = finished(recorder, output)
    assert recording.exit_code == 0, recording.stderr
    assert seen_states(recording, states) == states
    assert total(recording.samples(GPU_LAUNCH)) == states[0]["launches"]
    assert recording.capture.pending() == {}
