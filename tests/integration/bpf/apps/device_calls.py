# SPDX-License-Identifier: Apache-2.0
"""Target program: system calls on devices that stand in for a GPU's, and the same calls on files that do not."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import select
import sys
import time

from tests.fakes import steps

IOCTLS, POLLS, PPOLLS, MMAPS = 23, 7, 5, 3
COMMAND, OTHER_COMMAND = 0x1234, 0x4321
BLOCKED_MS = 200


class PollDescriptor(ctypes.Structure):
    """struct pollfd."""

    _fields_ = (("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short))


def ask_driver(fd: int, command: int) -> None:
    """One ioctl, which these devices do not know."""
    with contextlib.suppress(OSError):
        fcntl.ioctl(fd, command, 0)


def poll_among_others(fd: int, plain: int, timeout_ms: int) -> None:
    """One poll in which the device comes second."""
    poll = select.poll()
    poll.register(plain, 0)
    poll.register(fd, select.POLLPRI)
    poll.poll(timeout_ms)


def ppoll(fd: int) -> None:
    """One ppoll that does not wait."""
    descriptor = PollDescriptor(fd, select.POLLIN, 0)
    timeout = (ctypes.c_long * 2)(0, 0)
    ctypes.CDLL(None).ppoll(ctypes.byref(descriptor), 1, timeout, None)


def wait_for_device(fd: int) -> int:
    """One poll that waits; how long it took."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    begin_ns = time.monotonic_ns()
    poll.poll(BLOCKED_MS)
    return time.monotonic_ns() - begin_ns


def main() -> None:
    """With `forever`, wait for a device that never answers; else print what was done, `--hold` as everywhere."""
    terminal, _ = os.openpty()
    if sys.argv[1:] == ["forever"]:
        steps.hold()
        steps.say({"waiting": True})
        poll = select.poll()
        poll.register(terminal, select.POLLIN)
        poll.poll(None)
    if sys.argv[1:] == ["--hold"]:
        steps.hold()
    null, zero = os.open("/dev/null", os.O_RDWR), os.open("/dev/zero", os.O_RDWR)
    read_end, _ = os.pipe()
    begin_ns = time.monotonic_ns()
    for _ in range(IOCTLS):
        ask_driver(null, COMMAND)
        ask_driver(read_end, OTHER_COMMAND)
    ioctl_ns = time.monotonic_ns() - begin_ns
    for _ in range(POLLS):
        poll_among_others(null, read_end, 0)
        poll_among_others(read_end, read_end, 0)
    for _ in range(PPOLLS):
        ppoll(null)
        ppoll(read_end)
    for _ in range(MMAPS):
        mmap.mmap(zero, 8192, mmap.MAP_PRIVATE).close()
        mmap.mmap(-1, 8192).close()
    truth = {
        "pid": os.getpid(),
        "ioctl_ns": ioctl_ns,
        "waited_ns": wait_for_device(terminal),
        "null": os.fstat(null).st_rdev,
        "zero": os.fstat(zero).st_rdev,
        "terminal": os.fstat(terminal).st_rdev,
    }
    steps.tell(truth)


if __name__ == "__main__":
    main()
