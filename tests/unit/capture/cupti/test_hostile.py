"""Regions that no library of ours has written: counted, and left alone; never a crash, a hang or a wrong row."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from otel_gpuflame.capture.cupti import find
from otel_gpuflame.capture.cupti.session import MAX_MALFORMED
from otel_gpuflame.capture.cupti.source import GpuSource
from otel_gpuflame.events.executions import NO_DEVICE, Executions, ExecutionsBegin, ExecutionsEnd
from otel_gpuflame.events.wire_gpu import GpuKind, LibraryState
from tests.unit.capture.cupti.test_source import counts, of, reading, rows, step
from tests.unit.capture.cupti.writer import PAGE, SLOTS, Writer, edge, kernels, target

LAYOUTS = {
    "magic": 0x1122334455667788,
    "record_bytes": 95,
    "region_bytes": 1 << 40,
    "records_offset": PAGE,
    "names_offset": PAGE,
    "record_slots": SLOTS - 1,
    "names_bytes": 1 << 30,
}
FAR = (1 << 64) - 1
_MINUTES = itertools.count(1)


def looks(source: GpuSource, writer: Writer, count: int) -> None:
    """Look so many times, each when the process is due."""
    for _ in range(count):
        source.look([writer.pid], time.monotonic_ns() + 60 * 10**9 * next(_MINUTES))


def was_opened(writer: Writer) -> bool:
    """Whether a lease has been given."""
    return int(writer.control["generation"][0]) != 0


@pytest.mark.parametrize("field", LAYOUTS)
def test_an_impossible_layout_is_refused(field: str, caplog: pytest.LogCaptureFixture) -> None:
    """Each look counts; after 16 the process is left alone, and that is said once."""
    with target() as writer, reading() as source:
        honest = writer.library[field].copy()
        writer.library[field] = LAYOUTS[field]
        looks(source, writer, MAX_MALFORMED)
        assert counts(source) == {"region.malformed": MAX_MALFORMED}
        writer.library[field] = honest
        looks(source, writer, 3)
        assert not was_opened(writer)
        assert counts(source) == {"region.malformed": MAX_MALFORMED}
    (message,) = caplog.messages
    assert f"process {writer.pid}: its GPU times are left alone" in message


def test_numbers_that_overflow_are_refused() -> None:
    """Offsets near 2^64 do not wrap around to something that fits."""
    with target() as writer, reading() as source:
        for field in ("records_offset", "names_offset"):
            honest = writer.library[field].copy()
            writer.library[field] = FAR - 95
            looks(source, writer, 1)
            writer.library[field] = honest
        assert not was_opened(writer)
        looks(source, writer, 1)
        assert was_opened(writer)


def test_a_library_of_another_version_is_told_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """The remedy is to restart the program with the library that belongs to the exporter."""
    with target() as writer, reading() as source:
        writer.library["abi"] = 1
        looks(source, writer, 3)
        assert not was_opened(writer)
    (message,) = caplog.messages
    assert "version 1 of the region, and not 2" in message
    assert "otel-gpuflame env" in message


def test_a_memfd_that_can_shrink_is_never_mapped() -> None:
    """A page that is gone would end the exporter with SIGBUS."""
    with target(is_sealed=False) as writer, reading() as source:
        looks(source, writer, MAX_MALFORMED + 2)
        assert not was_opened(writer)
        assert counts(source) == {"region.malformed": 1}


def test_a_region_cannot_shrink_under_the_exporter() -> None:
    """The kernel refuses it to the target, so what was checked stays so."""
    with target() as writer, reading(writer) as source:
        fd = os.open(writer.path, os.O_RDWR)
        with pytest.raises(PermissionError):
            os.ftruncate(fd, 0)
        os.close(fd)
        writer.open_window()
        assert len(of(step(source), ExecutionsBegin)) == 1


def test_an_empty_memfd_is_not_ready() -> None:
    """It may be looked at between its creation and its growth."""
    with (
        subprocess.Popen(
            [
                *(sys.executable, "-I", "-S", "-c"),
                "import os, sys; fd = os.memfd_create('otel_gpuflame'); print(flush=True); sys.stdin.read()",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as process,
        reading() as source,
    ):
        assert process.stdout is not None
        process.stdout.readline()
        source.look([process.pid], time.monotonic_ns())
        assert counts(source) == {}
        process.kill()


def test_a_file_that_only_has_the_name_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening a FIFO for writing would hang, and other files may do anything."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    path = f"/proc/{os.getpid()}/fd/{reader}"
    monkeypatch.setattr(find, "_LINK", os.readlink(path))
    assert path in list(find.region_descriptors(os.getpid()))
    with pytest.raises(find.MalformedError, match="no memfd"):
        find.open_region(path, os.getpid())
    os.close(reader)


def test_a_deleted_file_is_no_memfd(tmp_path: Path) -> None:
    """Its link can be made to read as that of a memfd, but for the mount that it is on."""
    plain = tmp_path / "memfd:otel_gpuflame"
    plain.write_bytes(bytes(3 * PAGE))
    fd = os.open(plain, os.O_RDWR)
    plain.unlink()
    with pytest.raises(find.MalformedError, match="no memfd"):
        find.open_region(f"/proc/{os.getpid()}/fd/{fd}", os.getpid())
    os.close(fd)


def test_a_region_is_that_of_the_process_that_maps_it() -> None:
    """A child of fork has the descriptor, and is not taken for the library's process."""
    with target(forks=True) as writer, reading() as source:
        source.look([writer.child], time.monotonic_ns())
        assert not was_opened(writer)
        source.look([writer.child, writer.pid], time.monotonic_ns())
        source.know(writer.key)
        writer.open_window()
        writer.write(kernels(2))
        assert set(rows(step(source))["tgid"]) == {writer.pid}
        assert "region.malformed" not in counts(source)


def test_a_descriptor_of_somebody_elses_region_is_nothing() -> None:
    """A process that was given one, as over a socket, does not become its owner."""
    with target() as writer, reading(writer) as source:
        fd = os.open(writer.path, os.O_RDWR)
        path = f"/proc/{os.getpid()}/fd/{fd}"
        assert path in list(find.region_descriptors(os.getpid()))
        with subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", "import sys; print(flush=True); sys.stdin.read()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(fd,),
        ) as other:
            assert other.stdout is not None
            other.stdout.readline()
            source.look([writer.pid, other.pid], time.monotonic_ns())
            writer.open_window()
            begins = of(step(source), ExecutionsBegin)
            other.kill()
        os.close(fd)
    assert [begin.process for begin in begins] == [writer.key]


def test_two_exporters_do_not_share_a_region(caplog: pytest.LogCaptureFixture) -> None:
    """They would take each other's records: the second says so, and gets its turn when the first is gone."""
    with target() as writer:
        with reading(writer), reading(writer) as second:
            looks(second, writer, 3)
            assert int(writer.control["generation"][0]) == 1
            assert counts(second) == {}
        with reading(writer):
            assert int(writer.control["generation"][0]) == 2
    assert [m for m in caplog.messages if "another exporter" in m] == [
        f"process {writer.pid}: another exporter reads its GPU times: stop that one"
    ]


@pytest.mark.parametrize("head", [SLOTS + 5, FAR, FAR - SLOTS])
def test_a_head_that_races_ahead_gives_no_rows(head: int) -> None:
    """More records than the ring holds cannot be there. An honest head later on is believed again."""
    with target() as writer, reading(writer) as source:
        writer.open_window()
        step(source)
        honest = int(writer.library["records_head"][0])
        writer.library["records_head"] = head + honest if head < FAR // 2 else head
        assert step(source) == []
        assert counts(source)["region.malformed"] == 1
        writer.library["records_head"] = honest
        writer.write(kernels(4))
        assert len(rows(step(source))) == 4


def test_a_head_that_goes_back_gives_no_rows() -> None:
    """What has been read is not read again."""
    with target() as writer, reading(writer) as source:
        writer.open_window()
        writer.write(kernels(4))
        step(source)
        writer.library["records_head"] = 1
        assert step(source) == []
        assert counts(source)["region.malformed"] == 1


def test_after_16_malformed_reads_a_region_is_left_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its window ends, marked, its lease is over, and it is not opened again; others go on."""
    with target() as bad, target() as good, reading(bad, good) as source:
        for writer in (bad, good):
            writer.open_window()
        step(source)
        bad.library["records_head"] = FAR
        events = [event for _ in range(MAX_MALFORMED + 3) for event in step(source)]
        (end,) = of(events, ExecutionsEnd)
        assert (end.process, end.incomplete) == (bad.key, "malformed")
        assert counts(source)["region.malformed"] == MAX_MALFORMED
        assert bad.control["lease_until_ns"][0] == 0
        generation = int(bad.control["generation"][0])
        source.look([bad.pid, good.pid], time.monotonic_ns() + 60 * 10**9)
        good.write(kernels(3))
        assert len(rows(step(source))) == 3
        assert int(bad.control["generation"][0]) == generation
    assert [m for m in caplog.messages if "left alone" in m] == [
        f"process {bad.pid}: its GPU times are left alone: "
        f"a head of {FAR} records, of which 1 were read, which our library never writes"
    ]


def test_kinds_that_do_not_exist_are_dropped_and_counted() -> None:
    """The other records of the same read are kept."""
    with target() as writer, reading(writer) as source:
        writer.open_window()
        writer.write(kernels(4, kind=[GpuKind.KERNEL, 0, 200, GpuKind.SYNC]))
        assert rows(step(source))["kind"].tolist() == [GpuKind.KERNEL, GpuKind.SYNC]
        assert (counts(source)["execution.malformed"], counts(source)["region.malformed"]) == (2, 1)


def test_devices_that_do_not_exist_are_unknown() -> None:
    """The record is kept without them."""
    with target() as writer, reading(writer) as source:
        writer.open_window()
        device = writer.add_device(bytes(range(16)), b"NVIDIA H200")
        writer.write(kernels(3, device=[device, device + 1, 254]))
        assert rows(step(source))["device"].tolist() == [0, NO_DEVICE, NO_DEVICE]
        assert counts(source)["execution_reference.malformed"] == 2


def test_more_devices_than_there_is_room_for_are_refused() -> None:
    """The number is not believed; rows come without devices."""
    with target() as writer, reading(writer) as source:
        writer.open_window()
        writer.library["device_count"] = 33
        writer.write(kernels(1, device=0))
        assert rows(step(source))["device"].tolist() == [NO_DEVICE]
        assert counts(source)["region.malformed"] == 1


@pytest.mark.parametrize("name", [2, 3, 5, 4093, 4096, 1 << 31, 0xFFFFFFFF])
def test_a_name_that_is_no_entry_is_unknown(name: int) -> None:
    """Only where an entry begins there is one: an offset into the middle would give endless names."""
    with target() as writer, reading(writer) as source:
        writer.open_window()
        entry = writer.add_name(b"kernel name")
        writer.write(kernels(2, name=[entry, name]))
        found = rows(step(source))["name"].tolist()
        assert (found[0] != 0, found[1]) == (True, 0)
        assert counts(source)["execution_reference.malformed"] == 1


@pytest.mark.parametrize(
    "spoil",
    [
        lambda writer: writer.library.__setitem__("names_head", FAR),
        lambda writer: writer.library.__setitem__("names_head", 4100),
        lambda writer: writer.library.__setitem__("names_head", 7),
        lambda writer: (
            writer.add_name(b"x" * 4000)
            and writer.memory.__setitem__(
                slice(2 * PAGE + SLOTS * 96, 2 * PAGE + SLOTS * 96 + 4), b"\xff\xff\xff\x7f"
            )
        ),
        lambda writer: writer.library.__setitem__("names_head", 8),
    ],
    ids=["endless", "too far", "not padded", "longer than its part", "of no length"],
)
def test_garbage_among_the_names_costs_the_names_only(spoil: Callable[[Writer], None]) -> None:
    """Rows are delivered, without a name."""
    with target() as writer, reading(writer) as source:
        writer.open_window()
        spoil(writer)
        writer.write(kernels(2, name=1))
        assert rows(step(source))["name"].tolist() == [0, 0]
        assert counts(source)["region.malformed"] == 1


def test_names_and_models_that_are_no_text_are_kept_as_such() -> None:
    """Any bytes may come; they become text that every output can hold."""
    with target() as writer, reading(writer) as source:
        writer.open_window()
        writer.add_device(bytes(16), b"\xff\xfe model")
        writer.add_name(b"\x80\x00\xc3(")
        writer.write(kernels(1))
        devices, names, *_ = step(source)
    assert devices.devices[0].model == "\\xff\\xfe model"  # type: ignore[union-attr]
    assert devices.devices[0].uuid == ""  # type: ignore[union-attr]
    assert names.names[0].name == "\\x80\0\\xc3("  # type: ignore[union-attr]


def test_a_ring_of_begins_and_ends_is_garbage() -> None:
    """Each would be an event, and a target could keep us busy with them."""
    with target(slots=1024) as writer, reading(writer) as source:
        writer.write(np.concatenate([edge(GpuKind.WINDOW_OPEN, 1)] * 1000))
        assert step(source) == []
        assert (counts(source)["execution.malformed"], counts(source)["region.malformed"]) == (
            1000,
            1,
        )


def test_times_of_windows_stay_within_the_life_of_the_process() -> None:
    """Neither before it was born nor in the future, so that nothing waits for them forever."""
    with target() as writer, reading(writer) as source:
        writer.write(edge(GpuKind.WINDOW_OPEN, 0))
        writer.write(edge(GpuKind.WINDOW_CLOSE, FAR, 99))
        events = step(source)
        now_ns = time.monotonic_ns()
    (begin,), (end,) = of(events, ExecutionsBegin), of(events, ExecutionsEnd)
    assert begin.time_ns == writer.key.start_ns
    assert begin.time_ns < end.time_ns <= now_ns
    assert end.incomplete == "reason_99"


def test_counters_beyond_all_bounds_stay_numbers_that_a_file_can_hold() -> None:
    """Sums over processes, too."""
    with target() as one, target() as other, reading(one, other) as source:
        for writer in (one, other):
            writer.library["counters"] = FAR
        assert all(count < 1 << 62 for count in counts(source).values())


def test_random_garbage_everywhere_does_no_harm() -> None:
    """All that can be written is overwritten again and again, while a source reads: rows stay within their types."""
    random = np.random.default_rng(4)
    with target() as writer, reading(writer) as source:
        writer.open_window()
        for _ in range(200):
            noise = random.integers(0, 256, len(writer.memory), np.uint8)
            # The layout was read once, so that this is all that matters.
            writer.memory[64:PAGE] = noise[64:PAGE].tobytes()
            writer.memory[2 * PAGE :] = noise[2 * PAGE :].tobytes()
            near = int(random.integers(0, 2 * SLOTS))
            writer.library["records_head"] = int(writer.control["records_tail"][0]) + near
            writer.library["device_count"] = int(random.integers(0, 40))
            for event in of(step(source), Executions):
                assert (event.rows["tgid"] == writer.pid).all()
                assert (event.rows["end_ns"] <= time.monotonic_ns() + 10**9).all()
        assert counts(source)["region.malformed"] == MAX_MALFORMED


def test_a_state_that_does_not_exist_is_none() -> None:
    """Neither open nor refused."""
    with target() as writer, reading(writer) as source:
        writer.library["state"] = 77
        assert step(source) == []
        assert source.is_idle


def test_a_target_that_holds_the_lock_keeps_only_itself(caplog: pytest.LogCaptureFixture) -> None:
    """It looks like another exporter."""
    with target() as writer, reading() as source:
        fd = os.open(writer.path, os.O_RDWR)
        fcntl.flock(fd, fcntl.LOCK_EX)
        looks(source, writer, 2)
        assert not was_opened(writer)
        os.close(fd)
        looks(source, writer, 1)
        assert was_opened(writer)
    assert len(caplog.messages) == 1


def test_an_unknown_error_of_the_library_is_told_as_a_number(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A newer library may know more errors."""
    with target() as writer, reading(writer) as source:
        writer.library["error"], writer.library["state"] = 77, LibraryState.UNUSABLE
        step(source)
    assert "error 77 of the library" in caplog.messages[0]


@pytest.mark.parametrize(
    ("code", "remedy"), [(errno.EACCES, "CAP_SYS_PTRACE"), (errno.EMFILE, "ulimit -n")]
)
@pytest.mark.parametrize("function", ["scandir", "open"])
def test_a_process_that_cannot_be_looked_at_is_told_once(
    function: str,
    code: int,
    remedy: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With the reason and the remedy; as soon as it can be, it is."""

    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    with target() as writer, reading() as source:
        with monkeypatch.context() as patched:
            patched.setattr(find.os, function, refuse)
            looks(source, writer, 3)
        assert counts(source) == {}
        looks(source, writer, 1)
        assert was_opened(writer)
    (message,) = caplog.messages
    assert f"process {writer.pid}: its GPU times cannot be " in message
    assert os.strerror(code) in message
    assert remedy in message


def test_a_memfd_that_cannot_be_written_to_is_refused() -> None:
    """No lease could be given; it is not taken for a lack of rights."""
    future_write = 0x10
    with target(is_sealed=False) as writer, reading() as source:
        fd = os.open(writer.path, os.O_RDWR)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL | future_write
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        os.close(fd)
        looks(source, writer, 2)
        assert counts(source) == {"region.malformed": 2}


def test_nothing_is_kept_open_of_what_was_refused_or_is_over() -> None:
    """Descriptors of the exporter are few, and targets are many."""

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    with target() as writer, reading() as source:
        with_writer = descriptors()
        writer.library["magic"] = 1
        looks(source, writer, 4)
        assert descriptors() == with_writer
        writer.make()
        looks(source, writer, 1)
        assert descriptors() > with_writer
        source.know(writer.key)
        writer.library["records_head"] = FAR
        for _ in range(MAX_MALFORMED):
            step(source)
        assert descriptors() == with_writer


def test_a_lease_on_the_file_does_not_hold_us_up() -> None:
    """The kernel would let an opener wait for 45 s until the holder of a lease gives way: it is not opened at all."""
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    memfd = os.memfd_create("otel_gpuflame")
    os.ftruncate(memfd, 1 << 20)
    held = os.open(f"/proc/self/fd/{memfd}", os.O_RDONLY)
    os.close(memfd)
    try:
        fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        with pytest.raises(BlockingIOError):
            find.open_region(f"/proc/self/fd/{held}", os.getpid())
    finally:
        fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        os.close(held)
        signal.signal(signal.SIGIO, before)
