# SPDX-License-Identifier: Apache-2.0
"""Many short GPU processes and some long ones beside the agent: what it counted, and what it kept."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.fakes.build import app_command
from tests.integration.bpf.agent.harness import (
    Agent,
    descriptors_of,
    driver_of,
    links_of,
    losses,
    memory_kib,
    stale_entries,
    totals,
    unique,
    wait_until,
)
from tests.integration.bpf.recording import LIMIT_S
from tests.integration.bpf.session import Running, running
from tests.integration.collector.sink import OtlpSink

LONG_PER_S: Final = 200
PYTHON_EVERY: Final = 6
"""Every sixth short process is a Python program; the others are compiled and live for about 50 ms."""
LIFE_MS: Final = 50
SETTLE_S: Final = 10
"""After five windows nothing is left of a process, where the machine is not busy."""
MAX_GROWTH_KIB: Final = 8 * 1024
"""Between the first fifth and the end: the heap's fragments. A kilobyte kept of each of 300 processes would not be seen
here, but in the benchmark of a thousand."""
WARM: Final = 0.2
"""Share of the short processes after which the first figures are taken: caches are filled by then."""


@dataclass(frozen=True, slots=True)
class Load:
    """How much is started, evenly over the time."""

    short: int
    long: int
    duration_s: float


@dataclass(frozen=True, slots=True)
class Resources:
    """What the agent holds; `own_links` are those on the test's driver and on no library."""

    memory_kib: int
    descriptors: int
    own_links: int
    stale_entries: int


@dataclass(frozen=True, slots=True)
class ChurnFigures:
    """What came of it. Launches by kind of program; `lost` are those of anybody."""

    made: Counter[str]
    profiled: Counter[str]
    by_command_name: Counter[str]
    """Launches of short processes that were gone before they could be described."""
    lost: int
    exit_codes_differ: int
    outputs_differ: int
    before: Resources
    after: Resources


class Churn:
    """Starts the processes of a load beside an agent that is ready."""

    def __init__(
        self, agent: Agent, sink: OtlpSink, driver: Mapping[str, str], short_lived: Path, load: Load
    ) -> None:
        self._agent, self._sink, self._driver, self._load = agent, sink, dict(driver), load
        # The kernel's name of the process: 15 characters.
        self._program = short_lived.with_name(unique("churn"))
        shutil.copy(short_lived, self._program)
        self._python = short_lived.with_name(unique("snake"))
        self._python.symlink_to(os.path.realpath(sys.executable))
        self._services = {kind: unique(kind) for kind in ("compiled", "python", "long")}
        self._made: Counter[str] = Counter()
        self._wrong_codes = self._wrong_outputs = 0

    def run(self) -> ChurnFigures:
        """Run everything to its end, and wait until what is known of it must have been forgotten."""
        before: Resources | None = None
        with contextlib.ExitStack() as stack:
            long = [stack.enter_context(self._long()) for _ in range(self._load.long)]
            started_s, pending = time.monotonic(), list[tuple[subprocess.Popen[str], int]]()
            for number in range(self._load.short):
                due_s = started_s + number * self._load.duration_s / self._load.short
                time.sleep(max(due_s - time.monotonic(), 0))
                pending.append((self._short(number), number))
                pending = [each for each in pending if not self._has_ended(*each)]
                if number == int(WARM * self._load.short):
                    wait_until(lambda: len(self._sink.received) > 0, "the first profiles")
                    before = self._resources()
            for process, number in pending:
                process.wait()
                self._has_ended(process, number)
            for program in long:
                self._wrong_codes += program.finish() != 0
                self._made["long"] += int(json.loads(program.stdout.text())["launches"])
        assert before is not None
        after = self._settled(before)
        self._agent.stop()
        return self._figures(before, after)

    @contextlib.contextmanager
    def _long(self) -> Iterator[Running]:
        count = round(LONG_PER_S * self._load.duration_s)
        command = app_command("app_launch", count, "--rate", LONG_PER_S)
        environment = {**self._driver, "OTEL_SERVICE_NAME": self._services["long"]}
        with running(command, environment) as program:
            yield program

    def _short(self, number: int) -> subprocess.Popen[str]:
        kind = self._kind(number)
        launches = _launches(number)
        command = [str(self._program), str(launches), str(LIFE_MS), str(_code(number))]
        if kind == "python":
            command = [str(self._python), *app_command("app_launch", launches)[1:]]
        environment = {**self._driver, "OTEL_SERVICE_NAME": self._services[kind]}
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def _has_ended(self, process: subprocess.Popen[str], number: int) -> bool:
        """Whether it has; then its truth is added, and compared with what it is without an agent."""
        if process.poll() is None:
            return False
        with process:
            assert process.stdout is not None
            text = process.stdout.read()
        kind = self._kind(number)
        made = json.loads(text)["launches"] if kind == "python" else int(text)
        self._made[kind] += made
        self._wrong_outputs += made != _launches(number)
        self._wrong_codes += process.returncode != (0 if kind == "python" else _code(number))
        return True

    def _kind(self, number: int) -> str:
        return "compiled" if number % PYTHON_EVERY else "python"

    def _resources(self) -> Resources:
        pid, own = self._agent.pid, driver_of(self._driver)
        links = links_of(pid)
        libraries = [
            path
            for entry in (Path("/proc") / str(pid) / "fd").iterdir()
            if "/lib" in (path := _target(entry)) and ".so" in path
        ]
        return Resources(
            memory_kib=memory_kib(pid),
            # Libraries of other programs of the host come and go.
            descriptors=descriptors_of(pid) - len(links) - len(libraries),
            own_links=sum(link.path in ("", own) for link in links),
            stale_entries=stale_entries(pid),
        )

    def _settled(self, before: Resources) -> Resources:
        """Figures when the windows in which the processes ended are closed and sent, or when that does not come."""
        begin = time.monotonic()
        while True:
            after = self._resources()
            passed_s = time.monotonic() - begin
            grown_kib = after.memory_kib - before.memory_kib
            is_small = grown_kib <= (0 if passed_s < SETTLE_S else MAX_GROWTH_KIB)
            if (is_small and not after.stale_entries) or passed_s > LIMIT_S:
                return after
            time.sleep(0.5)

    def _figures(self, before: Resources, after: Resources) -> ChurnFigures:
        seen = totals(self._sink)
        profiled = Counter(
            {kind: seen[service, "gpu_launch"] for kind, service in self._services.items()}
        )
        commands = {"compiled": self._program, "python": self._python}
        unnamed = Counter(
            {kind: seen[path.name[:15], "gpu_launch"] for kind, path in commands.items()}
        )
        profiled += unnamed
        return ChurnFigures(
            made=self._made,
            profiled=profiled,
            by_command_name=unnamed,
            lost=losses(self._sink),
            exit_codes_differ=self._wrong_codes,
            outputs_differ=self._wrong_outputs,
            before=before,
            after=after,
        )


def _launches(number: int) -> int:
    return 1 + 37 * number % 97


def _code(number: int) -> int:
    return number % 4


def _target(entry: Path) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(entry)
    return ""
