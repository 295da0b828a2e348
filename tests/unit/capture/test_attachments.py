"""Probes that came later than the first calls that they were for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from otel_gpuflame.capture import attachments as attachments_module
from otel_gpuflame.capture.attachments import Attachments, LateProbes
from otel_gpuflame.capture.bpf.probes import Program
from otel_gpuflame.capture.bpf.uprobes import ProbePoint
from otel_gpuflame.capture.libraries import FileKey, GpuLibrary

NOW_NS = 5_000_000_000


@pytest.fixture
def attachments(monkeypatch: pytest.MonkeyPatch) -> Attachments:
    """Attaches to any file, at NOW_NS."""

    def read(path: Path) -> GpuLibrary:
        status = path.stat()
        key = FileKey(status.st_dev, status.st_ino)
        return GpuLibrary(path, key, (ProbePoint(Program.CALL, 16, 0),))

    monkeypatch.setattr(attachments_module, "read_library", read)
    monkeypatch.setattr(attachments_module, "time", SimpleNamespace(monotonic_ns=lambda: NOW_NS))
    links: Any = SimpleNamespace(attach=lambda *_a, **_k: None, detach_all=lambda: None)
    return Attachments(links, in_windows=False)


def test_a_library_that_was_in_use_before_it_was_probed_is_named(
    attachments: Attachments, tmp_path: Path
) -> None:
    """With the time in which calls were missed; the next program that maps it misses none."""
    path = tmp_path / "libcuda.so.1"
    path.touch()
    attachments.attach(path, NOW_NS, "/usr/lib/libcuda.so.1", NOW_NS - 3_000_000)
    attachments.attach(path, NOW_NS, "/usr/lib/libcuda.so.1", NOW_NS - 1_000_000)
    late = LateProbes(path=Path("/usr/lib/libcuda.so.1"), gap_ns=3_000_000)
    assert attachments.late == [late]
    assert attachments.late_count == 1
    attachments.close()


def test_a_library_that_was_probed_ahead_is_not_late(
    attachments: Attachments, tmp_path: Path
) -> None:
    """Nothing was missed, whenever it is mapped."""
    path = tmp_path / "libcuda.so.1"
    path.touch()
    attachments.attach(path, NOW_NS)
    attachments.attach(path, NOW_NS, str(path), NOW_NS - 1)
    assert attachments.late == []
    attachments.close()


def test_what_is_kept_of_late_libraries_is_bounded(
    attachments: Attachments, tmp_path: Path
) -> None:
    """A host may start containers for ever, each with its own copy: the count goes on."""
    for number in range(100):
        path = tmp_path / f"{number}"
        path.touch()
        attachments.attach(path, NOW_NS, str(path), NOW_NS - number)
    assert attachments.late_count == 100
    assert [late.gap_ns for late in attachments.late] == list(range(36, 100))
    attachments.close()


def test_the_autograd_library_is_wanted_where_frames_are_walked() -> None:
    """Driver libraries always are."""
    links: Any = SimpleNamespace()
    torch, driver = "/venv/torch/lib/libtorch_cpu.so", "/usr/lib/libcuda.so.1"
    for autograd in (False, True):
        attachments = Attachments(links, in_windows=False, autograd=autograd)
        assert attachments.wants(torch) is autograd
        assert attachments.wants(driver) is True
        assert attachments.wants("/usr/lib/libc.so.6") is False


def test_in_a_window_nodes_are_probed_before_launches(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A launch whose node was not seen has no owner. Nor is the library late: no call is missed for it."""
    paths = [tmp_path / name for name in ("libcuda.so.1", "libtorch_cpu.so")]
    for path, reader in zip(paths, ("read_library", "read_autograd_library"), strict=True):
        path.touch()
        key = FileKey(1, path.stat().st_ino)
        found = GpuLibrary(path, key, (ProbePoint(Program.CALL, 16, 0, windowed=True),))
        monkeypatch.setattr(attachments_module, reader, lambda _path, found=found: found)
    attached: list[object] = []
    links: Any = SimpleNamespace(
        attach=lambda owner, _path, points, **_k: attached.extend([owner] * len(points)),
        detach_all=lambda: None,
    )
    attachments = Attachments(links, in_windows=True, autograd=True)
    for path in paths:
        attachments.attach(path, NOW_NS, str(path), NOW_NS)
    assert attached == []
    attachments.open_window()
    assert attached == [FileKey(1, path.stat().st_ino) for path in reversed(paths)]
    assert [late.path for late in attachments.late] == paths[:1]
    attachments.close()
