# SPDX-License-Identifier: Apache-2.0
"""A kernel may refuse any optional program: the others are loaded all the same, and the report says what is missing."""

from __future__ import annotations

import errno
from typing import Final

import pytest

from otel_gpuflame.capture.bpf import kernel
from otel_gpuflame.capture.bpf.libbpf import BpfObject, LibbpfError
from otel_gpuflame.capture.bpf.programs import OPTIONAL, Feature
from otel_gpuflame.errors import SourceUnavailable

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("bpf_tier")]

# Errors of devices need a driver that this host may not have.
ALL_FEATURES: Final = tuple(feature for feature in Feature if feature is not Feature.ERRORS)
ALL_PROGRAMS: Final = frozenset(each.name for each in OPTIONAL if each.feature in ALL_FEATURES)


def refuse(monkeypatch: pytest.MonkeyPatch, *names: str) -> list[frozenset[str]]:
    """Have the kernel refuse every object that contains one of these programs; the sets that it was given."""
    given: list[frozenset[str]] = []
    wanted: dict[int, set[str]] = {}
    set_autoload, load = BpfObject.set_autoload, BpfObject.load

    def remember(self: BpfObject, name: str, *, load: bool) -> None:
        programs = wanted.setdefault(id(self), set())
        (programs.add if load else programs.discard)(name)
        set_autoload(self, name, load=load)

    def refuse_some(self: BpfObject) -> None:
        given.append(frozenset(wanted.pop(id(self))))
        if given[-1] & set(names):
            raise LibbpfError(errno.EINVAL, "load BPF object")
        load(self)

    monkeypatch.setattr(BpfObject, "set_autoload", remember)
    monkeypatch.setattr(BpfObject, "load", refuse_some)
    return given


@pytest.mark.parametrize(
    "refused",
    [
        ("on_switch",),
        ("on_fork", "on_cpu_sample"),
        ("on_device_enter", "on_device_exit", "on_exit"),
    ],
)
def test_what_is_refused_is_left_out(
    monkeypatch: pytest.MonkeyPatch, refused: tuple[str, ...]
) -> None:
    """Any set of optional programs may be refused; exactly these are reported."""
    given = refuse(monkeypatch, *refused)
    loaded = kernel.CaptureKernel(features=ALL_FEATURES)
    try:
        assert set(loaded.report.missing) == set(refused)
        assert given[-1] == ALL_PROGRAMS - set(refused)
    finally:
        loaded.close()


def test_a_kernel_that_refuses_the_search_of_tables_still_captures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Stacks are then walked by frame pointer, and the report says so. Every optional program stays."""
    load, set_constants = BpfObject.load, BpfObject.set_constants
    without: set[int] = set()

    def remember(self: BpfObject, section: str, value: bytes) -> None:
        without.add(id(self))
        set_constants(self, section, value)

    def refuse_with_tables(self: BpfObject) -> None:
        if id(self) not in without:
            raise LibbpfError(errno.E2BIG, "load BPF object")
        load(self)

    monkeypatch.setattr(BpfObject, "set_constants", remember)
    monkeypatch.setattr(BpfObject, "load", refuse_with_tables)
    loaded = kernel.CaptureKernel(features=ALL_FEATURES)
    try:
        assert set(loaded.report.missing) == {kernel.UNWIND_TABLES}
        assert loaded.unwind_maps is None
    finally:
        loaded.close()


def test_only_what_was_asked_for_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls alone need neither the sampler nor the device programs."""
    given = refuse(monkeypatch)
    kernel.CaptureKernel().close()
    expected = {program.name for program in OPTIONAL if program.feature is Feature.CALLS}
    assert set(given) == {frozenset(expected)}


def test_a_kernel_that_refuses_everything_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the probes themselves there is no capture; the message says what is needed."""

    def refuse_all(_self: BpfObject) -> None:
        raise LibbpfError(errno.EINVAL, "load BPF object")

    monkeypatch.setattr(BpfObject, "load", refuse_all)
    with pytest.raises(SourceUnavailable, match=r"Kernel 5\.15 or newer with BTF"):
        kernel.CaptureKernel(features=ALL_FEATURES)


def test_a_missing_tracepoint_is_a_missing_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no tracepoint of system calls is found, device calls are missing, and samples are not."""
    monkeypatch.setattr(kernel, "tracepoint_id", lambda _category, _name: None)
    loaded = kernel.CaptureKernel(features=ALL_FEATURES)
    missing = set(loaded.report.missing)
    loaded.close()
    assert missing == {"on_mmap_enter", "on_mmap_exit", "on_device_enter", "on_device_exit"}
