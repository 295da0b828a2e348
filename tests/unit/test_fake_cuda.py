"""The fake CUDA driver keeps the driver's promises, and its counters are exact."""

from __future__ import annotations

import ctypes
import json
import platform
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from tests.fakes.build import FakeBuildError, app_command, build_fakes, fake_environment
from tests.fakes.cuda_driver import (
    LEGACY_STREAM,
    PER_THREAD_STREAM,
    STREAM_NON_BLOCKING,
    WAIT_BLOCK,
    WAIT_SPIN,
    FakeCuda,
    FakeCudaError,
    preload,
)
from tests.fakes.cuda_layouts import (
    FORMAT_UNSIGNED_8,
    MEMORY_ARRAY,
    MEMORY_DEVICE,
    MEMORY_HOST,
    ArrayDescriptor,
    Copy2D,
    Copy3D,
    LaunchConfig,
    Side2D,
    Side3D,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fake driver is for Linux")

HOUR_NS = 3_600_000_000_000
MS = 1_000_000
INVALID_HANDLE = 400
NOT_INITIALIZED = 3


@pytest.fixture(scope="session")
def build_dir() -> Path:
    """Both libraries, built once."""
    return build_fakes()


@pytest.fixture(scope="session")
def driver(build_dir: Path) -> FakeCuda:
    """The fake driver inside this process."""
    preload(build_dir)
    return FakeCuda()


@pytest.fixture
def cuda(driver: FakeCuda) -> Iterator[FakeCuda]:
    """The driver with a context of its own, so that work of other tests cannot be waited for."""
    driver.create_context()
    for name, duration_ns in (("hour", HOUR_NS), ("ms1", MS), ("ms2", 2 * MS), ("none", 0)):
        driver.set_duration_ns(name, duration_ns)
    yield driver
    driver.set_wait_mode(WAIT_BLOCK)
    driver.bind_thread()


def run_app(build_dir: Path, name: str, *arguments: object, **settings: str) -> str:
    """Run a target program and return what it printed."""
    result = subprocess.run(
        app_command(name, *arguments),
        env=fake_environment(build_dir, **settings),
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_work_of_a_stream_runs_in_order(cuda: FakeCuda) -> None:
    """Kernels of one stream never overlap: their device times add up between two events."""
    stream = cuda.create_stream()
    begin, end = cuda.create_event(), cuda.create_event()
    cuda.record(begin, stream)
    for name in ("ms1", "ms2", "ms1"):
        cuda.launch(name, stream)
    cuda.record(end, stream)
    cuda.synchronize(stream)
    assert cuda.elapsed_ms(begin, end) >= 4.0


def test_streams_run_beside_each_other(cuda: FakeCuda) -> None:
    """A stream can be waited for while another one has an hour of work left."""
    busy, quick = cuda.create_stream(), cuda.create_stream()
    cuda.launch("hour", busy)
    cuda.launch("ms1", quick)
    cuda.synchronize(quick)
    assert cuda.is_idle(quick)
    assert not cuda.is_idle(busy)


def test_a_stream_waits_for_an_event_of_another(cuda: FakeCuda) -> None:
    """Waiting for an event (cuStreamWaitEvent) holds later work back, and not earlier work."""
    first, second = cuda.create_stream(), cuda.create_stream()
    recorded, early, late = (cuda.create_event() for _ in range(3))
    cuda.record(early, second)
    cuda.launch("hour", first)
    cuda.record(recorded, first)
    cuda.wait_event(second, recorded)
    cuda.record(late, second)
    cuda.synchronize_event(early)
    assert not cuda.is_idle(second)


def test_work_after_the_event_starts_after_it(cuda: FakeCuda) -> None:
    """What waited for an event of another stream starts no earlier than the event."""
    first, second = cuda.create_stream(), cuda.create_stream()
    recorded, started = cuda.create_event(), cuda.create_event()
    cuda.set_duration_ns("lead", 200 * MS)
    cuda.launch("lead", first)
    cuda.record(recorded, first)
    cuda.wait_event(second, recorded)
    cuda.record(started, second)
    cuda.synchronize(second)
    assert cuda.elapsed_ms(recorded, started) >= 0.0


def test_waiting_for_an_unrecorded_event_returns(cuda: FakeCuda) -> None:
    """An event that was never recorded is complete."""
    event = cuda.create_event()
    cuda.launch("hour")
    cuda.synchronize_event(event)
    assert cuda.result("cuEventQuery", ctypes.c_void_p(event)) == 0


def test_the_legacy_stream_waits_for_blocking_streams(cuda: FakeCuda) -> None:
    """Work on the default stream starts after earlier work of ordinary streams."""
    cuda.launch("hour", cuda.create_stream())
    cuda.launch("none", 0)
    assert not cuda.is_idle(0)


def test_blocking_streams_wait_for_the_legacy_stream(cuda: FakeCuda) -> None:
    """Work of ordinary streams starts after earlier work on the default stream."""
    stream = cuda.create_stream()
    cuda.launch("hour", LEGACY_STREAM)
    assert cuda.is_idle(stream)
    cuda.launch("none", stream)
    assert not cuda.is_idle(stream)


def test_non_blocking_streams_ignore_the_legacy_stream(cuda: FakeCuda) -> None:
    """A non-blocking stream neither waits for the default stream nor holds it."""
    stream, other = (cuda.create_stream(STREAM_NON_BLOCKING) for _ in range(2))
    cuda.launch("hour", other)
    cuda.launch("none", 0)
    cuda.synchronize(0)
    cuda.launch("hour", 0)
    cuda.launch("none", stream)
    cuda.synchronize(stream)
    assert not cuda.is_idle(0)
    assert not cuda.is_idle(other)


def test_per_thread_streams_are_per_thread(cuda: FakeCuda) -> None:
    """The per-thread default stream of one thread has nothing to do with that of another."""
    context = ctypes.c_void_p()
    cuda.call("cuCtxGetCurrent", ctypes.byref(context))
    cuda.launch("hour", 0, api="cuLaunchKernel_ptsz")
    idle: list[bool] = []

    def other_thread() -> None:
        cuda.call("cuCtxSetCurrent", context)
        idle.append(cuda.is_idle(PER_THREAD_STREAM))

    thread = threading.Thread(target=other_thread)
    thread.start()
    thread.join()
    assert idle == [True]
    assert not cuda.is_idle(PER_THREAD_STREAM)


def test_blocking_copy_waits(cuda: FakeCuda) -> None:
    """A blocking cuMemcpyDtoH returns the bytes, after all earlier work of the default stream."""
    address = cuda.allocate(4)
    cuda.copy_to_device(address, b"abcd")
    cuda.launch("ms2")
    target = ctypes.create_string_buffer(4)
    cuda.copy_to_host(target, address)
    assert target.raw == b"abcd"
    assert cuda.is_idle()


def test_async_copy_to_pageable_memory_waits(cuda: FakeCuda) -> None:
    """A cuMemcpyDtoHAsync into ordinary memory returns when its stream is done."""
    stream, address = cuda.create_stream(), cuda.allocate(4)
    cuda.launch("ms2", stream)
    before = cuda.counters()
    cuda.copy_to_host_async(ctypes.create_string_buffer(4), address, stream)
    assert cuda.is_idle(stream)
    assert cuda.counters().since(before).waits == 1


def test_async_copy_to_pinned_memory_does_not_wait(cuda: FakeCuda) -> None:
    """A cuMemcpyDtoHAsync into page-locked memory returns with the work still to do."""
    stream, address = cuda.create_stream(), cuda.allocate(4)
    cuda.launch("hour", stream)
    before = cuda.counters()
    cuda.copy_to_host_async(cuda.allocate_pinned(4), address, stream)
    assert not cuda.is_idle(stream)
    assert cuda.counters().since(before).waits == 0


def test_copies_between_device_buffers_do_not_wait(cuda: FakeCuda) -> None:
    """A cuMemcpyDtoD is ordered on the device only, and moves the bytes."""
    source, target = cuda.allocate(4), cuda.allocate(4)
    cuda.copy_to_device(source, b"wxyz")
    cuda.launch("hour")
    before = cuda.counters()
    size = ctypes.c_size_t(4)
    cuda.call("cuMemcpyDtoD_v2", ctypes.c_void_p(target), ctypes.c_void_p(source), size)
    assert cuda.counters().since(before).waits == 0
    assert ctypes.string_at(target, 4) == b"wxyz"


def test_copies_outside_an_allocation_are_refused(cuda: FakeCuda) -> None:
    """A copy that would leave its device buffer is an invalid value, not a crash."""
    with pytest.raises(FakeCudaError, match="CUDA_ERROR_INVALID_VALUE"):
        cuda.copy_to_device(cuda.allocate(4), b"five!")


@pytest.mark.parametrize("mode", [WAIT_BLOCK, WAIT_SPIN])
def test_synchronise_returns_after_the_work(cuda: FakeCuda, mode: int) -> None:
    """Both ways to wait return only when the stream is idle, and are counted with their time."""
    cuda.set_wait_mode(mode)
    before = cuda.counters()
    cuda.launch("ms2")
    cuda.synchronize()
    assert cuda.is_idle()
    assert cuda.counters().since(before).waits == 1


def test_wait_ends_after_the_kernel(cuda: FakeCuda) -> None:
    """A wait returns no earlier than launch plus kernel, and its counted time lies inside the call."""
    before = cuda.counters()
    cuda.set_duration_ns("long", 50 * MS)
    launch_ns = time.monotonic_ns()
    cuda.launch("long")
    begin_ns = time.monotonic_ns()
    cuda.synchronize()
    end_ns = time.monotonic_ns()
    assert end_ns - launch_ns >= 50 * MS
    assert 0 < cuda.counters().since(before).wait_ns <= end_ns - begin_ns


def test_free_waits_for_the_context(cuda: FakeCuda) -> None:
    """Freeing memory synchronises, as the real one does."""
    address, stream = cuda.allocate(4), cuda.create_stream(STREAM_NON_BLOCKING)
    cuda.launch("ms1", stream)
    cuda.free(address)
    assert cuda.is_idle(stream)


def test_graph_launch_runs_every_captured_kernel(cuda: FakeCuda) -> None:
    """A captured launch is no launch; each graph launch runs all nodes one after the other."""
    stream = cuda.create_stream()
    before = cuda.counters()

    def submit() -> None:
        for _ in range(5):
            cuda.launch("ms1", stream)

    graph = cuda.instantiate_captured(stream, submit)
    for _ in range(3):
        cuda.launch_graph(graph, stream)
    cuda.synchronize(stream)
    done = cuda.counters().since(before)
    assert (done.launches, done.graph_launches, done.graph_kernels) == (0, 3, 15)
    assert done.kernel_ns == 15 * MS


def test_waiting_while_capturing_is_refused(cuda: FakeCuda) -> None:
    """A stream that is being captured cannot be waited for."""
    stream = cuda.create_stream()
    with pytest.raises(FakeCudaError, match="CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"):
        cuda.instantiate_captured(stream, lambda: cuda.synchronize(stream))


def test_counters_are_exact_under_four_threads(cuda: FakeCuda) -> None:
    """Launches of concurrent threads are counted without loss."""
    context = ctypes.c_void_p()
    cuda.call("cuCtxGetCurrent", ctypes.byref(context))
    cuda.function("none")
    before = cuda.counters()
    calls_before = cuda.api_count("cuLaunchKernel").count

    def launch() -> None:
        cuda.call("cuCtxSetCurrent", context)
        cuda.launch_many("none", 20_011)

    threads = [threading.Thread(target=launch) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cuda.counters().since(before).launches == 4 * 20_011
    assert cuda.api_count("cuLaunchKernel").count - calls_before == 4 * 20_011


def test_a_hundred_thousand_launches_are_counted(cuda: FakeCuda) -> None:
    """One call from Python makes 100,003 launches, and all are counted."""
    before = cuda.counters()
    assert cuda.launch_many("none", 100_003) == 100_003
    assert cuda.counters().since(before).launches == 100_003


def test_bad_handles_are_refused(cuda: FakeCuda) -> None:
    """A destroyed stream, a missing kernel and an empty grid are errors of the driver."""
    stream = cuda.create_stream()
    cuda.call("cuStreamDestroy_v2", ctypes.c_void_p(stream))
    assert cuda.result("cuStreamSynchronize", ctypes.c_void_p(stream)) == INVALID_HANDLE
    shape = (1, 1, 1, 1, 1, 1, 0)
    assert cuda.result("cuLaunchKernel", None, *shape, None, None, None) == INVALID_HANDLE
    with pytest.raises(FakeCudaError, match="CUDA_ERROR_INVALID_VALUE"):
        cuda.launch("none", grid=(0, 1, 1))


@pytest.mark.parametrize(
    ("query", "exported"),
    [
        (("cuLaunchKernel", 13000, 0), "cuLaunchKernel"),
        (("cuLaunchKernel", 13000, 2), "cuLaunchKernel_ptsz"),
        (("cuMemcpyDtoH", 13000, 0), "cuMemcpyDtoH_v2"),
        (("cuMemcpyDtoH", 13000, 2), "cuMemcpyDtoH_v2_ptds"),
        (("cuMemcpyDtoHAsync", 12000, 2), "cuMemcpyDtoHAsync_v2_ptsz"),
        (("cuCtxSynchronize", 12080, 0), "cuCtxSynchronize"),
        (("cuCtxSynchronize", 13000, 0), "cuCtxSynchronize_v2"),
        (("cuMemcpyNowhere", 13000, 0), None),
        (("fake_cuda_error", 13000, 0), None),
    ],
)
def test_proc_address_is_the_exported_address(
    cuda: FakeCuda, build_dir: Path, query: tuple[str, int, int], exported: str | None
) -> None:
    """Looked-up addresses (cuGetProcAddress) are the exported ones, so that a probe on the symbol is hit."""
    name, version, flags = query
    found, status = ctypes.c_void_p(), ctypes.c_int()
    cuda.result(
        "cuGetProcAddress_v2",
        name.encode(),
        ctypes.byref(found),
        version,
        ctypes.c_uint64(flags),
        ctypes.byref(status),
    )
    library = ctypes.CDLL(str(build_dir / "libcuda.so.1"))
    wanted = exported and ctypes.cast(getattr(library, exported), ctypes.c_void_p).value
    assert found.value == wanted
    assert status.value == (0 if exported else 1)


def test_matrix_program_calls_every_function(build_dir: Path) -> None:
    """The matrix program leaves out only what it needed before the counting began."""
    truth = json.loads(run_app(build_dir, "app_matrix"))
    not_called = {api for api, count in truth["counts"].items() if count == 0}
    assert not_called == {
        "cuInit",
        "cuDevicePrimaryCtxRetain",
        "cuCtxSetCurrent",
        "cuModuleLoadData",
    }


def test_log_has_one_line_a_function(build_dir: Path, tmp_path: Path) -> None:
    """FAKE_CUDA_LOG gets the calls at exit as JSON lines, and stderr stays empty."""
    log = tmp_path / "calls.jsonl"
    run_app(build_dir, "app_launch", 1234, FAKE_CUDA_LOG=str(log))
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    counts = {line["api"]: line["count"] for line in lines}
    assert counts["cuLaunchKernel"] == 1234
    assert len(counts) == len(lines)
    assert all(line["ns"] > 0 for line in lines)


def test_forked_children_start_fresh(build_dir: Path) -> None:
    """A forked child initialises its own driver and counts only its own launches."""
    truth = json.loads(run_app(build_dir, "app_fork", 11, 13, 17))
    assert [process["launches"] for process in truth["processes"]] == [11, 13, 17]
    assert len({process["pid"] for process in truth["processes"]}) == 3


def test_wait_program_names_its_line(build_dir: Path) -> None:
    """The wait program says on which line it waited, and each wait lasts at least as said."""
    truth = json.loads(run_app(build_dir, "app_wait", 20, 3))
    lines = Path(truth["file"]).read_text(encoding="utf-8").splitlines()
    assert lines[truth["line"] - 1].endswith("# WAIT" + " LINE")
    assert truth["waits"] == len(truth["duration_ns"]) == 3


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("FAKE_CUDA_KERNEL_NS", "soon"),
        ("FAKE_CUDA_KERNEL_NS", "-1"),
        ("FAKE_CUDA_COPY_BYTES_PER_NS", "0"),
        ("FAKE_CUDA_COPY_BYTES_PER_NS", "nan"),
        ("FAKE_CUDA_DEVICES", "65"),
        ("FAKE_CUDA_WAIT", "sleep"),
        ("FAKE_CUDA_RUNTIME", "yes"),
        ("FAKE_CUDA_NO_MOVES", "yes"),
        ("FAKE_CUDA_LOG", "/no/such/directory/log"),
    ],
)
def test_bad_settings_are_named(build_dir: Path, variable: str, value: str) -> None:
    """A setting that cannot be used fails cuInit with an error that names it."""
    result = subprocess.run(
        app_command("app_launch", 1),
        env=fake_environment(build_dir, **{variable: value}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert f"{variable}={value}" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without gcc the build says what to install."""
    monkeypatch.setenv("OGF_FAKES_BUILD", str(tmp_path))
    monkeypatch.setattr(shutil, "which", lambda tool: None)
    with pytest.raises(FakeBuildError, match="gcc"):
        build_fakes()


def write_transcript(directory: Path, *lines: str) -> Path:
    """A transcript with the right header."""
    path = directory / "transcript.txt"
    path.write_text("\n".join(("fake-cuda-transcript 1", *lines, "")), encoding="utf-8")
    return path


def test_replay_makes_exactly_the_calls(cuda: FakeCuda, tmp_path: Path) -> None:
    """A replay makes each call of the transcript once, from as many threads as it names."""
    transcript = write_transcript(
        tmp_path,
        "# a comment",
        "stream 0x7f10 nonblocking",
        "0 0 cuLaunchKernel name=_Z1av stream=0x7f10 grid=4,2,1 block=64,1,1 duration_ns=2000000",
        "1000 0 cuEventRecord event=0x9 stream=0x7f10",
        "2000 1 cuStreamWaitEvent event=0x9 stream=0x7f20",
        "3000 1 cuLaunchKernelEx name=_Z1bv stream=0x7f20 duration_ns=1000000",
        "4000 1 cuLaunchCooperativeKernel_ptsz name=_Z1bv duration_ns=0",
        "9000 0 cuStreamSynchronize stream=0x7f20",
        "10000 0 cuGraphLaunch name=_Z1cv kernels=7",
        "11000 0 cuMemcpyHtoDAsync_v2 bytes=64",
        "12000 0 cuMemcpyDtoH_v2 bytes=32",
        "13000 1 cuMemsetD8Async bytes=16",
        "14000 1 cuMemAlloc_v2 bytes=16",
        "15000 1 cuMemFree_v2 bytes=16",
        "16000 0 cuCtxSynchronize",
    )
    names = cuda.api_names()
    before = {api: cuda.api_count(api).count for api in names}
    counters_before = cuda.counters()
    cuda.replay(transcript)
    calls = {api: cuda.api_count(api).count - before[api] for api in names}
    lookups = {"cuModuleLoadData": 1, "cuModuleUnload": 1, "cuModuleGetFunction": 4}
    expected = {line.split()[2] for line in transcript.read_text().splitlines()[3:] if line}
    assert {api: count for api, count in calls.items() if count} == dict.fromkeys(
        expected, 1
    ) | lookups
    done = cuda.counters().since(counters_before)
    assert (done.launches, done.graph_kernels, done.copy_bytes) == (3, 7, 96)
    assert done.waits == 4
    assert done.kernel_ns == 3 * MS + 7 * 10_000


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("0 0", "want: <offset_ns>"),
        ("-1 0 cuCtxSynchronize", "bad time offset"),
        ("1.5 0 cuCtxSynchronize", "bad time offset"),
        ("0 256 cuCtxSynchronize", "bad thread index"),
        ("0 0 cuNothing", "unknown api 'cuNothing'"),
        ("0 0 cuLaunchKernel stream=1", "cuLaunchKernel needs name="),
        ("0 0 cuLaunchKernel name=", "bad value of 'name'"),
        ("0 0 cuLaunchKernel name=a grid=1,2", "bad value of 'grid'"),
        ("0 0 cuLaunchKernel name=a grid=1,2,3,4", "bad value of 'grid'"),
        ("0 0 cuLaunchKernel name=a block=0,1,1", "bad value of 'block'"),
        ("0 0 cuLaunchKernel name=a name=b", "given twice"),
        ("0 0 cuLaunchKernel name=a stream=0x", "bad value of 'stream'"),
        ("0 0 cuCtxSynchronize stream=1", "takes no argument 'stream'"),
        ("0 0 cuCtxSynchronize now", "want key=value"),
        ("0 0 cuEventRecord event=0", "bad value of 'event'"),
        ("0 0 cuMemcpyDtoH_v2 bytes=99999999999", "bad value of 'bytes'"),
        ("0 0 cuMemcpyDtoH_v2 bytes=1 host=shared", "bad value of 'host'"),
        ("stream 2 nonblocking", "want: stream"),
        ("stream 0x10 fast", "want: stream"),
        ("5 3 cuCtxSynchronize", "time goes back in thread 3"),
        ("0 0 \0", "a zero byte"),
    ],
)
def test_bad_transcript_lines_are_named(
    cuda: FakeCuda, tmp_path: Path, line: str, reason: str
) -> None:
    """A bad line is named by number and reason, and nothing of the file is replayed."""
    transcript = write_transcript(
        tmp_path, "10 3 cuLaunchKernel name=_Z1av", "", line, "99 3 cuCtxSynchronize"
    )
    before = cuda.counters()
    with pytest.raises(FakeCudaError, match="line 4: ") as error:
        cuda.replay(transcript)
    assert reason in str(error.value)
    assert cuda.counters() == before


@pytest.mark.parametrize("text", ["", "fake-cuda-transcript 2\n", "\n"])
def test_other_files_are_not_transcripts(cuda: FakeCuda, tmp_path: Path, text: str) -> None:
    """Without the header of this version nothing is replayed."""
    path = tmp_path / "other.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(FakeCudaError, match="want the header"):
        cuda.replay(path)


def test_missing_transcript_is_named(cuda: FakeCuda, tmp_path: Path) -> None:
    """A transcript that is not there is an error with its path."""
    with pytest.raises(FakeCudaError, match="No such file"):
        cuda.replay(tmp_path / "absent.txt")


def test_failing_replayed_call_is_named(cuda: FakeCuda, tmp_path: Path) -> None:
    """A replayed call that the driver refuses is reported with its line."""
    transcript = write_transcript(tmp_path, "0 0 cuCtxSynchronize", "1 0 cuEventQuery event=5")
    cuda.replay(transcript)
    stream = cuda.create_stream()
    cuda.call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream), 0)
    with pytest.raises(FakeCudaError, match="line 2: cuCtxSynchronize returned 900"):
        cuda.replay(transcript)


def test_rectangles_are_copied_row_by_row(cuda: FakeCuda) -> None:
    """A pitched copy moves only the rectangle, and counts its bytes only."""
    source, target = cuda.allocate(16), cuda.allocate(16)
    cuda.copy_to_device(source, bytes(range(16)))
    copy = Copy2D(
        source=Side2D(x_bytes=1, type=MEMORY_DEVICE, device=source, pitch_bytes=4),
        target=Side2D(y=1, type=MEMORY_DEVICE, device=target, pitch_bytes=8),
        width_bytes=2,
        height=1,
    )
    before = cuda.counters()
    cuda.call("cuMemcpy2D_v2", ctypes.byref(copy))
    assert ctypes.string_at(target, 16) == bytes(8) + bytes([1, 2]) + bytes(6)
    assert cuda.counters().since(before).copy_bytes == 2
    copy.height = 3
    with pytest.raises(FakeCudaError, match="CUDA_ERROR_INVALID_VALUE"):
        cuda.call("cuMemcpy2D_v2", ctypes.byref(copy))


def test_boxes_go_through_arrays_unchanged(cuda: FakeCuda) -> None:
    """Bytes copied from the host into an array come back the same."""
    array, back = ctypes.c_void_p(), ctypes.create_string_buffer(6)
    shape = ArrayDescriptor(width=3, height=2, format=FORMAT_UNSIGNED_8, channels=1)
    cuda.call("cuArrayCreate_v2", ctypes.byref(array), ctypes.byref(shape))
    sent = ctypes.create_string_buffer(b"abcdef", 6)
    copy = Copy3D(
        source=Side3D(type=MEMORY_HOST, host=ctypes.addressof(sent), pitch_bytes=3, height=2),
        target=Side3D(type=MEMORY_ARRAY, array=array),
        width_bytes=3,
        height=2,
        depth=1,
    )
    cuda.call("cuMemcpy3D_v2", ctypes.byref(copy))
    cuda.call("cuMemcpyAtoH_v2", back, array, ctypes.c_size_t(0), ctypes.c_size_t(6))
    assert back.raw == b"abcdef"


def test_sets_fill_elements_of_their_width(cuda: FakeCuda) -> None:
    """A two-dimensional 16-bit set writes whole elements and leaves the rest of each row alone."""
    target = cuda.allocate(12)
    pitch, width, height = (ctypes.c_size_t(number) for number in (6, 2, 2))
    value = ctypes.c_ushort(0x4241)
    cuda.call("cuMemsetD2D16_v2", ctypes.c_void_p(target), pitch, value, width, height)
    assert ctypes.string_at(target, 12) == b"ABAB\0\0" * 2


def test_layouts_have_the_sizes_of_the_driver() -> None:
    """The structures that calls point to are as large as in the real header."""
    assert ctypes.sizeof(LaunchConfig) == 56
    assert (ctypes.sizeof(Copy2D), ctypes.sizeof(Copy3D)) == (128, 200)


def entry_points(library: Path) -> dict[str, tuple[int, bytes]]:
    """Address and first bytes of each exported driver function."""
    with library.open("rb") as file:
        elf = ELFFile(file)
        text, symbols = elf.get_section_by_name(".text"), elf.get_section_by_name(".dynsym")
        assert text is not None
        assert isinstance(symbols, SymbolTableSection)
        code, start = text.data(), text["sh_addr"]
        return {
            symbol.name: (address := symbol["st_value"], code[address - start :][:4])
            for symbol in symbols.iter_symbols()
            if symbol.name.startswith("cu") and symbol["st_shndx"] != "SHN_UNDEF"
        }


def test_only_version_twins_share_an_address(build_dir: Path) -> None:
    """Stream variants and all but a few versions can be told apart by a probe."""
    by_address: dict[int, set[str]] = {}
    for name, (address, _) in entry_points(build_dir / "libcuda.so.1").items():
        by_address.setdefault(address, set()).add(name)
    shared = {min(names, key=len) for names in by_address.values() if len(names) > 1}
    assert shared == {
        "cuCtxDestroy",
        "cuDeviceGetUuid",
        "cuDevicePrimaryCtxRelease",
        "cuDevicePrimaryCtxSetFlags",
        "cuEventDestroy",
        "cuStreamDestroy",
    }


@pytest.mark.skipif(platform.machine() != "x86_64", reason="x86-64 instructions")
@pytest.mark.parametrize(
    ("cf_protection", "first_bytes"), [("none", b"\x55"), ("full", b"\xf3\x0f\x1e\xfa")]
)
def test_entry_points_start_as_asked(cf_protection: str, first_bytes: bytes) -> None:
    """Functions start with push %rbp as in the real driver, or with endbr64 where asked."""
    library = build_fakes(cf_protection=cf_protection) / "libcuda.so.1"
    starts = {name: start for name, (_, start) in entry_points(library).items()}
    assert [name for name, start in starts.items() if not start.startswith(first_bytes)] == []
