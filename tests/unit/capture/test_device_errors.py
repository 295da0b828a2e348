"""Errors that NVIDIA's driver reports: where its record has them, whose device it is, and what is said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from otel_gpuflame.capture import device_errors
from otel_gpuflame.capture.bpf import tracefs
from otel_gpuflame.capture.bpf.decode import RawXid, decode_xid
from otel_gpuflame.capture.bpf.kernel import cookie_of
from otel_gpuflame.capture.bpf.programs import OPTIONAL, Tracepoint
from otel_gpuflame.capture.device_counters import DeviceCounters
from otel_gpuflame.capture.device_errors import error_events
from otel_gpuflame.capture.host_devices import HostDevices
from otel_gpuflame.capture.nvml import Board
from otel_gpuflame.events import wire
from otel_gpuflame.events.device_errors import DeviceErrors
from otel_gpuflame.events.executions import NO_DEVICE, Devices
from otel_gpuflame.profile.device_faults import DeviceFaults

FORMAT = """\
name: nvidia_dev_xid
ID: 2112
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;
\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

\tfield:__data_loc char[] dev;\toffset:8;\tsize:4;\tsigned:0;
\tfield:u32 error_code;\toffset:12;\tsize:4;\tsigned:0;
\tfield:__data_loc char[] msg;\toffset:16;\tsize:4;\tsigned:0;

print fmt: "Xid (PCI:%s): %u, %s", __get_str(dev), REC->error_code, __get_str(msg)
"""
"""What the kernel makes of the macro in the driver's sources (kernel-open/nvidia/nv-tracepoint.h)."""
XID = Tracepoint("nvidia_dev_xid", category="nvidia", fields=("dev", "error_code", "msg"))
RAW = RawXid(5, "0000:3b:00.0", 31, "pid=77, MMU Fault")


def mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """A tracefs with this format."""
    folder = tmp_path / "events/nvidia/nvidia_dev_xid"
    folder.mkdir(parents=True)
    (folder / "format").write_text(text)
    monkeypatch.setattr(tracefs, "_MOUNT_POINTS", (tmp_path,))
    monkeypatch.setattr(tracefs, "detached_mount", lambda _filesystem: None)


def test_the_program_asks_for_this_tracepoint() -> None:
    """Category, name and fields are the driver's."""
    (program,) = (each for each in OPTIONAL if each.name == "on_xid")
    assert program.tracepoints == (XID,)


def test_offsets_come_from_the_running_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program gets them in its cookie, dev lowest."""
    mount(tmp_path, monkeypatch, FORMAT)
    assert cookie_of(XID) == 8 | 12 << 16 | 16 << 32


def test_other_layouts_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver may put a field before them."""
    text = FORMAT.replace("offset:16;", "offset:40;").replace("offset:8;", "offset:24;")
    mount(tmp_path, monkeypatch, text)
    assert cookie_of(XID) == 24 | 12 << 16 | 40 << 32


@pytest.mark.parametrize(
    "text", ["", FORMAT.replace(" msg;", " text;"), FORMAT.replace("16;", "65536;")]
)
def test_a_record_without_these_fields_is_not_read(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is guessed."""
    mount(tmp_path, monkeypatch, text)
    assert cookie_of(XID) is None


def test_records_are_decoded() -> None:
    """Texts end where they say; what an earlier one left behind them does not count."""
    row = np.zeros(1, wire.XID)
    row["time_ns"], row["code"] = 7, 79
    for name, text in (("bus_id", b"0000:01:00.0\0left"), ("message", b"GPU has fallen off\n\0xx")):
        row[name][0, : len(text)] = np.frombuffer(text, "i1")
    expected = RawXid(7, "0000:01:00.0", 79, "GPU has fallen off")
    assert decode_xid(row.tobytes()) == expected
    row["message"] = -1
    assert decode_xid(row.tobytes()).message == "\\xff" * 192


def counters_with(board: Board | None, monkeypatch: pytest.MonkeyPatch) -> DeviceCounters:
    """Counters of a host with this device in that place."""
    counters = DeviceCounters()
    monkeypatch.setattr(counters, "_boards", {} if board is None else {RAW.bus_id: board})
    return counters


def test_an_error_is_of_the_device_in_that_place(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The device comes before it, once; each error is said."""
    counters = counters_with(Board("GPU-x", "H200"), monkeypatch)
    devices = HostDevices()
    announced, errors = error_events([RAW, RAW], counters, devices)
    assert isinstance(announced, Devices)
    assert [(each.index, each.uuid) for each in announced.devices] == [(0, "GPU-x")]
    assert isinstance(errors, DeviceErrors)
    first, _ = errors.errors
    assert (first.time_ns, first.device, first.code) == (5, 0, 31)
    assert (first.bus_id, first.message) == (RAW.bus_id, RAW.message)
    (only,) = error_events([RAW], counters, devices)
    assert isinstance(only, DeviceErrors)
    assert caplog.messages[0] == "H200 GPU-x (PCI 0000:3b:00.0): Xid 31: pid=77, MMU Fault"


@pytest.mark.parametrize("has_counters", [False, True])
def test_without_nvml_the_place_is_known(
    has_counters: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And nothing else of the device."""
    counters = counters_with(None, monkeypatch) if has_counters else None
    (errors,) = error_events([RAW], counters, HostDevices())
    assert isinstance(errors, DeviceErrors)
    assert (errors.errors[0].device, errors.errors[0].bus_id) == (NO_DEVICE, RAW.bus_id)
    assert "a device (PCI 0000:3b:00.0): Xid 31" in caplog.text
    assert error_events([], counters, HostDevices()) == []


def test_errors_are_counted_by_device_and_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the last message; a device that is named later is one all the same."""
    faults, devices = DeviceFaults(), HostDevices()
    later = RawXid(9, RAW.bus_id, RAW.code, "again")
    other = RawXid(10, RAW.bus_id, 43, "stopped")
    for raws, board in (([RAW], None), ([later, other], Board("GPU-x", "H200"))):
        for event in error_events(raws, counters_with(board, monkeypatch), devices):
            faults.feed(event)
    found = [(f.uuid, f.bus_id, f.code, f.count, f.message) for f in faults.faults()]
    assert found == [
        ("GPU-x", RAW.bus_id, 31, 2, "again"),
        ("GPU-x", RAW.bus_id, 43, 1, "stopped"),
    ]


def test_a_capture_cannot_make_us_keep_everything() -> None:
    """Beyond 1,024 places and codes they are counted together."""
    faults = DeviceFaults()
    logger = device_errors.logger
    logger.disabled = True
    try:
        for event in error_events(
            [RawXid(1, "x", code, "") for code in range(1, 2_001)], None, HostDevices()
        ):
            faults.feed(event)
    finally:
        logger.disabled = False
    found = faults.faults()
    assert len(found) == 1_025
    assert sum(fault.count for fault in found) == 2_000
    assert (found[-1].bus_id, found[-1].code) == ("", 0)
