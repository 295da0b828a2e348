"""The thread that makes unwind tables: the round of the live source asks, and does not wait."""

from __future__ import annotations

import logging
import os
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

_NICE: Final = 10
"""Applications go first: a table that comes later costs a few frames."""
_LOOK_S: Final = 10.0
"""How often unused tables are looked for when nobody asks for anything."""


class _Request(NamedTuple):
    process: ProcessKey
    addresses: tuple[int, ...] = ()
    """That stacks met without a table."""
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
        self._is_ending = False
        self._failed = 0

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def want(self, process: ProcessKey, addresses: Iterable[int]) -> None:
        """A stack has met `addresses` without a table for some of them."""
        self._requests.put(_Request(process, addresses=tuple(addresses)))

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
        # Of this thread alone: Linux has a nice value for each.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        while True:
            try:
                request = self._requests.get(timeout=_LOOK_S)
            except Empty:
                self._files.free_unused(time.monotonic_ns())
                continue
            if request is None or self._is_ending:
                return
            self._serve_safely(request)

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
            self._processes.want(request.process, request.addresses, now_ns)
