# SPDX-License-Identifier: Apache-2.0
"""What threads do on the CPU, and what keeps them off it, with their Python lines."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from otel_gpuflame.events.apis import CPU_SAMPLES_HZ
from otel_gpuflame.events.frames import FrameKind, StackKey
from otel_gpuflame.events.records import CallArray
from otel_gpuflame.events.wire import Kind
from otel_gpuflame.profile.sample_types import CPU_SAMPLES, OFF_CPU
from tests.integration.bpf.recording import Capture, Recording, Sample, app, record, total
from tests.integration.bpf.session import record_in_step, running
from tests.integration.bpf.test_interpreters import SUPPORTED, interpreters

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("bpf_tier")]

CPU_SIDE: Final = ("--cpu", "--no-driver")
BUSY_NS: Final = 4_000_000_000
ENDLESS_NS: Final = 10**15
SPINNING: Final = ("<module>", "main", "spin_on_cpu")
OFF_CPU_FROM_NS: Final = 1_000_000
MOST: Final = 0.9
ATTEMPTS: Final = 5
"""Recordings of 50 samples: where a page of an outer frame stays unreadable for 50 ms, 6 of them are cut."""


@pytest.fixture(scope="module")
def busy(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """A program that uses a CPU for 4 s, recorded while another one does the same."""
    output = tmp_path_factory.mktemp("busy") / "busy.ogfcap"
    with running(app("busy", ENDLESS_NS), environment):
        command = app("busy", BUSY_NS, "--hold")
        return record_in_step(output, *command, environment=environment, options=CPU_SIDE)


@pytest.fixture(scope="module")
def sleeps(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """A program with a thread that sleeps long, and one that sleeps briefly."""
    output = tmp_path_factory.mktemp("sleeps") / "sleeps.ogfcap"
    command = app("sleeps", "--hold")
    return record_in_step(output, *command, environment=environment, options=CPU_SIDE)


def durations_ns(rows: CallArray) -> list[int]:
    """How long each of the rows lasted."""
    durations: list[int] = (rows["end_ns"] - rows["start_ns"]).astype(np.int64).tolist()
    return durations


def at_line(capture: Capture, rows: CallArray, function: str, line: int) -> CallArray:
    """Rows whose innermost Python frame is this line."""
    chosen = []
    for index, (high, low) in enumerate(rows["stack_hash"].tolist()):
        stack = capture.stacks.get(StackKey(high, low))
        python = [f for f in stack.frames if f.kind is FrameKind.PYTHON] if stack else []
        if python and (python[-1].name, python[-1].line) == (function, line):
            chosen.append(index)
    return rows[chosen]


def share_of_whole(spinning: list[Sample]) -> float:
    """Of samples with the program's three functions. All others lack outer ones, and say so.

    A page that the kernel moves just then, as it does on a busy machine, cannot be read.
    """
    names = [tuple(name for name, _ in s.python()) for s in spinning]
    for sample, found in zip(spinning, names, strict=True):
        assert found == SPINNING[-len(found) :], sample
        assert found == SPINNING or "[Python stack cut]" in sample.marks(), sample
    whole = [s for s, found in zip(spinning, names, strict=True) if found == SPINNING]
    return total(whole) / total(spinning)


def test_samples_are_as_many_as_the_cpu_time_says(busy: Recording) -> None:
    """A second of CPU time, as the program measures it, is 99 samples, and all have the function's name.

    A sample is due every 10 ms of the clock, and hits the program or not: where it has the CPU half of the time, the
    count is a binomial. Twice or half as many samples are not within this on any machine.
    """
    assert busy.exit_code == 0, busy.stderr
    samples = [s for s in busy.samples(CPU_SAMPLES) if "spin_on_cpu" in dict(s.python())]
    truth = busy.truth
    expected = CPU_SAMPLES_HZ * truth["cpu_ns"] / 1e9
    share = min(truth["cpu_ns"] / truth["elapsed_ns"], 1)
    allowed = 0.1 * expected + 5 * math.sqrt(expected * (1 - share))
    assert expected - allowed <= total(samples) <= expected + allowed + truth["stolen"]
    assert share_of_whole(samples) > MOST


def test_other_processes_are_not_sampled(busy: Recording) -> None:
    """A program that was not to be recorded, and the recorder itself, leave no event.

    The busy thread never sleeps: it is off the CPU only where the machine gives its CPU to another.
    """
    rows = busy.capture.rows
    kinds = set(rows["kind"].tolist())
    assert {Kind.CPU_SAMPLE} <= kinds <= {Kind.CPU_SAMPLE, Kind.OFF_CPU}
    assert set(rows["tgid"].tolist()) == {busy.truth["pid"]}


def test_books_of_thread_times_balance(busy: Recording, sleeps: Recording) -> None:
    """What the source has seen is in the file, and in the profile."""
    for recording in (busy, sleeps):
        assert recording.capture.pending() == {}
        accounts = {a.kind: a for a in recording.result.ledger.accounts()}
        assert set(accounts) <= {"cpu_sample", "off_cpu"}
        for account in accounts.values():
            rows = recording.capture.kind(Kind[account.kind.upper()])
            assert account.seen == account.profiled == len(rows)
        samples = total(recording.samples(CPU_SAMPLES))
        assert samples == len(recording.capture.kind(Kind.CPU_SAMPLE))
        off_cpu_ns = sum(durations_ns(recording.capture.kind(Kind.OFF_CPU)))
        assert total(recording.samples(OFF_CPU)) == off_cpu_ns


def test_a_sleep_is_off_the_cpu_at_its_line(sleeps: Recording) -> None:
    """Ten sleeps of 50 ms: no longer than the program has measured, and all that it did not use the CPU.

    Less than 1 ms of each time off the CPU may be missing, and the program knows how often it was off. That all the
    rest is there does not depend on stacks: on a busy machine a page may be unreadable for as long as a sleep takes.
    """
    assert sleeps.exit_code == 0, sleeps.stderr
    truth = sleeps.truth["sleep_long"]
    rows = sleeps.capture.kind(Kind.OFF_CPU)
    rows = rows[(rows["tid"] == truth["tid"]) & (rows["start_ns"] >= truth["begin_ns"])]
    off_ns = sum(durations_ns(rows[rows["end_ns"] <= truth["end_ns"]]))
    lines = [(s, s.python()[-1:]) for s in sleeps.samples(OFF_CPU)]
    at_line = [s for s, leaf in lines if leaf == [("sleep_long", truth["line"])]]
    measured_ns = sum(truth["durations_ns"])
    missing_ns = OFF_CPU_FROM_NS * truth["switches"]
    assert total(at_line) <= measured_ns
    assert off_ns >= measured_ns - truth["cpu_ns"] - missing_ns
    asleep = [
        s
        for s in at_line
        if [frame.name for frame in s.frames[-2:]] == ["clock_nanosleep", "[interruptible]"]
    ]
    # A program that loses the CPU on its way into a sleep sleeps less, once or twice in ten times.
    assert total(asleep) >= sleeps.truth["long_ns"] * len(truth["durations_ns"]) / 2


def test_short_times_off_the_cpu_are_left_out(sleeps: Recording) -> None:
    """Nothing below 1 ms is sent: of 300 sleeps of 0.2 ms at most those that a busy machine has made long."""
    rows = sleeps.capture.kind(Kind.OFF_CPU)
    assert min(durations_ns(rows)) >= OFF_CPU_FROM_NS
    truth = sleeps.truth["sleep_briefly"]
    of_thread = rows[rows["tid"] == truth["tid"]]
    brief = at_line(sleeps.capture, of_thread, "sleep_briefly", truth["line"])
    long_ones = [ns for ns in truth["durations_ns"] if ns >= OFF_CPU_FROM_NS]
    assert sum(durations_ns(brief)) <= sum(long_ones)


@pytest.mark.parametrize("version", SUPPORTED)
def test_samples_have_the_names_of_every_interpreter(
    version: str, output: Path, environment: dict[str, str]
) -> None:
    """A sample may fall anywhere into an instruction, and still finds the frames."""
    found = interpreters(version)
    if not found:
        pytest.skip(f"no Python {version} on this machine")
    command = app("busy", 500_000_000, "--hold", python=found[0])
    shares = []
    for _ in range(ATTEMPTS):
        recording = record_in_step(output, *command, environment=environment, options=CPU_SIDE)
        assert recording.truth["version"].startswith(f"{version}.")
        samples = recording.samples(CPU_SAMPLES)
        shares.append(share_of_whole([s for s in samples if "spin_on_cpu" in dict(s.python())]))
        if shares[-1] > MOST:
            return
    pytest.fail(f"in none of {ATTEMPTS} recordings most samples are whole: {shares}")


def test_nothing_is_taken_that_was_not_asked_for(output: Path, environment: dict[str, str]) -> None:
    """Without --cpu and --driver there are calls of the driver library, and nothing else."""
    options = ("--no-cpu", "--no-driver")
    recording = record(output, *app("busy", 200_000_000), environment=environment, options=options)
    assert recording.exit_code == 0
    assert len(recording.capture.rows) == 0
    assert recording.result.ledger.accounts() == ()


def test_replay_shows_the_cpu_profile(busy: Recording, tmp_path: Path) -> None:
    """`--sample-type samples` gives the usual CPU profile, and the books say how many samples there are."""
    path = tmp_path / "busy.folded"
    command = ["otel_gpuflame", "replay", busy.path, "--sample-type", "samples", "--folded", path]
    done = subprocess.run(
        [sys.executable, "-m", *map(str, command)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    folded = dict(line.rsplit(" ", 1) for line in path.read_text().splitlines())
    assert int(folded["<module>;main;spin_on_cpu"]) > 0
    assert f"{total(busy.samples(CPU_SAMPLES))} CPU samples" in done.stdout
