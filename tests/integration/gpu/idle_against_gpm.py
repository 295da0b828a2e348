"""Idle times of a recording against the device's own counters, alone and beside a process that is not captured.

    make bpf native && python -m tests.integration.gpu.idle_against_gpm [--out DIRECTORY] [--seconds S] [--fake]

Needs root, a GPU with GPM and torch; takes about 40 s. With `--fake`, the doubles' environment
(tests/integration/inject/test_idle_against_gpm.py). Each line of output is a JSON object with `check` and `ok`:

* `recorded`: `record` ended well, and the recording has readings.
* `busy`: share of the time in which the device was busy, by GPM and by executions, over the same readings.
* `idle`: the same by `gpu_idle`; `unknown` is what of it is not known.
* `stranger_seen`: the counters told of the other process.
* `unknown`: share of the idle time that is unknown while the other process works, and before.

`busy` and `idle` are within `LIMIT`; the exit status is 1 if a check is not ok.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.capture.replay import ReplaySource
from otel_gpuflame.correlate.gpu.correlator import GpuCorrelator
from otel_gpuflame.correlate.gpu.inferred import InferredLaunches
from otel_gpuflame.correlate.gpu.timeline import busy_intervals
from otel_gpuflame.events import wire
from otel_gpuflame.events.attributions import ATTRIBUTION, Attributions, Leaf, Measure
from otel_gpuflame.events.device_metrics import DEVICE_METRIC, DeviceMetric, DeviceMetrics
from otel_gpuflame.events.executions import EXECUTION, Executions
from otel_gpuflame.events.records import Event
from otel_gpuflame.events.wire_gpu import GpuKind

LIMIT: Final = 0.03
SECONDS: Final = 13.0
MIN_COVERED_S: Final = 10.0
APP: Final = "tests.integration.gpu.app_pattern"
ROOT: Final = Path(__file__).parents[3]
UNKNOWN: Final = (Leaf.UNKNOWN_NOT_CAPTURED, Leaf.UNKNOWN_INCOMPLETE)
WORK: Final = (GpuKind.KERNEL, GpuKind.COPY, GpuKind.SET)
ONE_READING_NS: Final = 1_500_000_000
"""How far a reading reaches back and forth: readings are a second apart, and NVML is late by a sixth and more."""
END_S: Final = 300.0

Rows = NDArray[np.void]
Truth = dict[str, Any]


class Checks:
    """Prints each, and remembers whether all were ok."""

    def __init__(self) -> None:
        self.failed = False

    def say(self, check: str, *, ok: bool, **values: Any) -> None:
        """One line."""
        self.failed |= not ok
        print(json.dumps({"check": check, "ok": bool(ok), **values}), flush=True)


class Recording:
    """A capture, and what is made of it."""

    def __init__(self, path: Path) -> None:
        with ReplaySource(path, call_dtype=wire.CALL) as source:
            events = list(source.events())
        self.metrics = _rows(events, DeviceMetrics, DEVICE_METRIC)
        executions = _rows(events, Executions, EXECUTION)
        self.work = np.sort(executions[np.isin(executions["kind"], WORK)], order="start_ns")
        told = _rows(_correlated(events), Attributions, ATTRIBUTION)
        self.idle = told[told["measure"] == Measure.GPU_IDLE]
        devices, counts = np.unique(self.work["device"], return_counts=True)
        self.device = int(devices[counts.argmax()]) if len(devices) else -1

    def readings(self, start_ns: int, end_ns: int) -> Rows:
        """GPM's graphics utilisation of intervals that lie between two times."""
        rows = self.metrics[self.metrics["device"] == self.device]
        rows = rows[rows["metric"] == DeviceMetric.GRAPHICS_ACTIVE]
        begins_ns = rows["time_ns"] - rows["interval_ns"]
        chosen: Rows = rows[(begins_ns >= start_ns) & (rows["time_ns"] <= end_ns)]
        return chosen

    def busy_ns(self, start_ns: int, end_ns: int) -> int:
        """Nanoseconds between two times in which the device executed something."""
        busy = busy_intervals(self.work[self.work["device"] == self.device])
        starts, ends = (each.astype(np.int64) for each in (busy.start_ns, busy.end_ns))
        return int(np.clip(np.minimum(ends, end_ns) - np.maximum(starts, start_ns), 0, None).sum())

    def idle_ns(self, start_ns: int, end_ns: int) -> tuple[int, int]:
        """(known, unknown) nanoseconds of idle time that is told of between two times.

        A row stands for a piece of a gap between executions: of gaps that reach beyond, the part that lies inside.
        """
        rows = self.idle[self.idle["device"] == self.device]
        busy = busy_intervals(self.work[self.work["device"] == self.device])
        ends, starts = (each.astype(np.int64) for each in (busy.end_ns, busy.start_ns))
        gap_starts = np.concatenate(([0], ends))
        gap_ends = np.concatenate((starts, [np.iinfo(np.int64).max]))
        at = np.searchsorted(gap_starts, rows["time_ns"].astype(np.int64), "right") - 1
        # Before the first execution, and after the last, a row is the only one.
        lone = (at == 0) | (at == len(gap_starts) - 1)
        first = np.where(lone, rows["time_ns"].astype(np.int64), gap_starts[at])
        last = np.where(lone, first + rows["value_ns"], gap_ends[at])
        inside = np.clip(np.minimum(last, end_ns) - np.maximum(first, start_ns), 0, None)
        values = rows["value_ns"] * (inside / np.maximum(last - first, 1))
        is_unknown = np.isin(rows["leaf"], UNKNOWN)
        return round(values[~is_unknown].sum()), round(values[is_unknown].sum())

    def processes(self) -> dict[int, float]:
        """Mean share of each process that the counters told of."""
        rows = self.metrics[self.metrics["metric"] == DeviceMetric.PROCESS_SM]
        pids = np.unique(rows["tgid"]).tolist()
        return {pid: float(rows["value"][rows["tgid"] == pid].mean()) for pid in pids}


def _rows(events: Sequence[Event], kind: type[Any], dtype: np.dtype[Any]) -> Rows:
    found: Rows = np.concatenate(
        [np.empty(0, dtype), *(event.rows for event in events if isinstance(event, kind))]
    )
    return found


def _correlated(events: Sequence[Event]) -> list[Event]:
    inferred, correlator = InferredLaunches(), GpuCorrelator()
    joined = [each for event in events for each in inferred.feed(event)] + inferred.finish()
    return [each for event in joined for each in correlator.feed(event)] + correlator.finish()


class Program:
    """A program that prints lines of JSON."""

    def __init__(self, *command: str) -> None:
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            self._process.communicate(timeout=END_S)

    def lines(self) -> Iterator[Truth]:
        """What it says, until it ends."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                yield json.loads(line)

    def go(self) -> None:
        """Let one that holds go on."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def end(self) -> tuple[int, str]:
        """Exit status, and the end of what it wrote to stderr."""
        _, errors = self._process.communicate(timeout=END_S)
        return self._process.returncode, errors[-2000:]


def recorder(output: Path, *arguments: str) -> Program:
    """`record` of the pattern."""
    return Program(
        *(sys.executable, "-m", "otel_gpuflame", "record", "-q", "-o", str(output), "--"),
        *(sys.executable, "-m", APP, *arguments),
    )


def alone(checks: Checks, output: Path, seconds: float, flags: list[str]) -> None:
    """Busy and idle against GPM."""
    with recorder(output, "--seconds", str(seconds), "--duties", "0.2,0.5,0.8", *flags) as program:
        said = list(program.lines())
        code, errors = program.end()
    if code or not said or "end_ns" not in said[-1]:
        checks.say("recorded", ok=False, exit=code, stderr=errors)
        return
    truth, recording = said[-1], Recording(output)
    readings = recording.readings(truth["start_ns"], truth["end_ns"])
    has_readings = len(readings) > 0
    checks.say("recorded", ok=has_readings, exit=code, readings=len(readings), stderr=errors)
    if not has_readings:
        return
    begin_ns = int((readings["time_ns"] - readings["interval_ns"]).min())
    end_ns = int(readings["time_ns"].max())
    covered_ns = int(readings["interval_ns"].sum())
    gpm = float((readings["value"] * readings["interval_ns"]).sum() / covered_ns)
    busy = recording.busy_ns(begin_ns, end_ns) / (end_ns - begin_ns)
    # The first and the last reading of the pattern reach beyond it.
    covers = covered_ns >= min(MIN_COVERED_S, seconds - 2.5) * 1e9
    checks.say(
        "busy",
        ok=abs(busy - gpm) <= LIMIT and covers,
        gpm=gpm,
        executions=busy,
        program=truth["busy_ns"] / (truth["end_ns"] - truth["start_ns"]),
        difference=busy - gpm,
        covered_s=covered_ns / 1e9,
    )
    known, unknown = (ns / (end_ns - begin_ns) for ns in recording.idle_ns(begin_ns, end_ns))
    checks.say(
        "idle",
        ok=abs(known - (1 - gpm)) <= LIMIT and unknown == 0,
        gpm=1 - gpm,
        gpu_idle=known,
        unknown=unknown,
        difference=known - (1 - gpm),
    )


def beside(checks: Checks, output: Path, seconds: float, flags: list[str]) -> None:
    """The same beside a process that is not captured, in the middle third."""
    hidden = ("--seconds", str(seconds / 3), "--duties", "0.6", "--hold", *flags)
    if "--fake" in flags:
        hidden += ("--seen",)
    pattern = ("--seconds", str(seconds), "--duties", "0.3", *flags)
    with contextlib.ExitStack() as stack:
        stranger = stack.enter_context(Program(sys.executable, "-m", APP, *hidden))
        said = stranger.lines()
        # Until it has measured the clock of the device, it works.
        pid = next(said, {"pid": None})["pid"]
        if pid is None:
            code, errors = stranger.end()
            checks.say("stranger_seen", ok=False, exit=code, stderr=errors)
            return
        program = stack.enter_context(recorder(output, *pattern))
        own = program.lines()
        began_ns = next((line["began_ns"] for line in own if "began_ns" in line), None)
        if began_ns is None:
            code, errors = program.end()
            checks.say("stranger_seen", ok=False, exit=code, stderr=errors)
            return
        _wait_until(began_ns + int(seconds / 3 * 1e9))
        stranger.go()
        times = list(said)[-1]
        last = list(own)[-1]
        code, errors = program.end()
        stranger.end()
    recording = Recording(output)
    processes = recording.processes()
    has_seen = code == 0 and pid in processes
    checks.say("stranger_seen", ok=has_seen, pid=pid, processes=processes, stderr=errors)
    inside = recording.idle_ns(times["start_ns"] + ONE_READING_NS, times["end_ns"])
    before = recording.idle_ns(last["start_ns"], times["start_ns"] - ONE_READING_NS)
    shares = [unknown / max(known + unknown, 1) for known, unknown in (inside, before)]
    is_right = shares[0] >= 1 - LIMIT and shares[1] <= LIMIT and sum(before) > 0
    checks.say("unknown", ok=is_right, while_it_works=shares[0], before=shares[1])


def _wait_until(time_ns: int) -> None:
    time.sleep(max(time_ns - time.monotonic_ns(), 0) / 1e9)


def main() -> int:
    """Both parts; 1 if something was not as it should be."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--fake", action="store_true")
    options = parser.parse_args()
    checks, flags = Checks(), ["--fake"] if options.fake else []
    with tempfile.TemporaryDirectory() as directory:
        out = options.out or Path(directory)
        out.mkdir(parents=True, exist_ok=True)
        beside(checks, out / "beside.ogfcap", options.seconds, flags)
        alone(checks, out / "alone.ogfcap", options.seconds, flags)
    return int(checks.failed)


if __name__ == "__main__":
    sys.exit(main())
