"""Which processes are taken in, and what is said of those that are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from otel_gpuflame.capture.attached import FileKey, LibraryUse
from otel_gpuflame.capture.refusals import RetryAt
from otel_gpuflame.capture.targets import Targets
from otel_gpuflame.errors import TargetError

ROOT = 10


class Family:
    """Processes of a made-up /proc; `on_added` is what happens when one has been taken in."""

    def __init__(self, proc: Path, room: int = 100) -> None:
        self.proc = proc
        self.room = room
        self.taken_in: list[int] = []
        self.on_added: Callable[[int], None] = lambda _pid: None

    def born(self, pid: int, parent: int | None = None) -> None:
        """A process appears in the list of its parent."""
        thread = self.proc / str(pid) / "task" / str(pid)
        thread.mkdir(parents=True)
        (thread / "children").write_text("")
        (self.proc / str(pid) / "status").write_text(f"Name:\tx\nTgid:\t{pid}\n")
        if parent is not None:
            siblings = self.proc / str(parent) / "task" / str(parent) / "children"
            siblings.write_text(f"{siblings.read_text()}{pid} ")

    def ended(self, pid: int) -> None:
        """A process is gone, but whoever has read the list before still has its number."""
        (self.proc / str(pid) / "status").unlink()

    def set(self, key: bytes, _value: bytes, **_options: Any) -> bool:
        """The table of targets in BPF."""
        if len(self.taken_in) >= self.room:
            return False
        pid = int.from_bytes(key, "little")
        self.taken_in.append(pid)
        self.on_added(pid)
        return True


@pytest.fixture
def family(tmp_path: Path) -> Family:
    """A process with two children, one of which has a child."""
    family = Family(tmp_path)
    family.born(ROOT)
    family.born(11, ROOT)
    family.born(12, ROOT)
    family.born(13, 12)
    return family


def targets_of(family: Family, attach: Callable[..., object] = lambda *_: None) -> Targets:
    """Targets whose kernel is the family's; every library is watched."""
    bpf_map = SimpleNamespace(set=family.set)
    kernel: Any = SimpleNamespace(
        targets=bpf_map, costs=bpf_map, report=SimpleNamespace(missing={})
    )
    attachments: Any = SimpleNamespace(attach=attach, wants=lambda _path: True)
    return Targets(kernel, attachments, proc=family.proc)


def test_a_whole_family_is_taken_in_once(family: Family) -> None:
    """Each process by itself, however the listing is repeated."""
    targets_of(family).add_tree(ROOT, 0)
    assert sorted(family.taken_in) == [ROOT, 11, 12, 13]


def test_children_that_are_born_meanwhile_are_taken_in(family: Family) -> None:
    """A child forked by one that was listed, and not yet taken in, is found by the next listing."""

    def fork_late(pid: int) -> None:
        if pid == 12:
            family.born(14, 11)
        if pid == 14:
            family.born(15, 13)

    family.on_added = fork_late
    targets_of(family).add_tree(ROOT, 0)
    assert sorted(family.taken_in) == [ROOT, 11, 12, 13, 14, 15]


def test_a_child_that_ends_meanwhile_does_not_end_the_recording(family: Family) -> None:
    """It is left out, the others are taken in."""
    family.on_added = lambda pid: family.ended(12) if pid == 11 else None
    targets_of(family).add_tree(ROOT, 0)
    assert sorted(family.taken_in) == [ROOT, 11, 13]


def test_the_process_that_was_named_must_be_there(family: Family) -> None:
    """An unknown pid is an error, not an empty recording."""
    with pytest.raises(TargetError, match="no process 99"):
        targets_of(family).add_tree(99, 0)


def test_a_process_may_have_any_name(family: Family) -> None:
    """Text in any encoding, or cut within a character, as the kernel cuts it after 15 bytes."""
    (family.proc / str(ROOT) / "status").write_bytes(b"Name:\tdata-\xc3\nTgid:\t%d\n" % ROOT)
    targets_of(family).add_tree(ROOT, 0)
    assert sorted(family.taken_in) == [ROOT, 11, 12, 13]


def test_processes_without_room_are_counted(
    family: Family, caplog: pytest.LogCaptureFixture
) -> None:
    """The first one is named in the log; all are in the count."""
    family.room = 2
    targets = targets_of(family)
    targets.add_tree(ROOT, 0)
    assert targets.refused == 2
    assert caplog.text.count("is not captured") == 1


def test_a_library_that_was_refused_is_given_again(family: Family) -> None:
    """When it is time, also where the process has not changed for long."""
    library = family.proc / str(ROOT) / "root" / "libcuda.so.1"
    library.parent.mkdir()
    library.touch()
    mapping = f"1000-2000 r-xp 00000000 08:01 {library.stat().st_ino} /libcuda.so.1\n"
    (family.proc / str(ROOT) / "maps").write_text(mapping)
    hour_ns = 3_600_000_000_000
    use = LibraryUse(FileKey(1, 2), 1)
    answers: list[object] = [use, RetryAt(3 * hour_ns), *2 * [RetryAt(2 * hour_ns)]]
    targets = targets_of(family, lambda *_: answers.pop())
    targets.add(ROOT, 0)
    for now_ns, left in ((0, 3), (hour_ns, 2), (2 * hour_ns, 1), (2 * hour_ns + 1, 1)):
        targets.look(now_ns)
        assert len(answers) == left
    assert targets.gpu_pids() == []
    targets.look(3 * hour_ns)
    assert targets.gpu_pids() == [ROOT]


def test_processes_that_we_may_not_look_into_are_counted_once(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has gone is none of them."""

    def forbidden(self: Path, *_arguments: object) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    targets = targets_of(family)
    targets.add(ROOT, 0)
    targets.look(0)
    assert targets.unreadable == 0
    monkeypatch.setattr(Path, "open", forbidden)
    for time_ns in (20_000_000, 200_000_000):
        targets.look(time_ns)
    assert targets.unreadable == 1
