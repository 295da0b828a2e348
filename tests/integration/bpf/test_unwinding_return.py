# SPDX-License-Identifier: Apache-2.0
"""Stacks through functions with a return probe, whose return address the kernel has replaced."""

from __future__ import annotations

import time

import pytest

from otel_gpuflame.capture.bpf.programs import Feature
from otel_gpuflame.events.wire import NativeState
from otel_gpuflame.symbolize.raw import RawStack
from otel_gpuflame.symbolize.symbolizer import Symbolizer
from tests.fakes.build import app_command
from tests.integration.bpf.recording import LIMIT_S
from tests.integration.bpf.session import running
from tests.integration.bpf.unwinding import raw_capture

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("bpf_tier")]

KERNEL_MS = 20
WAITS = ("cuCtxSynchronize", "cuStreamSynchronize", "cuEventSynchronize")
COUNT = 1_000_000
"""Hours of waits: making the tables may take a busy machine minutes, and whoever has seen enough ends the program."""


def waits_below(raw: RawStack, symbolizer: Symbolizer) -> bool:
    """Whether a thread was found inside a wait, whose return probe lies in the way."""
    names = [frame.name for frame in symbolizer.resolve(raw).frames]
    return raw.leaf_is_instruction and any(name in WAITS for name in names[:-1])


def test_the_true_return_address_is_found(environment: dict[str, str]) -> None:
    """A thread that is off the CPU inside a wait: its stack goes on beyond the driver, to the root."""
    command = app_command("app_wait", str(KERNEL_MS), str(COUNT), "--hold")
    with running(command, environment) as target:
        assert target.truth()["ready"]
        with raw_capture(target.process.pid, (Feature.CALLS, Feature.CPU)) as capture:
            target.go()
            deadline = time.monotonic() + LIMIT_S
            symbolizer = Symbolizer()
            inside: list[RawStack] = []
            is_fed = False
            while not any(raw.native_state == NativeState.ROOT for raw in inside):
                assert time.monotonic() < deadline, inside[-3:]
                stacks = capture.stacks()
                if stacks and not is_fed:
                    capture.feed(stacks[0].process)
                    is_fed = True
                elif is_fed:
                    inside += [raw for raw in stacks if waits_below(raw, symbolizer)]
            mappings = capture.mappings()
            assert any(mapping.is_uprobes for mapping in mappings.mappings)
            whole = next(raw for raw in inside if raw.native_state == NativeState.ROOT)
            assert not any(
                found.is_uprobes for address in whole.native if (found := mappings.find(address))
            )
        target.process.kill()
