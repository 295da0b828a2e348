# SPDX-License-Identifier: Apache-2.0
"""Runs the agent beside programs whose truth is known, and adds up what arrived.

The agent sees the whole host: whatever else runs there is in its profiles too, so that everything here has service
names of its own and a copy of the driver library that nobody else maps.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from otel_gpuflame.capture.windows import FIRST_WINDOW
from otel_gpuflame.events import wire
from tests.fakes.build import FAKES, fake_environment
from tests.fakes.steps import STAYS
from tests.integration.bpf.recording import LIMIT_S, ROOT
from tests.integration.bpf.session import Running, running
from tests.integration.collector.resolve import ResolvedProfile, resolve_profiles
from tests.integration.collector.sink import OtlpSink

ESTIMATED: Final = "otel_gpuflame/estimated"
FLUSH_S: Final = 240.0
"""What an agent may take to send the rest: a bound against hanging, not what it should take."""
FULL: Final = ("--window", "2", "--duty", "100%", "--shutdown", str(FLUSH_S))
UPROBE: Final = "uprobe_multi"
CUDA_WITH_WINDOW: Final = 6
"""Entry probes of libcuda: captures, graph launches, what is windowed, waits, two sorts of names. One link each."""
OPENCL_WITH_WINDOW: Final = 3
"""The same of the OpenCL loader, which has no launches that are always on."""


def unique(name: str) -> str:
    """A service name that no other program of the host has."""
    return f"{name}-{uuid.uuid4().hex[:8]}"


def wait_until(
    condition: Callable[[], bool], what: str, limit_s: float = LIMIT_S, pause_s: float = 0.02
) -> None:
    """Look until it holds."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit_s} s: {what}"
        time.sleep(pause_s)


def own_driver(fakes: Path, directory: Path) -> dict[str, str]:
    """Environment with a copy of the fake driver, an inode that only this test's programs map."""
    for name in ("libcuda.so.1", "libfake_app.so"):
        shutil.copy(fakes / name, directory / name)
    environment = fake_environment(directory)
    return {name: value for name, value in environment.items() if not name.startswith("OTEL_")}


def build_short_lived(driver: Path) -> Path:
    """The compiled program, linked with the driver in that directory."""
    program = driver / "short_lived"
    source = Path(__file__).parent / "apps" / "short_lived.c"
    flags = ["-O1", "-fno-omit-frame-pointer", "-I", str(FAKES / "cuda"), "-o", str(program)]
    libraries = [str(driver / "libcuda.so.1")]
    subprocess.run(["gcc", *flags, str(source), *libraries], check=True)
    return program


@dataclasses.dataclass(frozen=True, slots=True)
class Link:
    """A BPF link that a process holds. `path` and `points` are those of uprobes."""

    id: int
    type: str
    program_id: int
    path: str
    points: int


def _state(task: Path) -> str:
    """Of a thread, one letter."""
    return (task / "stat").read_text().rpartition(")")[2].split()[0]


def links_of(pid: int) -> list[Link]:
    """BPF links that a process has open, from the kernel's description of its descriptors."""
    found = []
    for entry in (Path("/proc") / str(pid) / "fdinfo").iterdir():
        with contextlib.suppress(OSError):
            lines = entry.read_text().splitlines()
            facts = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
            if "link_id" in facts:
                found.append(
                    Link(
                        int(facts["link_id"]),
                        facts["link_type"],
                        int(facts["prog_id"]),
                        facts.get("path", ""),
                        int(facts.get("uprobe_cnt", 0)),
                    )
                )
    return found


def existing(kind: str) -> set[int]:
    """Ids of all links or programs (`link`, `prog`) in the kernel."""
    shown = subprocess.run(["bpftool", "-j", kind, "show"], check=True, capture_output=True)
    return {each["id"] for each in json.loads(shown.stdout)}


def descriptors_of(pid: int) -> int:
    """How many descriptors a process has open."""
    return len(list((Path("/proc") / str(pid) / "fd").iterdir()))


def memory_kib(pid: int) -> int:
    """Resident memory of a process."""
    text = (Path("/proc") / str(pid) / "status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0])


@dataclasses.dataclass(slots=True)
class Agent:
    """A running agent."""

    running: Running
    _windows_before: int = 0
    """How often it had said that its first window was open when it was last switched on."""

    @property
    def pid(self) -> int:
        """Of the process that holds the links."""
        return self.running.process.pid

    @property
    def log(self) -> str:
        """What it has said."""
        return self.running.stderr.text()

    def entry_links(self, path: str) -> int:
        """Links of entry probes on a file, by the path that the kernel says."""
        return sum(link.type == UPROBE and link.path == path for link in links_of(self.pid))

    def wait_for_window(self, path: str | Path, links: int = CUDA_WITH_WINDOW) -> None:
        """Until everything is attached to a file, windowed probes included, and to the files of others on this host."""
        self.running.wait_for(
            lambda: (
                self.entry_links(str(path)) >= links
                and self.log.count(FIRST_WINDOW) > self._windows_before
            ),
            f"an open window on {path}",
        )

    def wait_for_log(self, text: str) -> None:
        """Until it has said so."""
        self.running.wait_for(lambda: text in self.log, f"the message {text!r}")

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        if number is signal.SIGUSR2:
            self._windows_before = self.log.count(FIRST_WINDOW)
        self.running.process.send_signal(number)

    def stop(self) -> None:
        """End it in order."""
        self.send(signal.SIGTERM)
        assert self.running.finish() == 0, self.log

    def pause(self) -> None:
        """Stop all of its threads, until SIGCONT."""
        self.send(signal.SIGSTOP)
        tasks = Path("/proc") / str(self.pid) / "task"
        wait_until(lambda: {_state(task) for task in tasks.iterdir()} == {"T"}, "it to stop")


def agent_command(endpoint: str, *options: str) -> list[str]:
    """Command line of an agent that sends to a gRPC endpoint. It leaves other tests' injected libraries alone."""
    base = [sys.executable, "-m", "otel_gpuflame", "-v", "agent", "--no-self-telemetry", "--no-gpu"]
    return [*base, "--endpoint", f"http://{endpoint}", *options]


@contextlib.contextmanager
def agent(sink: OtlpSink, *options: str, prefix: tuple[str, ...] = ()) -> Iterator[Agent]:
    """An agent; `prefix` is a command that starts it. It is killed at the end if it still runs."""
    command = [*prefix, *agent_command(sink.grpc_endpoint, *options)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with running(command, environment) as started:
        yield Agent(started)


@contextlib.contextmanager
def beacon(environment: Mapping[str, str], agent_: Agent | None = None) -> Iterator[Running]:
    """A program that maps the driver and then waits, so that its probes stay: the agent is ready for others."""
    command = [sys.executable, str(FAKES / "app_launch.py"), "0", "--hold"]
    with running(command, {**environment, "OTEL_SERVICE_NAME": "beacon"}) as program:
        program.truth()
        if agent_ is not None:
            agent_.wait_for_window(driver_of(environment))
        yield program


def driver_of(environment: Mapping[str, str]) -> str:
    """Path of the driver library that programs of this environment map."""
    return os.path.realpath(environment["LD_LIBRARY_PATH"].split(":")[0] + "/libcuda.so.1")


_resolved: weakref.WeakKeyDictionary[OtlpSink, tuple[int, list[ResolvedProfile]]] = (
    weakref.WeakKeyDictionary()
)
"""By sink: how many of its requests have been resolved, and what was in them."""


def profiles_in(sink: OtlpSink) -> list[ResolvedProfile]:
    """Every profile that arrived. Waiting asks often: each request is resolved once."""
    known, profiles = _resolved.setdefault(sink, (0, []))
    received = sink.received
    for each in received[known:]:
        if each.signal == "profiles":
            profiles += resolve_profiles(each.profiles)
    _resolved[sink] = (len(received), profiles)
    return profiles


def resource_of(profile: ResolvedProfile) -> dict[str, object]:
    """Resource attributes."""
    return {attribute.key: attribute.value for attribute in profile.resource}


def totals(sink: OtlpSink, *, estimated: bool = False) -> Counter[tuple[str, str]]:
    """Sums by (service, sample type), exact ones or estimates; losses are of no service."""
    sums: Counter[tuple[str, str]] = Counter()
    for profile in profiles_in(sink):
        if (profile.scope.name == ESTIMATED) is estimated:
            service = str(resource_of(profile)["service.name"])
            sums[service, profile.sample_type.type] += sum(
                sample.value for sample in profile.samples if not is_loss(sample.stack)
            )
    return sums


def losses(sink: OtlpSink) -> int:
    """Launches that were seen and could not be delivered, of anybody."""
    return sum(
        sample.value
        for profile in profiles_in(sink)
        if profile.sample_type.type == "gpu_launch"
        for sample in profile.samples
        if is_loss(sample.stack)
    )


def is_loss(stack: tuple[str, ...]) -> bool:
    """Whether a sample says what is missing."""
    return any(name.startswith("[lost") for name in stack)


def assert_accounted(expected: Mapping[str, int], sink: OtlpSink) -> None:
    """Launches by service are exactly these; what is missing was counted as lost."""
    seen = totals(sink)
    missing = {service: count - seen[service, "gpu_launch"] for service, count in expected.items()}
    assert all(count >= 0 for count in missing.values()), missing
    assert sum(missing.values()) <= losses(sink), f"{missing} of {seen}"


def has_arrived(service: str, launches: int, sink: OtlpSink) -> bool:
    """Whether so many launches of a service were sent, but for what was counted as lost."""
    return totals(sink)[service, "gpu_launch"] + losses(sink) >= launches


def stays(environment: Mapping[str, str], service: str = "") -> dict[str, str]:
    """Environment of a program that is to live until `end_when` lets it go; without a service it has its own name."""
    named = {"OTEL_SERVICE_NAME": service} if service else {}
    return {**environment, STAYS: "1", **named}


def end_when(
    condition: Callable[[dict[str, Any]], bool], program: Running, *, said: int = 0
) -> dict[str, Any]:
    """Let a program that stays end when something holds of the truth that it has told; the truth.

    The agent finds out what a program is while it lives. `said` lines have come before.
    """
    truth = program.truth(said)
    wait_until(lambda: condition(truth), f"what is known of {truth}", pause_s=0.2)
    program.go()
    assert program.finish() == 0, program.stderr.text()
    return truth


def stale_entries(pid: int) -> int:
    """Entries of the agent's maps keyed by process (targets, costs) whose process does not exist, at two looks.

    A process of the host may end between reading a map and looking for it.
    """
    return len(_stale(pid) & _stale(pid))


def _stale(agent_pid: int) -> set[tuple[int, int]]:
    """(bytes of a value, pid) of entries whose process does not exist any more."""
    sizes = (wire.TARGET.itemsize, wire.COST.itemsize)
    found = {(size, each) for size in sizes for each in _by_process(agent_pid, size)}
    return {entry for entry in found if not os.path.exists(f"/proc/{entry[1]}")}


def is_known(agent_pid: int, pid: int) -> bool:
    """Whether the agent has looked at a Python program since it was started: BPF knows where its frames are."""
    return any(_by_process(agent_pid, wire.TARGET.itemsize).get(pid, b""))


def _by_process(agent_pid: int, value_bytes: int) -> dict[int, bytes]:
    """Entries by pid of the agent's maps that have a process for a key and values of this size."""
    found = {}
    for entry in (Path("/proc") / str(agent_pid) / "fdinfo").iterdir():
        with contextlib.suppress(OSError):
            facts = dict(
                line.split(":\t", 1) for line in entry.read_text().splitlines() if ":\t" in line
            )
            is_hash = facts.get("map_type") == "1"
            if is_hash and (facts["key_size"], facts["value_size"]) == ("4", str(value_bytes)):
                command = ["bpftool", "-j", "map", "dump", "id", facts["map_id"]]
                dump = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
                found.update(
                    {int.from_bytes(_bytes(e["key"]), "little"): _bytes(e["value"]) for e in dump}
                )
    return found


def _bytes(words: list[str]) -> bytes:
    return bytes(int(word, 16) for word in words)
