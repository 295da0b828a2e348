"""A profiler is switched from outside, in the program's own thread, and at no other time."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.benchmarks.profiler_switch import ProfilerSwitch, SwitchedProfiler


class Program:
    """Makes steps in a thread of its own until it is told to end."""

    def __init__(self, path: Path) -> None:
        self.seen: list[tuple[str, int]] = []
        self._ended = threading.Event()
        self._profiler = SwitchedProfiler(path, self._profile)
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Program:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            self._profiler.follow()

    @contextlib.contextmanager
    def _profile(self) -> Iterator[None]:
        self.seen.append(("starts", threading.get_ident()))
        yield
        self.seen.append(("stops", threading.get_ident()))


def test_profiler_runs_when_it_is_told_to(tmp_path: Path) -> None:
    """Two times on and off: a profiler of its own each time, in the program's thread, done when `turn` returns."""
    switch = ProfilerSwitch(tmp_path / "switch")
    with Program(tmp_path / "switch") as program:
        for on in (True, False, True, False):
            switch.turn(on=on)
            assert program.seen[-1][0] == ("starts" if on else "stops")
        switch.turn(on=False)
    assert [what for what, _ in program.seen] == ["starts", "stops"] * 2
    assert {thread for _, thread in program.seen} != {threading.get_ident()}


def test_program_that_does_not_follow_is_an_error(tmp_path: Path) -> None:
    """Nobody looks at the file."""
    with pytest.raises(TimeoutError, match="does not switch"):
        ProfilerSwitch(tmp_path / "switch").turn(on=True, limit_s=0)
