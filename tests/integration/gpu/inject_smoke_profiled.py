"""A recording beside torch.profiler, which must count what it counts without us, while the recording goes on.

    make native bpf && python -m tests.integration.gpu.inject_smoke_profiled

What records is `LiveCapture` with its probes; where BPF cannot be loaded, the GPU side of it alone ("probes": false),
which then comes back only after a minute, and that is not waited for. Each line of output is a JSON object; "ok": false
says what to look at.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from otel_gpuflame.capture.cupti.source import GpuSource
from otel_gpuflame.capture.live import LiveCapture, LiveOptions
from otel_gpuflame.errors import SourceUnavailable
from otel_gpuflame.events.executions import Executions, ExecutionsEnd
from otel_gpuflame.events.records import Event
from otel_gpuflame.events.wire_gpu import GpuKind, LibraryState
from tests.integration.gpu.smoke_app import STEPS, App, is_equal, profiled_steps, report
from tests.integration.inject.region import Region, wait_for

MODE = "record"
STEP_NS = 20_000_000
RUNS = 2
"""Profilers in a row."""


class Recorder(threading.Thread):
    """Records one process until told to end."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid = pid
        self._ended = threading.Event()
        self.events: list[Event] = []
        try:
            self._capture: LiveCapture | None = LiveCapture(LiveOptions(pids=(pid,), gpu=True))
        except SourceUnavailable as error:
            self._capture = None
            report(MODE, "probes", True, probes=False, error=str(error))

    @property
    def has_probes(self) -> bool:
        """Whether calls of CUPTI are seen."""
        return self._capture is not None

    def run(self) -> None:
        """All of it."""
        if self._capture is None:
            self._run_alone()
            return
        with self._capture as capture:
            while not self._ended.is_set():
                self.events += capture.step(STEP_NS)
            self.events += capture.finish()

    def _run_alone(self) -> None:
        source = GpuSource(str)
        source.begin(time.monotonic_ns())
        source.start()
        while not self._ended.wait(STEP_NS / 1e9):
            source.look([self._pid], time.monotonic_ns())
            self.events += source.step(time.monotonic_ns())
        source.finish()
        self.events += source.close(time.monotonic_ns())

    def finish(self) -> None:
        """Have it end."""
        self._ended.set()
        self.join()

    def kernels(self, begin_ns: int, end_ns: int) -> int:
        """Kernels that began between two times."""
        found = 0
        for event in self.events:
            if isinstance(event, Executions):
                rows = event.rows[event.rows["kind"] == GpuKind.KERNEL]
                found += int(((rows["start_ns"] >= begin_ns) & (rows["start_ns"] < end_ns)).sum())
        return found

    def windows(self) -> dict[str, int]:
        """How many ended for which reason."""
        return Counter(
            e.incomplete or "complete" for e in self.events if isinstance(e, ExecutionsEnd)
        )


@contextmanager
def recording(pid: int) -> Iterator[Recorder]:
    """A recorder of a running program."""
    recorder = Recorder(pid)
    recorder.start()
    try:
        yield recorder
    finally:
        recorder.finish()


def wait_until_recorded(region: Region) -> None:
    """Until a window is open."""
    wait_for(lambda: region.state == LibraryState.CAPTURING, "a window")


def train(app: App) -> tuple[int, int]:
    """When it began and ended."""
    begin_ns = time.monotonic_ns()
    app.do("steps", count=STEPS)
    return begin_ns, time.monotonic_ns()


def check_during(plain: dict[str, Any]) -> None:
    """Training, profilers in a row, training, in one recording."""
    app = App("window")
    region = Region(app.answer()["pid"])
    with recording(app.pid) as recorder:
        wait_until_recorded(region)
        before = train(app)
        for run in range(RUNS):
            seen = profiled_steps(app)
            report(MODE, f"torch.profiler {run}", is_equal(seen, plain), torch=seen, plain=plain)
        begin = time.monotonic()
        if recorder.has_probes:
            wait_until_recorded(region)
        back_s = time.monotonic() - begin
        after = train(app)
    app.end()
    wanted = plain["kernel"]
    found = {"before": recorder.kernels(*before), "after": recorder.kernels(*after)}
    # What CUPTI had not delivered when the profiler came is lost: at most what one flush finds. Its window says so.
    is_whole_or_marked = found["before"] == wanted or recorder.windows().get("other_client")
    ok = bool(found["before"] and is_whole_or_marked) and found["after"] in (
        (wanted,) if recorder.has_probes else (0,)
    )
    report(
        MODE,
        "recorded around torch.profiler",
        ok,
        wanted=wanted,
        back_s=back_s,
        windows=recorder.windows(),
        probes=recorder.has_probes,
        **found,
    )


def check_late(plain: dict[str, Any]) -> None:
    """The recording begins under the profiler, in a program that has had no window."""
    app = App("window")
    region = Region(app.answer()["pid"])
    app.do("profile_begin")
    with recording(app.pid) as recorder:
        wait_for(lambda: int(region.field("generation")) > 0, "an answer to the lease")
        app.do("steps", count=STEPS)
        seen = app.do("profile_end")
        report(MODE, "begun under torch.profiler", is_equal(seen, plain), torch=seen, plain=plain)
        if recorder.has_probes:
            wait_until_recorded(region)
            after = train(app)
    app.end()
    if recorder.has_probes:
        found = recorder.kernels(*after)
        ok = found == plain["kernel"]
        report(MODE, "recorded after it", ok, kernels=found, windows=recorder.windows())


def check_or_report(one: Callable[[dict[str, Any]], None], plain: dict[str, Any]) -> None:
    """One that fails leaves the other alone."""
    try:
        one(plain)
    except (RuntimeError, TimeoutError, OSError, AssertionError) as error:
        report(MODE, one.__name__, False, error=repr(error))


def check(plain: dict[str, Any]) -> None:
    """Both; `plain`: what torch.profiler counts without us."""
    for one in (check_during, check_late):
        check_or_report(one, plain)


def main() -> None:
    """Count without us, then beside us."""
    app = App(None)
    app.answer()
    plain = profiled_steps(app)
    app.end()
    check(plain)


if __name__ == "__main__":
    main()
