# SPDX-License-Identifier: Apache-2.0
"""The program for errors of devices, on a tracepoint with texts in its record; and where there is none."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from otel_gpuflame.capture.bpf import kernel
from otel_gpuflame.capture.bpf.decode import RawXid
from otel_gpuflame.capture.bpf.programs import OPTIONAL, Feature, Tracepoint
from otel_gpuflame.capture.bpf.tracefs import tracepoint_id
from otel_gpuflame.capture.live import LiveCapture, LiveOptions, options
from otel_gpuflame.events.device_errors import DeviceErrors
from otel_gpuflame.events.executions import NO_DEVICE

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("bpf_tier")]

QUEUED = 256
STAND_IN = Tracepoint(
    "sched_process_exec", category="sched", fields=("filename", "pid", "filename")
)
"""Its file name is a __data_loc text, as dev and msg are, its pid an integer, as error_code is."""


def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take each exec on the host for an error of a device."""
    programs = [
        replace(each, tracepoints=(STAND_IN,)) if each.name == "on_xid" else each
        for each in OPTIONAL
    ]
    monkeypatch.setattr(kernel, "OPTIONAL", programs)


@contextmanager
def listening(monkeypatch: pytest.MonkeyPatch) -> Iterator[kernel.CaptureKernel]:
    """The programs, on the stand-in."""
    stand_in(monkeypatch)
    loaded = kernel.CaptureKernel(features=(Feature.ERRORS,))
    try:
        assert loaded.report.missing == {}
        yield loaded
    finally:
        loaded.close()


def counts(loaded: kernel.CaptureKernel) -> dict[str, int]:
    """What became of errors."""
    return {each.outcome: each.count for each in loaded.counters() if each.kind == "xid"}


def copy_of_true(tmp_path: Path, name: str) -> Path:
    """A program that nobody else on this host starts."""
    found = shutil.which("true")
    assert found is not None
    path = tmp_path / name
    shutil.copy(found, path)
    return path


def of(taken: list[RawXid], path: Path) -> list[RawXid]:
    """Those of one program: this is the whole host."""
    return [each for each in taken if str(path).startswith(each.message)]


def test_texts_and_numbers_of_the_record_arrive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In order, with their time; a text that is too long is cut."""
    path = copy_of_true(tmp_path, "x" * 200)
    with listening(monkeypatch) as loaded:
        children = []
        for _ in range(2):
            child = subprocess.Popen([path])
            child.wait()
            children.append(child)
        found = of(loaded.take_xids(), path)
        assert of(loaded.take_xids(), path) == []
    assert [each.code for each in found] == [child.pid for child in children]
    assert 0 < found[0].time_ns < found[1].time_ns
    assert found[0].message == os.fsencode(path)[:191].decode()
    assert found[0].bus_id == str(path)[:19]


def test_what_does_not_fit_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest are kept: the first error is what others follow from."""
    path = copy_of_true(tmp_path, "many")
    with listening(monkeypatch) as loaded:
        first = subprocess.Popen([path])
        first.wait()
        for _ in range(QUEUED):
            subprocess.run([path], check=True)
        taken = loaded.take_xids()
        found = counts(loaded)
    assert len(taken) == QUEUED
    assert first.pid in {each.code for each in taken}
    assert found["table_full"] >= 1
    assert found["seen"] == found["sent"] + found["table_full"]


def test_a_live_capture_delivers_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As events, and says them; they need not be of a target."""
    path = copy_of_true(tmp_path, "live")
    stand_in(monkeypatch)
    monkeypatch.setattr(options, "nvidia_is_loaded", lambda _proc: True)
    with LiveCapture(LiveOptions(pids=(os.getpid(),))) as capture:
        program = subprocess.Popen([path])
        program.wait()
        events = capture.step(1)
        capture.finish()
    (found,) = [
        error
        for event in events
        if isinstance(event, DeviceErrors)
        for error in event.errors
        if error.code == program.pid
    ]
    assert (found.device, found.message) == (NO_DEVICE, str(path))
    assert f"Xid {program.pid}: {path}" in caplog.text


@pytest.mark.skipif(
    tracepoint_id("nvidia", "nvidia_dev_xid") is not None, reason="this host has the tracepoint"
)
def test_where_there_is_no_tracepoint_it_is_said() -> None:
    """Everything else is there."""
    loaded = kernel.CaptureKernel(features=tuple(Feature))
    try:
        assert set(loaded.report.missing) == {"on_xid"}
        assert "nvidia:nvidia_dev_xid" in loaded.report.missing["on_xid"]
        assert loaded.take_xids() == []
    finally:
        loaded.close()
