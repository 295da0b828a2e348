"""Which tables BPF has, for whom, and when they go; the feeder that makes them. Real libraries, a double for BPF."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from otel_gpuflame.capture.unwinding import feeder as feeder_module
from otel_gpuflame.capture.unwinding import files as files_module
from otel_gpuflame.capture.unwinding import processes as processes_module
from otel_gpuflame.capture.unwinding.feeder import TableFeeder
from otel_gpuflame.capture.unwinding.files import (
    NO_TABLE,
    UNUSED_KEPT_NS,
    UnwindFiles,
    half_of,
)
from otel_gpuflame.capture.unwinding.processes import UnwindProcesses
from otel_gpuflame.events import wire
from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.symbolize.elf import FileBytes, MemoryBytes
from otel_gpuflame.symbolize.elf_files import ElfFile
from otel_gpuflame.symbolize.maps import AddressMap, parse_maps, read_maps
from otel_gpuflame.symbolize.start_time import start_monotonic_ns
from otel_gpuflame.symbolize.unwind.eh_frame import UnwindError, find_eh_frame

LIMIT_S = 60.0
_MACHINE_AT = 18
"""In an ELF header."""
_EM_AARCH64 = 183


class Maps:
    """What BPF would hold."""

    def __init__(self) -> None:
        self.files: dict[int, NDArray[Any]] = {}
        self.processes: dict[int, NDArray[Any]] = {}
        self.refuses = False

    def put_file(self, number: int, rows: NDArray[Any]) -> None:
        if self.refuses:
            raise OSError(errno.ENOMEM, "no memory")
        self.files[number] = rows

    def drop_file(self, number: int) -> None:
        for mappings in self.processes.values():
            assert number not in mappings["file"], "still in use"
        del self.files[number]

    def put_process(self, pid: int, mappings: NDArray[Any]) -> None:
        assert set(mappings["file"].tolist()) <= {0, *self.files}
        self.processes[pid] = mappings

    def drop_process(self, pid: int) -> None:
        del self.processes[pid]


def libc() -> Path:
    """The C library of this process."""
    for mapping in parse_maps(Path("/proc/self/maps").read_bytes()):
        if "/libc.so" in mapping.path:
            return Path(mapping.path)
    raise LookupError("libc")


def elf_of(path: Path) -> ElfFile:
    """A file of its own each time, as two containers have it."""
    return ElfFile(FileBytes(os.open(path, os.O_RDONLY)))


@pytest.fixture
def child() -> Iterator[ProcessKey]:
    """A running interpreter."""
    command = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        started_ns = start_monotonic_ns(process.pid)
        assert started_ns is not None
        yield ProcessKey(process.pid, started_ns)
        process.kill()


class TestFiles:
    @pytest.mark.parametrize(("count", "half"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 4), (9, 8)])
    def test_the_first_step_of_a_search(self, count: int, half: int) -> None:
        assert half_of(count) == half

    def test_equal_files_share_a_table(self) -> None:
        maps = Maps()
        files = UnwindFiles(maps)
        tables = {files.take(elf_of(libc()), 0) for _ in range(3)}
        assert len(tables) == len(maps.files) == 1
        (table,) = tables
        assert files.bytes == maps.files[table.number].nbytes
        assert table.half < len(maps.files[table.number]) <= 2 * table.half

    def test_an_equal_build_id_is_no_equal_file(self) -> None:
        maps = Maps()
        files = UnwindFiles(maps)
        data = bytearray(libc().read_bytes())
        honest = ElfFile(MemoryBytes(bytes(data)))
        place = find_eh_frame(honest.data, honest.headers)
        data[place.offset + place.size // 2] ^= 1
        other = ElfFile(MemoryBytes(bytes(data)))
        assert honest.headers.build_id == other.headers.build_id != ""
        assert files.take(honest, 0).number != files.take(other, 0).number
        assert len(maps.files) == 2

    def test_a_file_without_unwind_information_is_looked_at_once(self) -> None:
        files = UnwindFiles(Maps())
        data = bytearray(libc().read_bytes())
        at = data.index((0x6474E550).to_bytes(4, "little"))
        data[at : at + 4] = bytes(4)
        elf = ElfFile(MemoryBytes(bytes(data)))
        assert files.take(elf, 0) == files.take(elf, 0) == NO_TABLE
        assert files.without == 1

    def test_a_file_of_another_architecture_is_refused_by_name(self) -> None:
        """Its registers have other numbers: rows would lead anywhere."""
        data = bytearray(libc().read_bytes())
        data[_MACHINE_AT : _MACHINE_AT + 2] = (_EM_AARCH64).to_bytes(2, "little")
        elf, files = ElfFile(MemoryBytes(bytes(data))), UnwindFiles(Maps())
        assert files.take(elf, 0) == NO_TABLE
        assert files.without == 1
        with pytest.raises(UnwindError, match="x86-64 only"):
            find_eh_frame(elf.data, elf.headers)

    def test_tables_stay_for_a_while_after_their_last_user(self) -> None:
        maps = Maps()
        files = UnwindFiles(maps)
        elf = elf_of(libc())
        table = files.take(elf, 0)
        files.take(elf, 0)
        files.give_back(table.number, 5)
        files.free_unused(10 * UNUSED_KEPT_NS)
        assert maps.files, "one user is left"
        files.give_back(table.number, 100)
        files.free_unused(99 + UNUSED_KEPT_NS)
        assert maps.files
        files.free_unused(100 + UNUSED_KEPT_NS)
        assert (maps.files, files.bytes) == ({}, 0)
        assert files.take(elf, 0).number != table.number, "numbers are never used again"

    def test_there_is_an_upper_limit(self) -> None:
        maps = Maps()
        files = UnwindFiles(maps, max_bytes=1000)
        assert files.take(elf_of(libc()), 0) == NO_TABLE
        assert (maps.files, files.bytes, files.refused) == ({}, 0, 1)

    def test_room_is_made_by_what_nobody_uses(self) -> None:
        maps = Maps()
        size = UnwindFiles(maps)
        size.take(elf_of(libc()), 0)
        files = UnwindFiles(maps, max_bytes=size.bytes)
        first = files.take(elf_of(libc()), 0)
        files.give_back(first.number, 0)
        vdso = next(
            m for m in parse_maps(Path("/proc/self/maps").read_bytes()) if m.path == "[vdso]"
        )
        with Path("/proc/self/mem").open("rb") as memory:
            memory.seek(vdso.start)
            image = memory.read(vdso.end - vdso.start)
        assert files.take(ElfFile(MemoryBytes(image)), 0) != NO_TABLE
        assert first.number not in maps.files


class TestProcesses:
    def test_mappings_are_sorted_and_lead_to_the_tables(self, child: ProcessKey) -> None:
        maps = Maps()
        processes = UnwindProcesses(maps)
        mappings = read_maps(child.tgid, Path("/proc"))
        assert mappings is not None
        processes.want(child, [m.start for m in mappings.mappings], 0)
        head, *rows = maps.processes[child.tgid]
        assert (head["start"], head["half"]) == (child.start_ns, half_of(len(rows) + 1))
        assert [int(row["start"]) for row in rows] == [m.start for m in mappings.mappings]
        by_path = {m.path: row for m, row in zip(mappings.mappings, rows, strict=True)}
        assert by_path["[vdso]"]["file"] != 0
        row = next(row for path, row in by_path.items() if "/libc.so" in path)
        table = maps.files[int(row["file"])]
        assert row["base"] <= row["start"]
        assert table["address"][-1] + row["base"] <= row["end"]

    def test_small_tables_are_made_before_they_are_needed(self, child: ProcessKey) -> None:
        maps = Maps()
        UnwindProcesses(maps).want(child, (), 0)
        mappings = read_maps(child.tgid, Path("/proc"))
        assert mappings is not None
        starts = {int(row["start"]) for row in maps.processes[child.tgid][1:]}
        assert {m.start for m in mappings.mappings if "/libc.so" in m.path} <= starts

    def test_what_has_ended_is_forgotten_but_not_its_successor(self, child: ProcessKey) -> None:
        maps = Maps()
        processes = UnwindProcesses(maps)
        processes.want(child, (), 0)
        successor = ProcessKey(child.tgid, child.start_ns + 1)
        processes.want(successor, (), 0)
        processes.forget(child, 0)
        assert maps.processes[child.tgid][0]["start"] == successor.start_ns
        processes.forget(successor, 0)
        assert (maps.processes, len(processes)) == ({}, 0)
        processes.files.free_unused(1 << 62)
        assert maps.files == {}

    def test_a_pid_of_another_process_is_not_looked_at(self, child: ProcessKey) -> None:
        maps = Maps()
        UnwindProcesses(maps).want(ProcessKey(child.tgid, child.start_ns - 10**12), (), 0)
        assert maps.processes == {}

    def test_changed_mappings_replace_the_old_ones(self, child: ProcessKey) -> None:
        maps = Maps()
        processes = UnwindProcesses(maps)
        processes.changed(child, 0)
        assert maps.processes == {}, "nobody has asked for it"
        processes.want(child, (), 0)
        before = maps.processes[child.tgid]
        processes.changed(child, 0)
        after = maps.processes[child.tgid]
        assert after is not before
        np.testing.assert_array_equal(after[1:], before[1:])
        assert after[0]["end"] > before[0]["end"], (
            "what BPF remembers of the old ones is no longer valid"
        )
        processes.forget(child, 0)
        processes.files.free_unused(1 << 62)
        assert maps.files == {}, "each look has given back what the one before took"


def until(condition: Callable[[], bool]) -> None:
    """Wait for another thread."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


class TestFeeder:
    def test_requests_are_served_in_order(self, child: ProcessKey) -> None:
        maps = Maps()
        feeder = TableFeeder(maps)
        feeder.start()
        try:
            feeder.want(child, ())
            feeder.changed(child)
            until(lambda: child.tgid in maps.processes)
            feeder.forget(child)
            until(lambda: maps.processes == {})
        finally:
            feeder.close()
        feeder.close()

    def test_a_refusal_is_counted_and_the_thread_goes_on(self, child: ProcessKey) -> None:
        maps = Maps()
        maps.refuses = True
        feeder = TableFeeder(maps)
        feeder.start()
        try:
            feeder.want(child, ())
            until(lambda: "unwind_tables_unreadable" in {c.outcome for c in feeder.counters()})
            maps.refuses = False
            feeder.want(child, ())
            until(lambda: child.tgid in maps.processes)
        finally:
            feeder.close()

    def test_stacks_that_come_before_it_is_done_are_one_request(
        self, child: ProcessKey, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A program may have thousands of them, and its mappings take milliseconds to read."""
        maps, reads = Maps(), []
        address_map = read_maps(child.tgid, Path("/proc"))
        assert address_map is not None

        def counted(pid: int, _proc: Path) -> AddressMap:
            reads.append(pid)
            return address_map

        monkeypatch.setattr(processes_module, "read_maps", counted)
        feeder = TableFeeder(maps)
        for mapping in address_map.mappings:
            feeder.want(child, (mapping.start + 1, mapping.end - 1))
        feeder.start()
        try:
            until(lambda: child.tgid in maps.processes)
            assert reads == [child.tgid]
            published = maps.processes[child.tgid]["start"].tolist()[1:]
            assert published == [each.start for each in address_map.mappings]
        finally:
            feeder.close()

    def test_unused_tables_go_while_others_ask(
        self, child: ProcessKey, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """On a busy host there is always somebody."""
        monkeypatch.setattr(feeder_module, "_LOOK_S", 0.2)
        monkeypatch.setattr(files_module, "UNUSED_KEPT_NS", 0)
        maps, nobody = Maps(), ProcessKey(child.tgid, child.start_ns + int(LIMIT_S * 1e9))
        feeder = TableFeeder(maps)
        feeder.start()
        try:
            feeder.want(child, ())
            until(lambda: child.tgid in maps.processes)
            feeder.forget(child)

            def is_empty_when_asked() -> bool:
                feeder.want(nobody, ())
                return not maps.files

            until(is_empty_when_asked)
        finally:
            feeder.close()

    def test_it_is_as_nice_as_the_process(self, child: ProcessKey) -> None:
        """A nicer thread that holds the interpreter's lock stops everybody on a full machine: for 1.5 s, measured."""
        before, maps = set(os.listdir("/proc/self/task")), Maps()
        feeder = TableFeeder(maps)
        feeder.start()
        try:
            feeder.want(child, ())
            until(lambda: child.tgid in maps.processes)
            (thread,) = set(os.listdir("/proc/self/task")) - before
            own = os.getpriority(os.PRIO_PROCESS, 0)
            assert os.getpriority(os.PRIO_PROCESS, int(thread)) == own
        finally:
            feeder.close()

    def test_it_may_be_closed_before_it_was_started(self) -> None:
        TableFeeder(Maps()).close()


def test_rows_have_the_layout_that_bpf_reads() -> None:
    """The array is copied as it is."""
    assert (wire.UNWIND_ROW.itemsize, wire.UNWIND_MAPPING.itemsize) == (8, 32)
