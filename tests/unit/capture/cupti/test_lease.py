"""The lease: what the library reads, when, and that it is woken."""

from __future__ import annotations

import ctypes
import errno
import threading
import time
from pathlib import Path

from otel_gpuflame.capture.cupti.cost import SHORTEST_NS
from otel_gpuflame.capture.cupti.lease import LEASE_NS, PROLONG_EVERY_NS
from otel_gpuflame.capture.cupti.source import GpuSource
from tests.unit.capture.cupti.test_source import reading
from tests.unit.capture.cupti.writer import LIMIT_S, Writer, target

FUTEX_SYSCALL = 202
FUTEX_WAIT = 0


class TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class Waiter(threading.Thread):
    """The library's worker: sleeps until `wake` changes."""

    def __init__(self, writer: Writer) -> None:
        super().__init__(daemon=True)
        self._address = writer.control.ctypes.data
        self._value = int(writer.control["wake"][0])
        self.error = -1

    def run(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        limit = TimeSpec(LIMIT_S, 0)
        result = libc.syscall(
            FUTEX_SYSCALL,
            ctypes.c_void_p(self._address),
            FUTEX_WAIT,
            self._value,
            ctypes.byref(limit),
        )
        self.error = ctypes.get_errno() if result else 0

    def wait_until_asleep(self) -> None:
        """Until the kernel has it in the futex."""
        self.start()
        path = Path(f"/proc/self/task/{self.native_id}/syscall")
        deadline = time.monotonic() + LIMIT_S
        while not path.read_text().startswith(f"{FUTEX_SYSCALL} {self._address:#x}"):
            assert time.monotonic() < deadline
            time.sleep(0.001)


def test_a_lease_of_three_seconds_is_prolonged_each_second() -> None:
    """Not more often; the generation stays."""
    with target() as writer:
        source = GpuSource(str)
        source.begin(0)
        now_ns = time.monotonic_ns()
        source.look([writer.pid], now_ns)
        until = [int(writer.control["lease_until_ns"][0])]
        for later_ns in (PROLONG_EVERY_NS - 1, PROLONG_EVERY_NS, PROLONG_EVERY_NS + 5):
            source.step(now_ns + later_ns)
            until.append(int(writer.control["lease_until_ns"][0]))
        assert writer.control["generation"][0] == 1
        source.close(now_ns)
    first = now_ns + LEASE_NS
    assert until == [first, first, first + PROLONG_EVERY_NS, first + PROLONG_EVERY_NS]


def test_each_window_has_a_generation_of_its_own() -> None:
    """Also when the number has reached its end, and where an earlier exporter has left one."""
    with target() as writer:
        writer.control["generation"] = 0xFFFFFFFE
        with reading(writer) as source:
            found = [int(writer.control["generation"][0])]
            for _ in range(2):
                source.finish()
                source.begin(time.monotonic_ns())
                found.append(int(writer.control["generation"][0]))
    assert found == [0xFFFFFFFF, 0, 1]


def test_outside_windows_there_is_no_lease() -> None:
    """A region that is found then is opened and left dormant."""
    with target() as writer:
        source = GpuSource(str)
        source.look([writer.pid], time.monotonic_ns())
        source.step(time.monotonic_ns())
        assert (writer.control["generation"][0], writer.control["lease_until_ns"][0]) == (0, 0)
        source.begin(time.monotonic_ns())
        assert writer.control["lease_until_ns"][0] > time.monotonic_ns()
        source.finish()
        source.step(time.monotonic_ns() + 10 * PROLONG_EVERY_NS)
        assert writer.control["lease_until_ns"][0] == 0
        source.close(time.monotonic_ns())


def test_the_library_is_woken_by_begin_and_finish() -> None:
    """It sleeps in a futex on `wake`, in another mapping of the same page."""
    with target() as writer, reading(writer) as source:
        for change in (source.finish, lambda: source.begin(time.monotonic_ns())):
            waiter = Waiter(writer)
            waiter.wait_until_asleep()
            change()
            waiter.join(LIMIT_S)
            assert waiter.error == 0, errno.errorcode.get(waiter.error, waiter.error)


def test_the_lease_ends_when_the_exporter_lets_go() -> None:
    """The target does not go on for three seconds."""
    with target() as writer, reading(writer) as source:
        assert writer.control["lease_until_ns"][0] != 0
        source.close(time.monotonic_ns())
        assert writer.control["lease_until_ns"][0] == 0


def test_a_lease_ends_when_its_window_does() -> None:
    """Whoever dies, or is late, leaves no longer window than was planned. Regions found later have that end too."""
    with target() as writer, target() as late:
        source = GpuSource(str)
        now_ns = time.monotonic_ns()
        until_ns = now_ns + LEASE_NS + 500_000_000
        source.begin(now_ns, until_ns)
        source.look([writer.pid], now_ns)
        ends = []
        for at_ns in range(now_ns, until_ns + 3 * PROLONG_EVERY_NS, PROLONG_EVERY_NS):
            source.step(at_ns)
            ends.append(int(writer.control["lease_until_ns"][0]))
        assert ends == [now_ns + LEASE_NS, *[until_ns] * (len(ends) - 1)]
        source.look([writer.pid, late.pid], until_ns - 100_000_000)
        assert int(late.control["lease_until_ns"][0]) == until_ns
        source.close(time.monotonic_ns())


def test_too_little_of_a_window_is_not_worth_opening() -> None:
    """CUPTI takes longer to open than is left."""
    with target() as writer:
        source = GpuSource(str)
        now_ns = time.monotonic_ns()
        source.begin(now_ns, now_ns + SHORTEST_NS)
        source.look([writer.pid], now_ns + 1)
        assert int(writer.control["generation"][0]) == 0
        source.close(time.monotonic_ns())
