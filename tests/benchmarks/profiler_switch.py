"""Switches a profiler inside a program from outside, between two of its steps: two numbers in a file that both map.

A program that looks at them once a step pays some 0.1 µs for it, whether or not the profiler runs.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Final

_BYTES: Final = 16
_WANTED, _REACHED = range(2)
_LIMIT_S: Final = 60.0
"""The first start loads the profiler; to stop it means to read all that it recorded."""
_PAUSE_S: Final = 0.001


def _mapped(path: Path) -> memoryview[int]:
    with path.open("rb+") as file:
        return memoryview(mmap.mmap(file.fileno(), _BYTES)).cast("q")


class SwitchedProfiler:
    """The program's side: `make` gives a profiler that runs while its context is open."""

    def __init__(self, path: Path, make: Callable[[], AbstractContextManager[object]]) -> None:
        self._words = _mapped(path)
        self._make = make
        self._running = ExitStack()

    def follow(self) -> None:
        """Start or stop it, if that is wanted."""
        wanted = self._words[_WANTED]
        if wanted == self._words[_REACHED]:
            return
        if wanted:
            self._running.enter_context(self._make())
        else:
            self._running.close()
        self._words[_REACHED] = wanted


class ProfilerSwitch:
    """The other side. It makes the file, so it is there first."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(_BYTES))
        self._words = _mapped(path)

    def turn(self, *, on: bool, limit_s: float = _LIMIT_S) -> None:
        """Returns when the program has done it. Raises TimeoutError when it does not."""
        self._words[_WANTED] = int(on)
        until_s = time.monotonic() + limit_s
        while self._words[_REACHED] != int(on):
            if time.monotonic() > until_s:
                raise TimeoutError("the program does not switch its profiler")
            time.sleep(_PAUSE_S)
