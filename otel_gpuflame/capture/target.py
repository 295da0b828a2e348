"""What is known of one captured process: how its programs are described, and when to look at it again."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from otel_gpuflame.capture.attached import LibraryUse
from otel_gpuflame.capture.describe import Attributes
from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.symbolize.cpython.detect import PythonRuntime
from otel_gpuflame.symbolize.elf_files import FileIdentity
from otel_gpuflame.symbolize.start_time import may_be_same_start

# A library is relocated some time after it was mapped, and the last one announces itself by no further mapping:
# look again this long after each change. The last looks are for descriptions: OpenTelemetry is often set up late.
SETTLE_NS: Final = 5_000_000
"""A program maps its libraries in bursts, and may launch and end within milliseconds after: first look so much later.
"""
_LOOK_AGAIN_NS: Final = (
    SETTLE_NS,
    20_000_000,
    200_000_000,
    1_000_000_000,
    10_000_000_000,
    60_000_000_000,
)
_EXEC_NS: Final = 10_000_000
"""An exec is reported when it is done, but /proc shows the new program from the middle of it on, less than 1 ms before
unless the thread loses the CPU."""
_MAX_DESCRIPTIONS: Final = 3
_MAX_HEIRS: Final = 64
"""Of one process. Usually a round's, but whoever may not be looked into is never described."""


@dataclass(slots=True)
class Target:
    """What we know of one process."""

    pid: int
    start_ns: int = 0
    """CLOCK_MONOTONIC, as BPF reports it or to the tick; 0: not known."""
    attributes: Attributes | None = None
    heirs: deque[Target] = field(default_factory=lambda: deque(maxlen=_MAX_HEIRS))
    """Children that were forked before anybody had described it: what it is, they are."""
    descriptions: list[tuple[int, Attributes]] = field(default_factory=list)
    """The latest ones that differ, with the time at which they had been read; 0: taken over from the parent."""
    comm: str = ""
    """The kernel's name of the process: what it is called if it ends before it could be described."""
    is_forked: bool = False
    """It runs the program of its parent, and is described like it until it publishes something of its own."""
    layout: bytes = b""
    """Value in BPF's `targets` map as last written."""
    python: PythonRuntime | None = None
    without_context: set[FileIdentity] = field(default_factory=set)
    """Mapped files that publish no span, so that a look when one more was mapped takes 0.2 instead of 3 ms."""
    due_ns: list[int] = field(default_factory=list)
    retry_ns: int | None = None
    """When to look again, since a library could not be probed."""
    mapped_ns: int | None = None
    """When it mapped a GPU library that nobody has looked at yet."""
    has_ended: bool = False
    gone_since_ns: int | None = None
    """When it was seen to be gone, while its end is not reported."""
    libraries: set[LibraryUse] = field(default_factory=set)

    @property
    def process(self) -> ProcessKey:
        """Which process it is."""
        return ProcessKey(self.pid, self.start_ns)

    def is_same(self, process: ProcessKey) -> bool:
        """Whether it may be `process`, which has the same pid."""
        return may_be_same_start(self.start_ns, process.start_ns)

    def changed(self, now_ns: int) -> None:
        """It has mapped code, or runs another program: look at it soon, and again."""
        pending = self.due_ns[0] if len(self.due_ns) == len(_LOOK_AGAIN_NS) else now_ns + SETTLE_NS
        # However long it goes on mapping, the first look is not put off.
        self.due_ns = [pending, *looks(now_ns)[1:]]

    def take_due(self, now_ns: int) -> bool:
        """Whether it is time to look, once for all looks that are due."""
        if self.retry_ns is not None and self.retry_ns <= now_ns:
            self.retry_ns = None
            self.due_ns = [due for due in self.due_ns if due > now_ns]
            return True
        if not self.due_ns or self.due_ns[0] > now_ns:
            return False
        self.due_ns = [due for due in self.due_ns if due > now_ns]
        return True

    @property
    def is_first_look(self) -> bool:
        """Whether the look that was taken last follows right after a change."""
        return len(self.due_ns) == len(_LOOK_AGAIN_NS) - 1

    def describe(self, attributes: Attributes, read_ns: int) -> set[int]:
        """It is described so, by what had been read at `read_ns`; whose descriptions have changed by that."""
        self.attributes = attributes
        self.descriptions.append((read_ns, attributes))
        del self.descriptions[:-_MAX_DESCRIPTIONS]
        described = {self.pid}
        while self.heirs:
            heir = self.heirs.popleft()
            # Unless it runs another program by now, or has been looked at itself.
            if heir.is_forked and heir.attributes is None:
                described |= heir.describe(_with_pid(attributes, heir.pid), read_ns)
        return described

    def replace_program(self) -> None:
        """It runs another program: nothing that was known of the one before is true of it."""
        self.layout = b""
        self.libraries.clear()
        self.retry_ns = None
        self.attributes = None
        self.descriptions.clear()
        self.heirs.clear()
        self.python = None
        self.without_context.clear()
        self.is_forked = False

    def described_before(self, exec_ns: int) -> Attributes:
        """How the program is described that was replaced at `exec_ns`: never by what was read after that.

        Where nobody had looked by then, it has the name that the kernel gave it.
        """
        for read_ns, attributes in reversed(self.descriptions):
            if read_ns == 0 or read_ns + _EXEC_NS <= exec_ns:
                return attributes
        return (("process.pid", self.pid), ("service.name", self.comm or "unknown_service"))


def looks(now_ns: int) -> list[int]:
    """When to look at a process that has changed now."""
    return [now_ns + delay for delay in _LOOK_AGAIN_NS]


def forked(process: ProcessKey, parent: Target | None) -> Target:
    """A child runs the program of its parent, and is described like it, as soon as that one is."""
    pid = process.tgid
    child = Target(pid, process.start_ns, is_forked=True)
    if parent is None:
        return child
    if parent.attributes is None:
        # A program may fork in the millisecond in which it has mapped its driver, and the child may have ended by the
        # time that both are reported.
        parent.heirs.append(child)
        return child
    child.attributes = _with_pid(parent.attributes, pid)
    child.descriptions.append((0, child.attributes))
    return child


def _with_pid(attributes: Attributes, pid: int) -> Attributes:
    return tuple((key, pid if key == "process.pid" else value) for key, value in attributes)
