"""Calls of a process that executes other programs, one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from otel_gpuflame.capture.bpf.decode import ProcessChange
from otel_gpuflame.capture.replaced import Replaced, ReplacedPrograms
from otel_gpuflame.events import wire
from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.events.records import CallArray

PROCESS, OTHER = ProcessKey(7, 70), ProcessKey(8, 80)


def program(name: str, exec_ns: int) -> Replaced:
    """A program that was replaced at this time."""
    change = ProcessChange(wire.ProcessChange.EXEC, PROCESS, ProcessKey(0, 0), exec_ns, "new")
    return Replaced(change, (("service.name", name),))


def calls(process: ProcessKey, *times_ns: int) -> CallArray:
    """Calls at these times."""
    rows: Any = np.zeros(len(times_ns), wire.CALL)
    rows["tgid"], rows["process_start_ns"] = process.tgid, process.start_ns
    rows["start_ns"] = times_ns
    return np.asarray(rows, wire.CALL)


@pytest.fixture
def rows() -> CallArray:
    """Calls of the process before, between and after two execs, and of somebody else."""
    return np.concatenate([calls(PROCESS, 5, 15, 20, 25), calls(OTHER, 5, 25)])


def times(rows: CallArray) -> list[tuple[int, int]]:
    """(pid, time) of each call."""
    return [(int(row["tgid"]), int(row["start_ns"])) for row in rows]


def test_calls_of_new_programs_wait_for_the_next_round(rows: CallArray) -> None:
    """Calls at the very time of the exec are the new program's; other processes do not wait."""
    programs = ReplacedPrograms()
    programs.add(program("first", 10))
    programs.add(program("second", 20))
    assert programs.pids == {7}
    assert times(programs.hold_back(rows)) == [(7, 5), (8, 5), (8, 25)]
    assert [each.former for each in programs.take()] == [
        (("service.name", "first"),),
        (("service.name", "second"),),
    ]
    joined = programs.join(calls(PROCESS, 30).view(np.uint8))
    assert times(joined) == [(7, 15), (7, 20), (7, 25), (7, 30)]
    assert times(programs.hold_back(joined)) == times(joined)
    assert len(programs.join(np.empty(0, np.uint8))) == 0


def test_calls_that_do_not_wait_are_of_the_program_before_the_first_exec() -> None:
    """However many programs the process has run since."""
    programs = ReplacedPrograms()
    assert programs.formers() == {}
    programs.add(program("first", 10))
    programs.add(program("second", 20))
    assert programs.formers() == {PROCESS: (("service.name", "first"),)}
    programs.take()
    assert programs.formers() == {}


def test_calls_belong_to_a_program_by_their_time(rows: CallArray) -> None:
    """Only those of the process itself."""
    first = program("first", 15)
    assert times(rows[first.before(rows)]) == [(7, 5)]
    assert times(rows[first.after(rows)]) == [(7, 15), (7, 20), (7, 25)]
