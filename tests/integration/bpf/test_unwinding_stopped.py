# SPDX-License-Identifier: Apache-2.0
"""Stacks of threads that are stopped anywhere are what gdb says of the same stop."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from random import Random

import numpy as np
import pytest

from otel_gpuflame.capture.bpf.programs import Feature
from otel_gpuflame.events import wire
from otel_gpuflame.events.frames import StackKey
from otel_gpuflame.symbolize.raw import RawStack
from tests.integration.bpf.described_code import DescribedProcess
from tests.integration.bpf.recording import app
from tests.integration.bpf.session import running
from tests.integration.bpf.unwinding import PROGRAMS, raw_capture
from tests.tiers import require

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("bpf_tier")]

STOPS = int(os.environ.get("OGF_UNWIND_STOPS", "40"))
MAX_FRAMES = 128
_CALLS = 0


def test_agrees_with_gdb_wherever_a_thread_is_stopped(environment: dict[str, str]) -> None:
    """In the middle of functions, of their beginnings and ends, in system calls: at least 99 % are equal to the root.

    Leaves in code without unwind information are left out: gdb guesses there by what instructions it reads, and tables
    cannot. A third of NumPy's products of matrices is such code on processors of AMD.
    """
    require("bpf", shutil.which("gdb") is not None, "gdb is missing: apt-get install gdb")
    random = Random(0)
    stacks: dict[StackKey, RawStack] = {}
    calls: list[np.ndarray] = []
    with (
        running(app("numpy_work"), environment) as target,
        raw_capture(target.process.pid, (Feature.CALLS, Feature.CPU)) as capture,
    ):

        def read() -> None:
            stacks.update((raw.key, raw) for raw in capture.stacks())
            calls.append(np.frombuffer(capture.drain.data(_CALLS), wire.CALL).copy())

        assert target.truth()["ready"]
        pid = target.process.pid
        while not stacks:
            read()
        capture.feed(next(iter(stacks.values())).process)
        mappings = capture.mappings()
        described = DescribedProcess(mappings)
        stops = []
        gdb = ["gdb", "-q", "-nx", "-batch", "-p", str(pid), "-x", str(PROGRAMS / "gdb_stops.py")]
        with running(gdb, environment) as debugger:
            said = 0
            for _ in range(STOPS + 1):
                if said:
                    time.sleep(random.random() / 50)
                    os.kill(pid, signal.SIGUSR1)
                while not (line := _answer(debugger, said)).startswith("{"):
                    said += 1
                said += 1
                stops.append(json.loads(line))
                read()
            debugger.process.kill()
        target.process.kill()
        read()
    rows = np.concatenate(calls)
    stopped = rows[rows["bytes"] == wire.OffCpuState.STOPPED]
    equal = compared = 0
    for stop in stops[1:]:
        for tid, frames in stop["threads"].items():
            at = stopped[
                (stopped["tid"] == int(tid))
                & (stopped["start_ns"] <= stop["time_ns"])
                & (stopped["end_ns"] >= stop["time_ns"])
            ]
            raw = stacks.get(StackKey(*at[0]["stack_hash"].tolist())) if len(at) else None
            if raw is None or not described.has(frames[0]):
                continue
            compared += 1
            same = list(raw.native[:MAX_FRAMES]) == frames[:MAX_FRAMES]
            equal += same
            if not same:
                print([hex(a) for a in raw.native], [hex(a) for a in frames], file=sys.stderr)
            assert all(mappings.find(address - 1) for address in raw.native[1:])
    assert compared >= STOPS
    assert equal >= 0.99 * compared, f"{equal} of {compared}"
    print(f"{equal} of {compared} stacks equal gdb's", file=sys.stderr)


def _answer(debugger: object, number: int) -> str:
    debugger.wait_for(lambda: debugger.lines_said() > number, "a line of gdb")
    return debugger.stdout.text().splitlines()[number]
