"""The order and the way in which probes are attached. Attaching itself is tested with BPF."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from otel_gpuflame.capture.bpf import uprobes
from otel_gpuflame.capture.bpf.libbpf import BpfObject, LibbpfError
from otel_gpuflame.capture.bpf.probes import Program
from otel_gpuflame.capture.bpf.uprobes import ProbePoint, UprobeLinks, multi_is_supported

LIBRARY = Path("/lib/libcuda.so.1")
POINTS = [
    ProbePoint(Program.CALL_ENTER, 16, 1),
    ProbePoint(Program.CALL_RETURN, 16, 1),
    ProbePoint(Program.CALL, 32, 2),
    ProbePoint(Program.CALL_ENTER, 48, 3),
    ProbePoint(Program.CALL_RETURN, 48, 3),
    ProbePoint(Program.NAME_RETURN, 64, 4),
    ProbePoint(Program.NAME_ENTER, 64, 4),
]


class _Object:
    """Notes what it is asked to attach."""

    def __init__(self) -> None:
        self.attached: list[tuple[str, int, int, bool]] = []

    def attach_uprobe(
        self, program: str, path: Path, offset: int, *, cookie: int, is_return: bool
    ) -> None:
        assert path == LIBRARY
        self.attached.append((program, offset, cookie, is_return))

    def program_fd(self, program: str) -> int:
        return 100 + [p.value for p in Program].index(program)


class _Kernel:
    """Notes links; gives a real descriptor for each, or an error."""

    def __init__(self, failing: Program | None = None) -> None:
        self.links: list[tuple[Program, int, list[int]]] = []
        self.descriptors: list[int] = []
        self._failing = failing

    def create(self, fd: int, path: bytes, points: Sequence[ProbePoint], *, flags: int) -> int:
        program = list(Program)[fd - 100]
        assert path == os.fsencode(LIBRARY)
        if program is self._failing:
            return -errno.EPERM
        self.links.append((program, flags, [point.offset for point in points]))
        self.descriptors.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        return self.descriptors[-1]


def links(bpf_object: _Object, *, multi: bool) -> UprobeLinks:
    """Links of an object that only notes."""
    return UprobeLinks(cast(BpfObject, cast(Any, bpf_object)), multi=multi)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> _Kernel:
    """A kernel that takes every link."""
    fake = _Kernel()
    monkeypatch.setattr(uprobes, "_link_create", fake.create)
    return fake


def test_return_probes_come_first_one_by_one() -> None:
    """A call whose entry is seen must have its return seen, so returns are attached before entries."""
    bpf_object = _Object()
    links(bpf_object, multi=False).attach(LIBRARY, POINTS)
    returns = [is_return for *_, is_return in bpf_object.attached]
    assert returns == sorted(returns, reverse=True)
    assert sorted(bpf_object.attached) == sorted(
        (p.program.value, p.offset, p.cookie, p.program.is_return) for p in POINTS
    )


def test_return_probes_come_first_many_at_once(kernel: _Kernel) -> None:
    """The same with one link a program, which says whether it is for returns."""
    links(_Object(), multi=True).attach(LIBRARY, POINTS)
    assert [program.is_return for program, _, _ in kernel.links] == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert {program: (flags, offsets) for program, flags, offsets in kernel.links} == {
        Program.CALL: (0, [32]),
        Program.CALL_ENTER: (0, [16, 48]),
        Program.CALL_RETURN: (1, [16, 48]),
        Program.NAME_ENTER: (0, [64]),
        Program.NAME_RETURN: (1, [64]),
    }


def test_detaching_closes_every_link_once(kernel: _Kernel) -> None:
    """All links are gone afterwards, and a second time does nothing."""
    attached = links(_Object(), multi=True)
    attached.attach(LIBRARY, POINTS)
    attached.detach()
    for descriptor in kernel.descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
    attached.detach()


def test_a_refused_link_names_program_and_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error carries the kernel's answer, and what was attached before can be detached."""
    fake = _Kernel(failing=Program.CALL)
    monkeypatch.setattr(uprobes, "_link_create", fake.create)
    attached = links(_Object(), multi=True)
    with pytest.raises(LibbpfError, match=r"attach on_call to /lib/libcuda\.so\.1") as error:
        attached.attach(LIBRARY, POINTS)
    assert error.value.errno == errno.EPERM
    assert fake.descriptors
    attached.detach()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fake.descriptors[0])


@pytest.mark.parametrize(
    ("answer", "supported"),
    [
        (-errno.EBADF, True),
        (-errno.EINVAL, False),
        (-errno.EPERM, False),
        (-errno.EOPNOTSUPP, False),
    ],
)
def test_only_the_expected_refusal_means_support(
    monkeypatch: pytest.MonkeyPatch, answer: int, supported: bool
) -> None:
    """Kernels that know the attach type refuse a directory; others refuse the type, or the user."""
    monkeypatch.setattr(uprobes, "_link_create", lambda *_a, **_k: answer)
    assert multi_is_supported(3) is supported


def test_the_kernels_answer_is_passed_on() -> None:
    """A real system call on a descriptor that is no program gives a negative error number."""
    point = ProbePoint(Program.CALL, 0, 0)
    descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    try:
        assert uprobes._link_create(descriptor, b"/", [point], flags=0) < 0
    finally:
        os.close(descriptor)
