"""The injected library beside a real driver and a real CUPTI: counts, joins, torch.profiler, in one minute.

    make native && python -m tests.integration.gpu.inject_smoke [init window late]

For each way of switching launch records (OTEL_GPUFLAME_INJECT_API) one program runs, and beside them one without the
library, all at once. Then programs that launch at once (inject_smoke_start.py). Each line of output is a JSON object;
"ok": false says what to look at.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.events.wire_gpu import RECORD, GpuKind, Incomplete, LibraryCounter
from tests.integration.gpu import inject_smoke_start
from tests.integration.inject.region import Region

ROOT = Path(__file__).parents[3]
LIBRARY = ROOT / "otel_gpuflame" / "_artifacts" / "libogf_inject.so"
APP = Path(__file__).with_name("inject_smoke_app.py")
STEPS = 50
REPLAYS = 20
SWITCHES = 20
POLL_S = 0.02
EXECUTIONS = (GpuKind.KERNEL, GpuKind.COPY, GpuKind.SET)


class App:
    """A target program and its answers."""

    def __init__(self, mode: str | None) -> None:
        values = {**os.environ, "PYTHONPATH": str(ROOT)}
        if mode is not None:
            values |= {"CUDA_INJECTION64_PATH": str(LIBRARY), "OTEL_GPUFLAME_INJECT_API": mode}
        self.process = subprocess.Popen(
            [sys.executable, str(APP)],
            env=values,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def answer(self) -> dict[str, Any]:
        """The next line."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            assert self.process.stderr is not None
            raise RuntimeError(self.process.stderr.read()[-2000:])
        result: dict[str, Any] = json.loads(line)
        return result

    def do(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Have it do something."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": command, **arguments}) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def end(self) -> tuple[float, int, str]:
        """Seconds until it has ended, its status, its stderr."""
        begin = time.monotonic()
        _, errors = self.process.communicate(timeout=60)
        return time.monotonic() - begin, self.process.returncode, errors


class Collector(threading.Thread):
    """Reads the ring while a window is open, and checks what the library says about completeness."""

    def __init__(self, region: Region) -> None:
        super().__init__(daemon=True)
        self.region = region
        self.batches: list[NDArray[np.void]] = []
        self.promised: list[int] = []
        self.ended = threading.Event()

    def step(self) -> None:
        """One reading; complete_ns, read before, counts for what comes later."""
        self.promised.append(int(self.region.field("complete_ns")))
        self.batches.append(self.region.read())

    def run(self) -> None:
        """Until told to end."""
        while not self.ended.wait(POLL_S):
            self.step()

    def finish(self) -> NDArray[np.void]:
        """All records."""
        self.ended.set()
        self.join()
        self.step()
        return np.concatenate(self.batches)

    def broken_promises(self) -> int:
        """Records that came after all of launches that had returned by then were said to be there."""
        records = np.concatenate(self.batches)
        end_of = launch_times(records, "end_ns")
        broken, promise = 0, 0
        for batch, promised in zip(self.batches, self.promised, strict=True):
            for record in batch:
                launched = end_of.get(int(record["correlation_id"]))
                if record["kind"] in (GpuKind.API, *EXECUTIONS) and launched is not None:
                    broken += launched < promise
            promise = promised
        return broken


def launch_times(records: NDArray[np.void], field: str) -> dict[int, int]:
    """Correlation id -> begin or end of the launch."""
    launches = records[records["kind"] == GpuKind.API]
    ids, times = launches["correlation_id"].tolist(), launches[field].tolist()
    return dict(zip(ids, times, strict=True))


def summary(records: NDArray[np.void]) -> dict[str, Any]:
    """Counts by kind, and how well executions join launches."""
    launches = records[records["kind"] == GpuKind.API]
    executions = records[np.isin(records["kind"], EXECUTIONS)]
    begin_of = launch_times(records, "start_ns")
    begins = [begin_of.get(int(c)) for c in executions["correlation_id"]]
    joined = [
        (begin, int(start))
        for begin, start in zip(begins, executions["start_ns"], strict=True)
        if begin is not None
    ]
    closed = records[records["kind"] == GpuKind.WINDOW_CLOSE]["detail"]
    kernels = records[records["kind"] == GpuKind.KERNEL]
    return {
        **{kind.name.lower(): int((records["kind"] == kind).sum()) for kind in GpuKind if kind},
        "unjoined": len(executions) - len(joined),
        "unlaunched": len(launches) - len({*executions["correlation_id"].tolist()} & {*begin_of}),
        "before_launch": sum(start < begin for begin, start in joined),
        "no_time": int(((executions["start_ns"] == 0) | (executions["end_ns"] == 0)).sum()),
        "unnamed": int((kernels["name"] == 0).sum()),
        "kernel_us": float((kernels["end_ns"] - kernels["start_ns"]).sum()) / 1000,
        "threads": np.unique(launches["thread_pointer"])[:4].tolist(),
        "cbids": {
            int(c): int(n)
            for c, n in zip(*np.unique(launches["detail"], return_counts=True), strict=True)
        },
        "overheads": {
            int(d): int(n)
            for d, n in zip(
                *np.unique(
                    records[records["kind"] == GpuKind.OVERHEAD]["detail"], return_counts=True
                ),
                strict=True,
            )
        },
        "closed": [Incomplete(int(reason)).name for reason in closed],
    }


def report(mode: str, what: str, ok: bool, **facts: Any) -> None:
    """One line."""
    print(json.dumps({"mode": mode, "what": what, "ok": bool(ok), **facts}), flush=True)


@contextmanager
def window(region: Region, generation: int) -> Iterator[dict[str, Any]]:
    """A window around the work inside; afterwards, what was recorded in it."""
    result: dict[str, Any] = {}
    collector = Collector(region)
    region.read()
    begin = time.monotonic()
    region.open_window(generation)
    result["open_ms"] = (time.monotonic() - begin) * 1000
    collector.start()
    yield result
    begin = time.monotonic()
    region.close_window()
    result["close_ms"] = (time.monotonic() - begin) * 1000
    result |= summary(collector.finish())
    result["broken_promises"] = collector.broken_promises()


def is_sound(facts: dict[str, Any], plain: dict[str, Any] | None = None) -> bool:
    """A complete window in which every execution has its launch, with as many kernels as torch.profiler counts."""
    return (
        not any(
            facts[k] for k in ("unjoined", "before_launch", "no_time", "unnamed", "broken_promises")
        )
        and facts["closed"] == ["COMPLETE"]
        and (plain is None or facts["kernel"] == plain["kernel"])
    )


def check_windows(app: App, region: Region, mode: str, plain: dict[str, Any]) -> None:
    """Training and graph replays in windows, and many windows while the program goes on."""
    for generation, what in ((1, "train"), (2, "train again")):
        with window(region, generation) as facts:
            app.do("steps", count=STEPS)
        report(mode, what, is_sound(facts, plain), torch_profiler=plain, **facts)
    with window(region, 3) as facts:
        answer = app.do("replays", count=REPLAYS)
    is_right = facts["kernel"] == answer["kernels"] and is_sound(facts)
    report(mode, "graph", is_right, wanted=answer["kernels"], **facts)
    assert app.process.stdin is not None
    app.process.stdin.write(json.dumps({"do": "steps_for", "seconds": 4.0}) + "\n")
    app.process.stdin.flush()
    collector = Collector(region)
    collector.start()
    for generation in range(10, 10 + SWITCHES):
        region.open_window(generation)
        time.sleep(0.05)
        region.close_window()
    facts = summary(collector.finish())
    reasons = facts.pop("closed")
    app.answer()
    report(
        mode, "switching", reasons == ["COMPLETE"] * SWITCHES, closed=sorted(set(reasons)), **facts
    )


def check_profiler(app: App, region: Region, mode: str, plain: dict[str, Any]) -> None:
    """torch.profiler while we are dormant, in an open window, and with a window that opens under it."""
    app.do("profile_begin")
    app.do("steps", count=STEPS)
    seen = app.do("profile_end")
    report(
        mode,
        "torch.profiler while dormant",
        seen["kernel"] == plain["kernel"],
        torch=seen,
        plain=plain,
    )
    with window(region, 40) as facts:
        app.do("steps", count=STEPS)
    report(mode, "train after torch.profiler", is_sound(facts, plain), **facts)
    with window(region, 41) as facts:
        app.do("profile_begin")
        app.do("steps", count=STEPS)
        seen = app.do("profile_end")
    ok = seen["kernel"] == plain["kernel"] and facts["closed"] == ["OTHER_CLIENT"]
    report(mode, "torch.profiler in a window", ok, torch=seen, **facts)
    app.do("profile_begin")
    with window(region, 42) as facts:
        app.do("steps", count=STEPS)
    seen = app.do("profile_end")
    report(
        mode, "window under torch.profiler", seen["kernel"] == plain["kernel"], torch=seen, **facts
    )
    with window(region, 43) as facts:
        app.do("steps", count=STEPS)
    report(mode, "train at last", is_sound(facts, plain), **facts)


def check(mode: str, app: App, plain: dict[str, Any]) -> None:
    """All of it, for one way of switching launch records."""
    hello = app.answer()
    region = Region(hello["pid"])
    report(
        mode,
        "library",
        int(region.field("error")) == 0,
        state=region.state.name,
        cupti_version=int(region.field("cupti_version")),
        main_thread=hello.get("thread", 0) & 0xFFFFFFFF,
    )
    check_windows(app, region, mode, plain)
    report(
        mode,
        "devices",
        int(region.field("device_count")) > 0,
        devices=[
            str(device["model"]) + bytes(device["uuid"]).hex()
            for device in region.field("devices")[: int(region.field("device_count"))]
        ],
    )
    check_profiler(app, region, mode, plain)
    region.open_window(99)
    app.do("steps", count=5)
    seconds, status, errors = app.end()
    counters = {counter.name.lower(): region.counter(counter) for counter in LibraryCounter}
    report(
        mode,
        "exit in a window",
        status == 0 and seconds < 5,
        seconds=seconds,
        status=status,
        stderr=errors[-1000:],
        **counters,
    )


def check_bare_init(mode: str | None) -> None:
    """A program with the driver alone: its cuInit ends, and it sees no difference but some milliseconds."""
    program = "import ctypes; raise SystemExit(ctypes.CDLL('libcuda.so.1').cuInit(0))"
    values = dict(os.environ)
    if mode is not None:
        values |= {"CUDA_INJECTION64_PATH": str(LIBRARY), "OTEL_GPUFLAME_INJECT_API": mode}
    begin = time.monotonic()
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, env=values, capture_output=True, text=True, check=False, timeout=30
    )
    seconds = time.monotonic() - begin
    ok = (done.returncode, done.stdout, done.stderr) == (0, "", "")
    report(mode or "none", "bare cuInit", ok, seconds=seconds, status=done.returncode)


def check_or_report(mode: str, app: App, plain: dict[str, Any]) -> None:
    """One mode that fails leaves the others alone."""
    try:
        check(mode, app, plain)
    except (RuntimeError, TimeoutError, OSError, AssertionError) as error:
        report(mode, "failed", False, error=repr(error))
        app.process.kill()


def main() -> None:
    """Run the programs beside each other."""
    assert RECORD.itemsize == 96
    modes = sys.argv[1:] or ["init", "window", "late"]
    plain_app = App(None)
    apps = {mode: App(mode) for mode in modes}
    plain_app.answer()
    plain_app.do("profile_begin")
    plain_app.do("steps", count=STEPS)
    plain = plain_app.do("profile_end")
    plain_seconds, _, errors = plain_app.end()
    report(
        "none",
        "torch.profiler",
        plain["kernel"] > 0,
        torch=plain,
        exit_s=plain_seconds,
        stderr=errors[-500:],
    )
    checks = [
        threading.Thread(target=check_or_report, args=(mode, app, plain))
        for mode, app in apps.items()
    ]
    for thread in checks:
        thread.start()
    for thread in checks:
        thread.join()
    for bare in (None, "init"):
        check_bare_init(bare)
    inject_smoke_start.main()


if __name__ == "__main__":
    main()
