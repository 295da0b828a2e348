# SPDX-License-Identifier: Apache-2.0
"""What cannot wait wakes user space, however rarely it looks by itself."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from otel_gpuflame.capture.bpf.decode import decode_process, decode_stack
from otel_gpuflame.capture.bpf.drain import Drain, split_records
from otel_gpuflame.capture.bpf.kernel import CaptureKernel
from otel_gpuflame.events import wire
from tests.integration.bpf.inprocess import OwnCalls

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("bpf_tier")]

NEVER_NS = 3_600_000_000_000
LIMIT_NS = 60_000_000_000
STACKS, PROCESSES = 1, 3


@pytest.fixture
def kernel() -> Iterator[CaptureKernel]:
    """The loaded programs, with ourselves as a target."""
    kernel = CaptureKernel()
    try:
        key = os.getpid().to_bytes(4, "little")
        kernel.targets.set(key, np.zeros(1, wire.TARGET).tobytes())
        yield kernel
    finally:
        kernel.close()


def test_a_process_that_is_born_is_reported_at_once(kernel: CaptureKernel) -> None:
    """The drain looks once an hour here: without being called it would not see the child in a minute."""
    drain = sleeping(kernel)
    child = os.fork()
    if child == 0:
        os._exit(0)
    drain.swap(LIMIT_NS)
    changes = [decode_process(record) for record in split_records(drain.data(PROCESSES))]
    os.waitpid(child, 0)
    drain.close()
    assert [c.process.tgid for c in changes if c is not None][:1] == [child]


def test_a_new_stack_of_a_call_is_reported_at_once(kernel: CaptureKernel) -> None:
    """Its frames are read from the process, which may end right after its call."""
    calls = OwnCalls.start(kernel)
    drain = sleeping(kernel)
    calls.call(1)
    drain.swap(LIMIT_NS)
    stacks = [decode_stack(record) for record in split_records(drain.data(STACKS))]
    calls.drain.close()
    drain.close()
    assert [stack.process.tgid for stack in stacks if stack is not None] == [os.getpid()]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("libcuda.so.580.159", True),
        ("libOpenCL-5519dec5.so.1.0.0", True),
        ("libcudart.so.13", False),
        ("libtorch_cpu.so", False),
    ],
)
def test_code_that_is_mapped_says_whether_it_may_be_a_gpu_library(
    name: str, expected: bool, kernel: CaptureKernel, tmp_path: Path
) -> None:
    """By the name of its file: only such a library must be probed before its first call."""
    path = tmp_path / name
    path.write_bytes(bytes(mmap.PAGESIZE))
    drain = sleeping(kernel)
    with path.open("rb") as file:
        mmap.mmap(
            file.fileno(),
            mmap.PAGESIZE,
            flags=mmap.MAP_PRIVATE,
            prot=mmap.PROT_READ | mmap.PROT_EXEC,
        ).close()
    drain.swap(LIMIT_NS)
    changes = [decode_process(record) for record in split_records(drain.data(PROCESSES))]
    drain.close()
    (change,) = [each for each in changes if each is not None]
    assert change.change is wire.ProcessChange.MAP
    assert change.maps_gpu_library is expected


def test_a_drain_that_sleeps_ends_when_told(kernel: CaptureKernel) -> None:
    """Closing waits for its thread, which would sleep for an hour."""
    began_s = time.monotonic()
    sleeping(kernel).close()
    assert time.monotonic() - began_s < NEVER_NS / 1e9 / 2


def sleeping(kernel: CaptureKernel) -> Drain:
    """A drain that has looked once, and will not look by itself again while this test runs."""
    drain = kernel.open_drain(NEVER_NS)
    drain.start()
    while not drain.swap(1):
        time.sleep(0.001)
    return drain
