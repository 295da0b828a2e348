"""Probes that came later than the first calls that they were for."""

from __future__ import annotations

import errno
import os
import shutil
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from otel_gpuflame.capture import attachments as attachments_module
from otel_gpuflame.capture import library_table
from otel_gpuflame.capture.attached import LibraryUse
from otel_gpuflame.capture.attachments import Attachments, LateProbes
from otel_gpuflame.capture.bpf.libbpf import LibbpfError
from otel_gpuflame.capture.bpf.probes import ProbeGroup, Program
from otel_gpuflame.capture.bpf.uprobes import ProbePoint
from otel_gpuflame.capture.libraries import GpuLibrary
from otel_gpuflame.capture.refusals import RetryAt
from otel_gpuflame.capture.room import Holder

NOW_NS = 5_000_000_000


@pytest.fixture(autouse=True)
def file_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not an overlay, whatever the tests run on: that asks the kernel for probes, of which there are none here."""
    monkeypatch.setattr(library_table, "is_on_overlay", lambda _fd: False)


@pytest.fixture
def attachments(monkeypatch: pytest.MonkeyPatch) -> Attachments:
    """Attaches to any file, at NOW_NS."""

    def read(path: Path) -> GpuLibrary:
        return GpuLibrary(path, (ProbePoint(Program.CALL, 16, 0),))

    monkeypatch.setattr(attachments_module, "read_library", read)
    monkeypatch.setattr(attachments_module, "time", SimpleNamespace(monotonic_ns=lambda: NOW_NS))
    links: Any = SimpleNamespace(
        attach=lambda *_a, **_k: None, detach_all=lambda: None, descriptors=len
    )
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
    seen: Any = SimpleNamespace(begin=lambda _now_ns: None)
    torch, driver = "/venv/torch/lib/libtorch_cpu.so", "/usr/lib/libcuda.so.1"
    for passes in (None, seen):
        attachments = Attachments(links, in_windows=False, passes=passes)
        assert attachments.wants(torch) is (passes is not None)
        assert attachments.wants(driver) is True
        assert attachments.wants("/usr/lib/libc.so.6") is False


def test_in_a_window_nodes_are_probed_before_launches(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A launch whose node was not seen has no owner. Nor is the library late: no call is missed for it."""
    paths = [tmp_path / name for name in ("libcuda.so.1", "libtorch_cpu.so")]
    for path, reader in zip(paths, ("read_library", "read_autograd_library"), strict=True):
        path.touch()
        found = GpuLibrary(path, (ProbePoint(Program.CALL, 16, 0, windowed=True),))
        monkeypatch.setattr(attachments_module, reader, lambda _path, found=found: found)
    attached: list[object] = []
    links: Any = SimpleNamespace(
        attach=lambda owner, _path, points, **_k: attached.extend([owner] * len(points)),
        detach_all=lambda: None,
        descriptors=len,
    )
    seen: Any = SimpleNamespace(begin=lambda _now_ns: None)
    attachments = Attachments(links, in_windows=True, passes=seen)
    uses = [attachments.attach(path, NOW_NS, str(path), NOW_NS) for path in paths]
    assert attached == []
    attachments.open_window()
    assert attached == [use.key for use in reversed(uses) if isinstance(use, LibraryUse)]
    assert [late.path for late in attachments.late] == paths[:1]
    attachments.close()


class _Links:
    """Remembers what is attached: by owner, the offsets of probes."""

    def __init__(self) -> None:
        self.lasting: dict[object, list[int]] = {}
        self.windowed: dict[object, list[int]] = {}
        self.graces_s: list[float] = []

    def attach(
        self, owner: object, _path: Path, points: list[ProbePoint], *, in_window: bool = False
    ) -> None:
        group = self.windowed if in_window else self.lasting
        group[owner] = group.get(owner, []) + [point.offset for point in points]

    def descriptors(self, points: list[ProbePoint]) -> int:
        return len(points)

    def detach(self, owner: object) -> None:
        self.lasting.pop(owner, None)
        self.windowed.pop(owner, None)

    def close_window(self, grace_s: float) -> None:
        self.graces_s.append(grace_s)
        self.windowed.clear()

    def detach_all(self) -> None:
        self.lasting.clear()
        self.windowed.clear()

    def offsets(self) -> list[int]:
        """Each place that has a probe, as often as it has one."""
        return sorted(chain(*self.lasting.values(), *self.windowed.values()))


def test_names_asked_again_and_again_are_probed_in_windows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And always again for a new program, whose names may be asked for once; never twice at a time."""
    path = tmp_path / "libcuda.so.1"
    path.touch()
    points = (
        ProbePoint(Program.CALL, 16, 0),
        ProbePoint(Program.CALL, 32, 0, windowed=True),
        ProbePoint(Program.NAME_ENTER, 48, 0, group=ProbeGroup.NAME),
        ProbePoint(Program.NAME_ENTER, 64, 0, group=ProbeGroup.ALIAS),
    )
    found = GpuLibrary(path, points)
    monkeypatch.setattr(attachments_module, "read_library", lambda _path: found)
    links: Any = _Links()
    attachments = Attachments(links, in_windows=True)
    attachments.attach(path, NOW_NS, str(path))
    assert links.offsets() == [16, 48, 64]
    attachments.probe_in_windows({ProbeGroup.ALIAS})
    assert links.offsets() == [16, 48]
    attachments.open_window()
    assert links.offsets() == [16, 32, 48, 64]
    attachments.close_window()
    assert links.offsets() == [16, 48]
    attachments.probe_always(ProbeGroup)
    assert links.offsets() == [16, 48, 64]
    attachments.open_window()
    assert links.offsets() == [16, 32, 48, 64]
    attachments.close_window()
    attachments.let_go_of_unused(NOW_NS + 120_000_000_000)
    assert links.offsets() == []
    attachments.close()


def test_calls_that_began_in_a_window_are_seen_to_return(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where waits are windowed, return probes stay a while."""
    path = tmp_path / "libcuda.so.1"
    path.touch()
    points = tuple(
        ProbePoint(program, 16, 0, group=ProbeGroup.WAIT)
        for program in (Program.CALL_ENTER, Program.CALL_RETURN)
    )
    found = GpuLibrary(path, points)
    monkeypatch.setattr(attachments_module, "read_library", lambda _path: found)
    links: Any = _Links()
    attachments = Attachments(links, in_windows=True)
    attachments.attach(path, NOW_NS, str(path))
    attachments.open_window()
    assert links.offsets() == [16, 16]
    attachments.close_window()
    attachments.probe_in_windows({ProbeGroup.WAIT})
    assert links.offsets() == []
    attachments.open_window()
    assert links.offsets() == [16, 16]
    attachments.close_window()
    assert links.offsets() == []
    assert links.graces_s[0] == 0.0 < links.graces_s[1]
    attachments.close()


def test_waits_that_lose_their_probes_are_not_seen_to_return(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Told when the probes are gone, and only where they go: the rest of calls in flight returns."""
    path = tmp_path / "libcuda.so.1"
    path.touch()
    points = (
        ProbePoint(Program.CALL_ENTER, 16, 0, group=ProbeGroup.WAIT),
        ProbePoint(Program.NAME_ENTER, 32, 0, group=ProbeGroup.NAME),
    )
    found = GpuLibrary(path, points)
    monkeypatch.setattr(attachments_module, "read_library", lambda _path: found)
    links: Any = _Links()
    told: list[list[int]] = []
    returns: Any = SimpleNamespace(lost=lambda _now_ns: told.append(links.offsets()))
    attachments = Attachments(links, in_windows=True, returns=returns)
    attachments.attach(path, NOW_NS, str(path))
    attachments.open_window()
    attachments.close_window()
    attachments.probe_in_windows({ProbeGroup.NAME})
    assert told == []
    attachments.probe_in_windows({ProbeGroup.WAIT})
    assert told == [[]]
    attachments.probe_in_windows({ProbeGroup.WAIT})
    attachments.open_window()
    assert (told, links.offsets()) == ([[]], [16, 32])
    attachments.close_window()
    assert told == [[], []]
    attachments.probe_always(ProbeGroup)
    attachments.open_window()
    attachments.close_window()
    assert told == [[], []]
    attachments.close()


def test_what_is_known_of_passes_is_forgotten_before_their_probe_goes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And counts again only after it is attached: whatever begins in between would be taken for another pass."""
    path = tmp_path / "libtorch_cpu.so"
    path.touch()
    points = (
        ProbePoint(Program.BACKWARD, 16, 3, group=ProbeGroup.BACKWARD),
        ProbePoint(Program.NODE, 32, 2, windowed=True),
    )
    found = GpuLibrary(path, points)
    monkeypatch.setattr(attachments_module, "read_autograd_library", lambda _path: found)
    monkeypatch.setattr(attachments_module, "PASSES_LEAD_NS", 0)
    links: Any = _Links()
    told: list[tuple[str, list[int]]] = []
    seen: Any = SimpleNamespace(
        begin=lambda _now_ns: told.append(("begin", links.offsets())),
        end=lambda: told.append(("end", links.offsets())),
    )
    attachments = Attachments(links, in_windows=True, passes=seen)
    attachments.attach(path, NOW_NS, str(path))
    attachments.open_window()
    attachments.close_window()
    assert told == [("begin", [16])]
    attachments.probe_in_windows({ProbeGroup.BACKWARD})
    assert links.offsets() == []
    attachments.open_window()
    assert links.offsets() == [16, 32]
    attachments.close_window()
    attachments.probe_always({ProbeGroup.BACKWARD})
    windowed = [("end", [16]), ("begin", [16]), ("end", [16, 32]), ("begin", [16])]
    assert told[1:] == windowed
    assert links.offsets() == [16]
    # Passes that are under way stay known where other things are chosen, or nothing.
    attachments.probe_always(())
    attachments.probe_always({ProbeGroup.WAIT, ProbeGroup.BACKWARD})
    assert told[1:] == windowed
    attachments.close()


def test_a_library_that_comes_while_passes_are_windowed_waits_for_a_window(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its passes are no more seen than those of others."""
    path = tmp_path / "libtorch_cpu.so"
    path.touch()
    point = ProbePoint(Program.BACKWARD, 16, 3, group=ProbeGroup.BACKWARD)
    found = GpuLibrary(path, (point,))
    monkeypatch.setattr(attachments_module, "read_autograd_library", lambda _path: found)
    links: Any = _Links()
    told: list[str] = []
    seen: Any = SimpleNamespace(
        begin=lambda _now_ns: told.append("begin"), end=lambda: told.append("end")
    )
    attachments = Attachments(links, in_windows=True, passes=seen)
    attachments.probe_in_windows({ProbeGroup.BACKWARD})
    attachments.attach(path, NOW_NS, str(path))
    assert links.offsets() == []
    assert told == ["end"]
    attachments.close()


def test_a_library_is_known_by_its_inode(attachments: Attachments, tmp_path: Path) -> None:
    """Another path to the same file is the same library; a copy is another one."""
    path, link, copy = tmp_path / "libcuda.so.1", tmp_path / "hard", tmp_path / "copy"
    path.touch()
    os.link(path, link)
    shutil.copy(path, copy)
    uses = [attachments.attach(each, NOW_NS) for each in (path, link, copy)]
    assert uses[0] == uses[1] != uses[2]
    assert len(attachments.libraries) == 2
    attachments.close()


class _Refusing(_Links):
    """Whose kernel has no memory left, as long as `is_short`."""

    is_short = True

    def attach(
        self, owner: object, path: Path, points: list[ProbePoint], *, in_window: bool = False
    ) -> None:
        if self.is_short:
            raise LibbpfError(errno.ENOMEM, f"attach to {path}")
        super().attach(owner, path, points, in_window=in_window)


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> _Refusing:
    """Every file is a library with one probe that is always on."""
    points = (ProbePoint(Program.CALL_ENTER, 16, 0, group=ProbeGroup.WAIT),)
    monkeypatch.setattr(attachments_module, "read_library", lambda path: GpuLibrary(path, points))
    return _Refusing()


def attachments_of(links: Any) -> Attachments:
    """Those that these links make, with windows."""
    return Attachments(links, in_windows=True)


def test_what_the_kernel_refused_is_tried_again(refusing: _Refusing, tmp_path: Path) -> None:
    """After a second, and then twice as late each time; in between it is not asked."""
    attachments = attachments_of(refusing)
    path = tmp_path / "libcuda.so.1"
    path.touch()
    second_ns = 1_000_000_000
    assert attachments.attach(path, NOW_NS) == RetryAt(NOW_NS + second_ns)
    assert attachments.attach(path, NOW_NS + 1) == RetryAt(NOW_NS + second_ns)
    assert attachments.errors.total == 1
    assert attachments.attach(path, NOW_NS + second_ns) == RetryAt(NOW_NS + 3 * second_ns)
    refusing.is_short = False
    assert isinstance(attachments.attach(path, NOW_NS + 3 * second_ns), LibraryUse)
    assert refusing.offsets() == [16]
    attachments.close()


def test_retries_never_stop_and_are_rare_in_the_end(refusing: _Refusing, tmp_path: Path) -> None:
    """A day of refusals is 296 attempts, and one text."""
    attachments = attachments_of(refusing)
    path = tmp_path / "libcuda.so.1"
    path.touch()
    now_ns, attempts = 0, 0
    while now_ns < 86_400_000_000_000:
        again = attachments.attach(path, now_ns)
        assert isinstance(again, RetryAt)
        now_ns, attempts = again.time_ns, attempts + 1
    assert attempts == 296
    text = f"cannot probe {path}: Cannot allocate memory ({attempts} times)"
    assert attachments.errors.texts() == (text,)
    attachments.close()


def test_a_file_that_cannot_be_opened_now_is_tried_again(
    refusing: _Refusing, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With no descriptors left nothing is known of it."""
    refusing.is_short = False
    attachments = attachments_of(refusing)
    path = tmp_path / "libcuda.so.1"
    path.touch()

    def no_descriptors(*_arguments: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as short:
        short.setattr(attachments_module.os, "dup", no_descriptors)
        assert attachments.attach(path, NOW_NS) == RetryAt(NOW_NS + 1_000_000_000)
    assert isinstance(attachments.attach(path, NOW_NS + 1_000_000_000), LibraryUse)
    attachments.close()


def test_a_file_without_probe_points_may_be_replaced_by_one_with_some(
    refusing: _Refusing, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An inode number that was of no library is one's now; the file itself is not read again."""
    refusing.is_short = False
    attachments = attachments_of(refusing)
    path = tmp_path / "libcuda.so.1"
    path.write_bytes(b"no library")
    read: list[Path] = []
    with monkeypatch.context() as empty:
        empty.setattr(attachments_module, "read_library", read.append)
        assert attachments.attach(path, NOW_NS) is None
        assert attachments.attach(path, NOW_NS) is None
    assert len(read) == 1
    path.write_bytes(b"another, in the same inode")
    assert isinstance(attachments.attach(path, NOW_NS), LibraryUse)
    attachments.close()


def test_what_is_said_of_libraries_that_fail_is_bounded(
    refusing: _Refusing, tmp_path: Path
) -> None:
    """However many a program brings; how many were left out is said."""
    attachments = attachments_of(refusing)
    for number in range(100):
        path = tmp_path / f"{number}"
        path.touch()
        attachments.attach(path, NOW_NS)
    texts = attachments.errors.texts()
    assert len(texts) == 65
    assert texts[-1] == "and 36 more of other libraries"
    assert attachments.errors.total == 100
    attachments.close()


def test_probes_that_could_not_come_back_are_tried_again(
    refusing: _Refusing, tmp_path: Path
) -> None:
    """Those of waits, when there are fewer of them again and the kernel has no memory."""
    refusing.is_short = False
    attachments = attachments_of(refusing)
    path = tmp_path / "libcuda.so.1"
    path.touch()
    attachments.attach(path, NOW_NS)
    attachments.probe_in_windows({ProbeGroup.WAIT})
    refusing.is_short = True
    attachments.probe_always({ProbeGroup.WAIT})
    assert refusing.offsets() == []
    refusing.is_short = False
    attachments.attach_missing()
    attachments.attach_missing()
    assert refusing.offsets() == [16]
    attachments.close()


def test_libraries_that_a_program_brings_are_limited(refusing: _Refusing, tmp_path: Path) -> None:
    """Files with the right name cost descriptors. Others find room, and who maps a probed one needs none."""
    refusing.is_short = False
    attachments = attachments_of(refusing)
    uses: list[object] = []
    for number in range(40):
        path = tmp_path / f"{number}"
        path.touch()
        uses.append(attachments.attach(path, NOW_NS, holder=Holder(7, 1000)))
    assert [isinstance(use, LibraryUse) for use in uses] == 16 * [True] + 24 * [False]
    assert len(refusing.offsets()) == 16
    assert attachments.without_room == 24
    reason = "process 7 has mapped 16 others"
    text = f"no room for further libraries, as {tmp_path}/16: {reason}"
    assert attachments.errors.texts() == (text,)
    mapped = attachments.attach(tmp_path / "3", NOW_NS, holder=Holder(7, 1000))
    assert isinstance(mapped, LibraryUse)
    second_ns = 1_000_000_000
    for number, holder in ((16, Holder(8, 0)), (17, None)):
        use = attachments.attach(tmp_path / f"{number}", NOW_NS + second_ns, holder=holder)
        assert isinstance(use, LibraryUse)
    attachments.close()
