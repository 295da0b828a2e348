"""Target program: a device that is busy for a known share of the time.

Usage: python -m tests.integration.gpu.app_pattern --seconds S --duties 0.2,0.5 [--hold] [--fake] [--seen]

Every 100 ms one kernel, as long as the duty says; between kernels the program sleeps. Each duty gets an equal part of
the seconds. `--hold` waits for a line on standard input first, with a context and no work. Lines of output are JSON:
`ready`, `began_ns`, then `start_ns`, `end_ns`, `busy_ns`.

`--fake` runs on the fake driver, and tells the fake NVML what the device does (FAKE_NVML_BUSY), with `--seen` also that
this process does it (FAKE_NVML_PROCESSES).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Final, Protocol

CYCLE_NS: Final = 100_000_000


class Device(Protocol):
    """Something that can be busy."""

    def spin(self, duration_ms: float) -> None:
        """Launch a kernel that lasts so long."""

    def synchronize(self) -> None:
        """Wait until it has ended."""

    def seen(self, *, works: bool) -> None:
        """Have NVML see that this process is at work, or no longer."""


class TorchDevice:
    """A real one, whose NVML sees for itself."""

    def __init__(self) -> None:
        import torch  # noqa: PLC0415 (the double needs none)

        from tests.integration.gpu.app_cases import Device as SpinDevice  # noqa: PLC0415

        self._torch = torch
        self.spin = SpinDevice().spin

    def synchronize(self) -> None:
        """Wait."""
        self._torch.cuda.synchronize()

    def seen(self, *, works: bool) -> None:
        """Nothing to do."""


class FakeDevice:
    """The fake driver's."""

    def __init__(self) -> None:
        from tests.fakes.cuda_driver import FakeCuda  # noqa: PLC0415

        self._cuda = FakeCuda()

    def spin(self, duration_ms: float) -> None:
        """Launch, and say so to the fake NVML: the kernel begins at once."""
        duration_ns = int(duration_ms * 1e6)
        self._cuda.set_duration_ns("spin", duration_ns)
        self._cuda.function("spin")
        start_ns = time.monotonic_ns()
        self._cuda.launch("spin")
        if path := os.environ.get("FAKE_NVML_BUSY"):
            with Path(path).open("a") as busy:
                busy.write(f"{start_ns} {start_ns + duration_ns}\n")

    def synchronize(self) -> None:
        """Wait."""
        self._cuda.synchronize()

    def seen(self, *, works: bool) -> None:
        """Write it where the fake NVML reads it."""
        path = Path(os.environ["FAKE_NVML_PROCESSES"].removeprefix("@"))
        path.write_text(f"{os.getpid()}:50" if works else "")


def work(device: Device, duties: list[float], seconds: float) -> int:
    """The pattern; nanoseconds that the device should have been busy."""
    busy_ns, part_ns = 0, int(seconds * 1e9 / len(duties))
    for duty in duties:
        until_ns = time.monotonic_ns() + part_ns
        while (begin_ns := time.monotonic_ns()) < until_ns:
            device.spin(duty * CYCLE_NS / 1e6)
            device.synchronize()
            busy_ns += int(duty * CYCLE_NS)
            time.sleep(max(begin_ns + CYCLE_NS - time.monotonic_ns(), 0) / 1e9)
    return busy_ns


def say(**values: Any) -> None:
    """A line of output."""
    print(json.dumps(values), flush=True)


def main() -> None:
    """Be ready, wait if asked to, then work."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--duties", required=True)
    for flag in ("--hold", "--fake", "--seen"):
        parser.add_argument(flag, action="store_true")
    options = parser.parse_args()
    device: Device = FakeDevice() if options.fake else TorchDevice()
    say(ready=True, pid=os.getpid())
    if options.hold:
        sys.stdin.readline()
    if options.seen:
        device.seen(works=True)
    start_ns = time.monotonic_ns()
    say(began_ns=start_ns)
    busy_ns = work(device, [float(each) for each in options.duties.split(",")], options.seconds)
    end_ns = time.monotonic_ns()
    if options.seen:
        device.seen(works=False)
    say(start_ns=start_ns, end_ns=end_ns, busy_ns=busy_ns)


if __name__ == "__main__":
    main()
