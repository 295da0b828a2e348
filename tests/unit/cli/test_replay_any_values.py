"""Captures whose numbers are anything: `replay` ends with a result, or says what is wrong with the file."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_gpuflame.encode.otlp import encode_otlp
from otel_gpuflame.events.capture_tables import TABLES
from otel_gpuflame.events.device_errors import DeviceError, DeviceErrors
from otel_gpuflame.events.device_metrics import DEVICE_METRIC, DeviceMetric, DeviceMetrics
from otel_gpuflame.events.executions import (
    ExecutionsBegin,
    ExecutionsEnd,
    ExecutionWatermark,
)
from otel_gpuflame.events.frames import ProcessKey, StackKey
from otel_gpuflame.events.records import (
    CaptureStart,
    Event,
    ProcessesEnded,
    SamplingWindow,
    StacksForgotten,
    Watermark,
)
from otel_gpuflame.events.wire_gpu import GpuKind
from otel_gpuflame.pipeline import replay
from otel_gpuflame.profile import labels
from otel_gpuflame.profile.aggregate import AggregateOptions
from tests.unit.cli.captures import recording, run, write_capture
from tests.unit.profile.builders import (
    PROCESS,
    START_NS,
    UNIX_OFFSET_NS,
    batch,
    call,
    devices,
    executed,
    execution,
    name_event,
)

SECOND = 1_000_000_000


def every_kind() -> list[Event]:
    """Some calls with what they had executed, of windows and of always, in several batches, and what devices say."""
    events = recording()
    head, tail = events[:5], events[5:21]
    metrics = np.zeros(2, DEVICE_METRIC)
    metrics["time_ns"], metrics["metric"] = START_NS + SECOND, int(DeviceMetric.GRAPHICS_ACTIVE)
    metrics["device"], metrics["value"] = 3, 0.5
    out: list[Event] = [
        *head,
        name_event(1 << 63, "_Z4gemmv"),
        devices(),
        SamplingWindow(
            START_NS, START_NS + 5 * SECOND, START_NS + 1, START_NS + 2 * SECOND, 400_000_000
        ),
        ExecutionsBegin(PROCESS, START_NS),
    ]
    for number, event in enumerate(tail):
        at_ns = START_NS + number // 2 * SECOND
        out.append(event)
        if number % 2 == 0:
            out.append(
                executed(
                    execution(
                        GpuKind.API, correlation_id=number + 1, start_ns=at_ns, duration_ns=900
                    ),
                    execution(
                        correlation_id=number + 1,
                        start_ns=at_ns + 2_000,
                        duration_ns=5_000_000,
                        name=1 << 63,
                        grid=(4, 2, 1),
                        block=(64, 1, 1),
                    ),
                    execution(
                        GpuKind.COPY,
                        correlation_id=number + 1,
                        start_ns=at_ns + 6_000_000,
                        bytes=77,
                    ),
                    execution(GpuKind.SYNC, correlation_id=number + 1, start_ns=at_ns + 7_000),
                )
            )
            out.append(ExecutionWatermark(PROCESS, at_ns + SECOND // 2))
    return [
        *out,
        DeviceMetrics(metrics),
        DeviceErrors(
            (DeviceError(time_ns=START_NS, device=3, bus_id="0000:3b:00.0", code=31, message="x"),)
        ),
        events[-1],
        SamplingWindow(
            START_NS + 5 * SECOND,
            START_NS + 9 * SECOND,
            START_NS + 5 * SECOND,
            START_NS + 9 * SECOND,
            10**9,
        ),
        StacksForgotten((StackKey(1, 4),)),
        ExecutionsEnd(PROCESS, START_NS + 30 * SECOND, ""),
        ProcessesEnded((PROCESS,)),
        *(Watermark(START_NS + n * 10 * SECOND) for n in range(1, 9)),
    ]


EVENTS = every_kind()
TYPES = sorted({type(event).__name__ for event in EVENTS})
OF_TYPE = {name: [i for i, e in enumerate(EVENTS) if type(e).__name__ == name] for name in TYPES}


WIDTHS = {name: dtype for table in TABLES.values() for name, dtype in table.fields()}


def changed(value: Any, noise: random.Random, name: str = "") -> Any:
    """An event, or the part `name` of one, with one number changed."""
    if isinstance(value, np.ndarray):
        value = value.copy()
        column = value[noise.choice(value.dtype.names)]
        place = tuple(noise.randrange(size) for size in column.shape)
        column[place] = any_number(column.dtype, noise)
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [each.name for each in dataclasses.fields(value)]
        name = noise.choice([each for each in names if has_numbers(getattr(value, each))])
        return dataclasses.replace(value, **{name: changed(getattr(value, name), noise, name)})
    if isinstance(value, tuple):
        place = noise.choice([at for at, each in enumerate(value) if has_numbers(each)])
        names = getattr(value, "_fields", [""] * len(value))
        part = changed(value[place], noise, names[place])
        items = [part if at == place else each for at, each in enumerate(value)]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    default = np.uint64 if name in ("high", "low") else np.int64
    return any_number(WIDTHS.get(name, np.dtype(default)), noise).item()


def has_numbers(value: Any) -> bool:
    """Whether there is something to change."""
    if isinstance(value, tuple):
        return any(has_numbers(each) for each in value)
    if isinstance(value, np.ndarray):
        return len(value) > 0
    return dataclasses.is_dataclass(value) or type(value) is int


def any_number(dtype: np.dtype[Any], noise: random.Random) -> Any:
    """0, 1, the least, the largest, or any of few or many bits."""
    if dtype.kind == "f":
        largest = float(np.finfo(dtype).max)
        choices = [0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, largest, noise.random()]
        return dtype.type(noise.choice(choices))
    bounds = np.iinfo(dtype)
    any_ = noise.randint(int(bounds.min), int(bounds.max)) >> noise.randrange(bounds.bits)
    return dtype.type(noise.choice([0, 1, int(bounds.min), int(bounds.max), any_]))


def replay_to_everything(path: Path, folder: Path) -> Result:
    """As pprof, HTML, folded stacks and tables; as OTLP in windows, with recorded times and moved ones."""
    result = run(
        "replay",
        path,
        "--pprof",
        folder / "p",
        "--html",
        folder / "h",
        "--folded",
        folder / "f",
        "--findings",
    )
    for shift_to in (None, UNIX_OFFSET_NS):
        windows = AggregateOptions(window_ns=10 * SECOND)
        for bundle in replay(path, windows, shift_to=shift_to).bundles:
            list(encode_otlp([bundle]))
    return result


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For all examples."""
    return tmp_path_factory.mktemp("any")


def test_as_it_is_everything_is_used(folder: Path) -> None:
    """What the examples change has executions, devices and findings."""
    result = replay_to_everything(write_capture(folder / "whole.ogfcap", EVENTS), folder)
    assert result.exit_code == 0
    assert not result.stderr
    assert "gpu_time" in result.stdout
    assert "NVIDIA H200" in result.stdout


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_any_number_anywhere_ends_in_a_result(folder: Path, seed: int) -> None:
    """One to three numbers of a capture are others: no traceback, and a file that makes no sense is called damaged."""
    noise = random.Random(seed)
    events = list(EVENTS)
    for _ in range(noise.randint(1, 3)):
        at = noise.choice(OF_TYPE[noise.choice(TYPES)])
        events[at] = changed(events[at], noise)
    result = replay_to_everything(write_capture(folder / "any.ogfcap", events), folder)
    assert result.exit_code == 0
    assert all(line.startswith("warning: ") for line in result.stderr.splitlines())


@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [
        (SamplingWindow, {"probability_ppb": 0}, "expected a probability from 1 to 1000000000 ppb"),
        (
            SamplingWindow,
            {"open_ns": START_NS + 3 * SECOND},
            "expected a window that ends after it begins",
        ),
        (
            CaptureStart,
            {"unix_offset_ns": -UNIX_OFFSET_NS},
            "expected a start between 1970 and 2116",
        ),
        (CaptureStart, {"time_ns": 1 << 60}, "ns of the boot"),
        (Watermark, {"time_ns": 1 << 62}, "expected times from 0 to"),
        (ExecutionsBegin, {"time_ns": -1}, "expected times from 0 to"),
        (
            ExecutionsEnd,
            {"process": ProcessKey(1, -1)},
            "expected a process that started after the boot",
        ),
    ],
)
def test_what_cannot_be_is_damage(
    folder: Path, kind: type[Event], change: dict[str, Any], said: str
) -> None:
    """The message says what was expected, and what came before is used."""
    at = next(at for at, event in enumerate(EVENTS) if isinstance(event, kind))
    events = [*EVENTS[:at], dataclasses.replace(EVENTS[at], **change), *EVENTS[at + 1 :]]
    result = replay_to_everything(write_capture(folder / "wrong.ogfcap", events), folder)
    assert result.exit_code == 0
    assert said in result.stderr


def test_calls_of_impossible_times_are_left_out_and_counted(folder: Path) -> None:
    """In tens of thousands of years no clock that started with the host has got there."""
    late = call("cuCtxSynchronize", duration_ns=5)
    late["end_ns"] = (1 << 63) - 1
    events = [*EVENTS, batch(late)]
    result = replay_to_everything(write_capture(folder / "late.ogfcap", events), folder)
    assert "wait: impossible time 1" in result.stdout
    assert not result.stderr


def test_a_call_of_the_future_has_a_kernel_without_name(folder: Path) -> None:
    """Its window is open for longer than anything is known of its process."""
    future = call("cuLaunchKernel", object=1, start_ns=START_NS + 500 * SECOND)
    at = next(at for at, event in enumerate(EVENTS) if isinstance(event, ProcessesEnded))
    path = write_capture(folder / "future.ogfcap", [*EVENTS[:at], batch(future), *EVENTS[at:]])
    result = replay_to_everything(path, folder)
    assert result.exit_code == 0
    (last,) = (b for b in replay(path, AggregateOptions(window_ns=10 * SECOND)).bundles[-1:])
    assert labels.UNNAMED_KERNEL in last.frames
