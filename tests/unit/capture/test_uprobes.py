"""The order and the way in which probes are attached. Attaching itself is tested with BPF."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from functools import partial
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
    """Notes what it is asked to attach and detach; refuses one offset."""

    def __init__(self, refused_offset: int = -1) -> None:
        self.attached: list[tuple[str, int, int, bool]] = []
        self.detached: list[tuple[str, int, int, bool]] = []
        self._refused_offset = refused_offset

    def attach_uprobe(
        self, program: str, path: Path, offset: int, *, cookie: int, is_return: bool
    ) -> Callable[[], None]:
        assert path == LIBRARY
        if offset == self._refused_offset:
            raise LibbpfError(errno.EBUSY, f"attach {program}")
        probe = (program, offset, cookie, is_return)
        self.attached.append(probe)
        return partial(self.detached.append, probe)

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
    links(bpf_object, multi=False).attach("owner", LIBRARY, POINTS)
    returns = [is_return for *_, is_return in bpf_object.attached]
    assert returns == sorted(returns, reverse=True)
    assert sorted(bpf_object.attached) == sorted(
        (p.program.value, p.offset, p.cookie, p.program.is_return) for p in POINTS
    )


def test_return_probes_come_first_many_at_once(kernel: _Kernel) -> None:
    """The same with one link a program, which says whether it is for returns."""
    links(_Object(), multi=True).attach("owner", LIBRARY, POINTS)
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
    attached.attach("owner", LIBRARY, POINTS)
    attached.detach("owner")
    for descriptor in kernel.descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
    attached.detach("owner")


def test_entries_are_detached_before_returns() -> None:
    """As long as a call can be seen to begin, it can be seen to end."""
    bpf_object = _Object()
    attached = links(bpf_object, multi=False)
    attached.attach("owner", LIBRARY, POINTS)
    attached.detach("owner")
    assert sorted(bpf_object.detached) == sorted(bpf_object.attached)
    returns = [is_return for *_, is_return in bpf_object.detached]
    assert returns == sorted(returns)


def test_each_owner_has_its_own_probes() -> None:
    """Detaching one library leaves the others; detaching all leaves none."""
    bpf_object = _Object()
    attached = links(bpf_object, multi=False)
    attached.attach("one", LIBRARY, POINTS[:1])
    attached.attach("two", LIBRARY, POINTS[2:3])
    attached.detach("one")
    attached.detach("unknown")
    assert [offset for _, offset, *_ in bpf_object.detached] == [16]
    attached.detach_all()
    assert [offset for _, offset, *_ in bpf_object.detached] == [16, 32]


def test_a_window_closes_what_it_opened() -> None:
    """Probes of a window go with it, lasting ones stay; `detach` takes both."""
    bpf_object = _Object()
    attached = links(bpf_object, multi=False)
    attached.attach("one", LIBRARY, POINTS[:1])
    for _ in range(2):
        attached.attach("one", LIBRARY, POINTS[2:3], in_window=True)
        attached.close_window()
        attached.close_window()
    assert [offset for _, offset, *_ in bpf_object.detached] == [32, 32]
    attached.attach("one", LIBRARY, POINTS[2:3], in_window=True)
    attached.detach("one")
    assert [offset for _, offset, *_ in bpf_object.detached] == [32, 32, 32, 16]


def test_probes_before_a_refused_one_can_be_detached() -> None:
    """When the kernel refuses a probe, those that were attached for the same program are not forgotten."""
    bpf_object = _Object(refused_offset=48)
    attached = links(bpf_object, multi=False)
    with pytest.raises(LibbpfError, match="attach on_call_"):
        attached.attach("owner", LIBRARY, POINTS)
    assert bpf_object.attached
    attached.detach("owner")
    assert sorted(bpf_object.detached) == sorted(bpf_object.attached)


def test_a_refused_link_names_program_and_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error carries the kernel's answer, and what was attached before can be detached."""
    fake = _Kernel(failing=Program.CALL)
    monkeypatch.setattr(uprobes, "_link_create", fake.create)
    attached = links(_Object(), multi=True)
    with pytest.raises(LibbpfError, match=r"attach on_call to /lib/libcuda\.so\.1") as error:
        attached.attach("owner", LIBRARY, POINTS)
    assert error.value.errno == errno.EPERM
    assert fake.descriptors
    attached.detach("owner")
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
