"""The thread that makes unwind tables: the round of the live source asks, and does not wait.

It is not nice. Whoever holds the interpreter's lock and has no processor keeps the rounds of the live source waiting,
and on a full machine a nice thread has none for long. What takes most of its time, the builder and copies of tables,
is done without the lock.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple

from otel_gpuflame.capture.unwinding.files import UnwindFiles
from otel_gpuflame.capture.unwinding.processes import ProcessMaps, UnwindProcesses
from otel_gpuflame.errors import OtelGpuflameError
from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.events.records import LossCount

logger = logging.getLogger(__name__)

_LOOK_S: Final = 10.0
"""How often unused tables are looked for."""
_PAGE: Final = ~0xFFF
"""Mappings begin and end with pages."""
_MAX_PAGES: Final = 4096
"""Of a process, that are waiting: 0.5 MB. What is left out comes with later stacks."""


class _Request(NamedTuple):
    process: ProcessKey
    has_changed: bool = False
    has_ended: bool = False


class TableFeeder:
    """Takes requests from one thread and serves them in another, in their order."""

    def __init__(self, maps: ProcessMaps, proc: Path = Path("/proc")) -> None:
        self._requests: SimpleQueue[_Request | None] = SimpleQueue()
        self._files = UnwindFiles(maps)
        self._processes = UnwindProcesses(maps, self._files, proc)
        self._thread = threading.Thread(target=self._run, name="unwind tables", daemon=True)
        self._changed: set[ProcessKey] = set()
        """Processes with a request for that which has not been begun with: a program maps its libraries in bursts."""
        self._wanted: dict[ProcessKey, set[int]] = {}
        """Pages of code that stacks met without a table, of processes with a request for them."""
        self._lock = threading.Lock()
        """Of `_wanted`."""
        self._is_ending = False
        self._failed = 0

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def want(self, process: ProcessKey, addresses: Iterable[int]) -> None:
        """A stack has met `addresses` without a table for some of them."""
        with self._lock:
            is_first = process not in self._wanted
            pages = self._wanted.setdefault(process, set())
            # A program may have thousands of stacks before its tables are made.
            if len(pages) < _MAX_PAGES:
                pages.update(address & _PAGE for address in addresses)
        if is_first:
            self._requests.put(_Request(process))

    def changed(self, process: ProcessKey) -> None:
        """The mappings of a process have changed."""
        if process not in self._changed:
            self._changed.add(process)
            self._requests.put(_Request(process, has_changed=True))

    def forget(self, process: ProcessKey) -> None:
        """A process has ended, or executes another program."""
        self._requests.put(_Request(process, has_ended=True))

    def counters(self) -> list[LossCount]:
        """Running totals, named like those of the symbolizer: what was made, and what could not be."""
        files = self._files
        found = {
            "unwind_tables": files.made,
            "unwind_tables_unreadable": files.refused + self._failed,
            "unwind_entries_unreadable": files.malformed,
            "unwind_files_unreadable": files.without,
        }
        return [LossCount("symbolize", name, count) for name, count in found.items() if count]

    def close(self) -> None:
        """End the thread; what it has not begun with is left undone. Safe to call twice, and before `start`."""
        self._is_ending = True
        if self._thread.is_alive():
            self._requests.put(None)
            self._thread.join()

    def _run(self) -> None:
        looked_s = time.monotonic()
        while True:
            request = self._next_request()
            if self._is_ending:
                return
            if request is not None:
                self._serve_safely(request)
            # Also where there is always somebody who asks.
            if time.monotonic() - looked_s >= _LOOK_S:
                looked_s = time.monotonic()
                self._files.free_unused(time.monotonic_ns())

    def _next_request(self) -> _Request | None:
        try:
            return self._requests.get(timeout=_LOOK_S)
        except Empty:
            return None

    def _serve_safely(self, request: _Request) -> None:
        try:
            self._serve(request)
        except (OSError, MemoryError, OtelGpuflameError) as error:
            # Its stacks go on as without a table, and each new one asks again.
            if not self._failed:
                logger.warning("an unwind table could not be made: %s", error)
            self._failed += 1

    def _serve(self, request: _Request) -> None:
        now_ns = time.monotonic_ns()
        if request.has_ended:
            self._processes.forget(request.process, now_ns)
        elif request.has_changed:
            # Before the mappings are read: what changes from now on asks again.
            self._changed.discard(request.process)
            self._processes.changed(request.process, now_ns)
        else:
            with self._lock:
                pages = self._wanted.pop(request.process)
            self._processes.want(request.process, pages, now_ns)
