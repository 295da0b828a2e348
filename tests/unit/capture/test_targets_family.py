"""Which processes are taken in, and what is said of those that are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from otel_gpuflame.capture.attached import FileKey, LibraryUse
from otel_gpuflame.capture.bpf.decode import ProcessChange
from otel_gpuflame.capture.refusals import RetryAt
from otel_gpuflame.capture.targets import Targets
from otel_gpuflame.errors import TargetError
from otel_gpuflame.events import wire
from otel_gpuflame.events.frames import ProcessKey

ROOT = 10
SECOND_NS = 1_000_000_000


class Family:
    """Processes of a made-up /proc; `on_added` is what happens when one has been taken in."""

    def __init__(self, proc: Path, room: int = 100) -> None:
        self.proc = proc
        self.room = room
        self.taken_in: list[int] = []
        self.deleted: list[int] = []
        self.on_added: Callable[[int], None] = lambda _pid: None

    def born(self, pid: int, parent: int | None = None) -> None:
        """A process appears in the list of its parent."""
        thread = self.proc / str(pid) / "task" / str(pid)
        thread.mkdir(parents=True)
        (thread / "children").write_text("")
        (self.proc / str(pid) / "status").write_text(f"Name:\tx\nTgid:\t{pid}\n")
        self.is_now(pid, b"R")
        if parent is not None:
            siblings = self.proc / str(parent) / "task" / str(parent) / "children"
            siblings.write_text(f"{siblings.read_text()}{pid} ")

    def is_now(self, pid: int, state: bytes, threads: int = 1, started_ticks: int = 1) -> None:
        """What /proc/PID/stat says."""
        fields = [state, *15 * [b"0"], b"0", b"%d" % threads, b"0", b"%d" % started_ticks]
        (self.proc / str(pid) / "stat").write_bytes(b"%d (x) %s" % (pid, b" ".join(fields)))

    def ended(self, pid: int) -> None:
        """A process is gone, but whoever has read the list before still has its number."""
        (self.proc / str(pid) / "status").unlink(missing_ok=True)
        (self.proc / str(pid) / "stat").unlink(missing_ok=True)

    def delete(self, key: bytes) -> bool:
        """An entry of one of BPF's tables goes."""
        self.deleted.append(int.from_bytes(key, "little"))
        return True

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
    bpf_map = SimpleNamespace(set=family.set, delete=family.delete)
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


@pytest.mark.parametrize("end", ["is gone", "is a zombie", "is another"])
def test_a_child_that_ends_while_it_is_taken_in_leaves_nothing(family: Family, end: str) -> None:
    """BPF had removed it before it was put there: its entry would soon mean another process."""

    def ends(pid: int) -> None:
        if pid == 12:
            family.ended(12)
            if end == "is a zombie":
                family.is_now(12, b"Z")
            if end == "is another":
                family.is_now(12, b"R", started_ticks=1_000)

    family.on_added = ends
    targets = targets_of(family)
    targets.add_tree(ROOT, 0)
    assert sorted(targets.pids()) == [ROOT, 11, 13]
    assert family.deleted == [12, 12]


def test_a_process_whose_first_thread_has_ended_is_taken_in(family: Family) -> None:
    """It looks like a zombie as long as others go on."""
    family.is_now(12, b"Z", threads=2)
    targets = targets_of(family)
    targets.add_tree(ROOT, 0)
    assert sorted(targets.pids()) == [ROOT, 11, 12, 13]


@pytest.mark.parametrize("is_reused", [False, True])
def test_a_process_whose_end_was_not_reported_goes(family: Family, is_reused: bool) -> None:
    """With its entries in BPF's tables, and its claim on libraries; a report that is on its way is waited for."""
    targets = targets_of(family)
    targets.add_tree(ROOT, 0)
    family.ended(12)
    if is_reused:
        family.is_now(12, b"R", started_ticks=1_000)
    assert targets.drop_gone(SECOND_NS) == []
    assert targets.drop_gone(SECOND_NS + 1) == []
    (dropped,) = targets.drop_gone(2 * SECOND_NS)
    assert dropped.tgid == 12
    assert sorted(targets.pids()) == [ROOT, 11, 13]
    assert family.deleted == [12, 12]
    assert targets.unreported == 1


def test_looking_for_processes_that_are_gone_takes_turns(tmp_path: Path) -> None:
    """64 in a second, of any number: a look costs 17 µs."""
    family = Family(tmp_path, room=200)
    targets = targets_of(family)
    for pid in range(100, 230):
        family.born(pid)
        targets.add(pid, 0)
        family.ended(pid)
    dropped = [len(targets.drop_gone(second * SECOND_NS)) for second in range(7)]
    assert dropped == [0, 0, 0, 64, 64, 2, 0]


def test_what_was_known_of_a_process_is_not_of_the_next_with_its_pid(family: Family) -> None:
    """Also where its end was not reported: the new one's value is written, as it would not be if it were known."""
    (family.proc / str(ROOT) / "maps").write_text("1000-2000 r-xp 00000000 08:01 7 /bin/x\n")
    targets = targets_of(family)
    targets.add(ROOT, 0)
    targets.look(0)
    assert family.taken_in == [ROOT, ROOT]
    for start_ns, writes in ((10_000_000, 0), (SECOND_NS, 1), (SECOND_NS, 0)):
        family.taken_in.clear()
        process = ProcessKey(ROOT, start_ns)
        targets.apply(ProcessChange(wire.ProcessChange.MAP, process, ProcessKey(0, 0), 0, "x"), 0)
        targets.look(SECOND_NS)
        assert len(family.taken_in) == writes
    old = ProcessKey(ROOT, 10_000_000)
    targets.apply(ProcessChange(wire.ProcessChange.EXIT, old, ProcessKey(0, 0), 0, "x"), 0)
    assert targets.pids() == [ROOT]


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
    assert len(targets) == 2
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
