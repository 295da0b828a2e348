"""The table of probes: complete, spelled as the drivers spell it, and readable by the BPF programs."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from otel_gpuflame.capture.bpf import probes, programs
from otel_gpuflame.capture.bpf.probes import ProbeSpec, Program, spec_for_symbol
from otel_gpuflame.events import apis
from otel_gpuflame.events.apis import Blocking, Runtime
from otel_gpuflame.events.wire import CookieShift, Kind, NameShape, Shape
from tests.contract.native_build import build_object, require_tools

NAMES_FILE = Path(__file__).with_name("driver_functions.txt")
EXPORTED = tuple(line for line in NAMES_FILE.read_text().split("\n") if line and line[0] != "#")
# Field of a cookie -> its bits, as ogf_events.h describes them.
WIDTHS = {
    CookieShift.API: 16,
    CookieShift.KIND: 8,
    CookieShift.STREAM: 4,
    CookieShift.OBJECT: 4,
    CookieShift.BYTES: 4,
    CookieShift.SHAPE: 4,
    CookieShift.UNIT: 4,
    CookieShift.BLOCKING: 4,
}
CALLS = [spec for spec in probes.ALL if Program.NAME_ENTER not in spec.programs]
NAMES = [spec for spec in probes.ALL if Program.NAME_ENTER in spec.programs]
DESCRIPTORS = (
    "cuMemcpy2D",
    "cuMemcpy2DAsync",
    "cuMemcpy2DUnaligned",
    "cuMemcpy3D",
    "cuMemcpy3DAsync",
)

SIZED = (Shape.COPY_2D, Shape.COPY_3D, Shape.SET_2D, Shape.COPY_BATCH, Shape.COPY_RECT)

# Ids are part of the capture format. New calls are added here; what stands here never changes.
IDS = """
1 cuLaunchKernel 2 cuLaunchKernelEx 3 cuLaunchCooperativeKernel 4 cuGraphLaunch
10 cuMemcpy 11 cuMemcpyAsync 12 cuMemcpyHtoD 13 cuMemcpyHtoDAsync 14 cuMemcpyDtoH 15 cuMemcpyDtoHAsync 16 cuMemcpyDtoD
17 cuMemcpyDtoDAsync 18 cuMemcpyPeer 19 cuMemcpyPeerAsync 20 cuMemcpy2D 21 cuMemcpy2DAsync 22 cuMemcpy2DUnaligned
23 cuMemcpy3D 24 cuMemcpy3DAsync 25 cuMemcpy3DPeer 26 cuMemcpy3DPeerAsync 27 cuMemcpyHtoA 28 cuMemcpyAtoH
29 cuMemcpyDtoA 30 cuMemcpyAtoD 31 cuMemcpyAtoA 32 cuMemcpyHtoAAsync 33 cuMemcpyAtoHAsync 34 cuMemcpyBatchAsync
40 cuMemsetD8 41 cuMemsetD16 42 cuMemsetD32 43 cuMemsetD2D8 44 cuMemsetD2D16 45 cuMemsetD2D32 46 cuMemsetD8Async
47 cuMemsetD16Async 48 cuMemsetD32Async 49 cuMemsetD2D8Async 50 cuMemsetD2D16Async 51 cuMemsetD2D32Async
60 cuCtxSynchronize 61 cuStreamSynchronize 62 cuEventSynchronize
70 cuEventRecord 71 cuEventRecordWithFlags 72 cuStreamWaitEvent 73 cuStreamBeginCapture
74 cuStreamBeginCaptureToGraph 75 cuStreamEndCapture 80 cuMemFree 81 cuMemFreeHost
200 clEnqueueNDRangeKernel 202 clEnqueueReadBuffer 203 clEnqueueWriteBuffer 204 clEnqueueCopyBuffer
205 clEnqueueFillBuffer 206 clEnqueueMapBuffer 207 clEnqueueMapImage 208 clEnqueueReadBufferRect
209 clEnqueueWriteBufferRect 210 clFinish 211 clWaitForEvents 212 clEnqueueCopyBufferRect
"""

# Exported calls that submit work, or wait, and are not probed yet. An export that is neither here nor probed is news.
UNPROBED = """
cuCtxRecordEvent cuCtxWaitEvent cuFabricCpyBatchAsync cuLaunch cuLaunchCooperativeKernelMultiDevice cuLaunchGrid
cuLaunchGridAsync cuLaunchHostFunc cuLaunchHostFunc_v2 cuMemFreeAsync cuMemPrefetchAsync
cuMemPrefetchAsync_v2 cuMemPrefetchBatchAsync cuMemcpy3DBatchAsync cuMemcpy3DBatchAsync_v2
cuMemcpy3DWithAttributesAsync cuMemcpyWithAttributesAsync cuStreamBatchMemOp
cuStreamBatchMemOp_v2 cuStreamWaitValue32 cuStreamWaitValue32_v2 cuStreamWaitValue64 cuStreamWaitValue64_v2
cuStreamWriteValue32 cuStreamWriteValue32_v2 cuStreamWriteValue64 cuStreamWriteValue64_v2
clEnqueueAcquireEGLObjectsKHR clEnqueueAcquireGLObjects clEnqueueBarrier clEnqueueBarrierWithWaitList
clEnqueueCopyBufferToImage clEnqueueCopyImage clEnqueueCopyImageToBuffer clEnqueueFillImage
clEnqueueMarker clEnqueueMarkerWithWaitList clEnqueueMigrateMemObjects
clEnqueueNativeKernel clEnqueueReadImage clEnqueueReleaseEGLObjectsKHR clEnqueueReleaseGLObjects
clEnqueueSVMFree clEnqueueSVMMap clEnqueueSVMMemFill clEnqueueSVMMemcpy clEnqueueSVMMigrateMem clEnqueueSVMUnmap
clEnqueueTask clEnqueueUnmapMemObject clEnqueueWaitForEvents clEnqueueWriteImage
"""
_WORK = re.compile(
    r"cu(Launch|GraphLaunch|Memcpy|Memset|MemFree|MemPrefetch|Fabric\w*Cpy|EventRecord|EventSynchronize"
    r"|Ctx(Synchronize|RecordEvent|WaitEvent)"
    r"|Stream(Synchronize|WaitEvent|WaitValue|WriteValue|BatchMemOp))|cl(Enqueue|Finish|WaitForEvents)"
)


def fields(cookie: int) -> dict[CookieShift, int]:
    """A cookie taken apart, as the BPF programs do it."""
    return {shift: cookie >> shift & (1 << width) - 1 for shift, width in WIDTHS.items()}


def spec_of(base: str) -> ProbeSpec:
    """The probe of the current version of a call."""
    return next(spec for spec in probes.ALL if spec.base == base)


def test_every_call_has_a_probe_and_every_probe_a_call() -> None:
    """No driver call that we know of is without arguments, or the other way round."""
    assert sorted(spec.base for spec in CALLS) == sorted(apis.BY_NAME)
    assert len({spec.base for spec in probes.ALL}) == len(probes.ALL)


def test_ids_never_change() -> None:
    """Captures refer to calls by id: each keeps its own for ever, and none is used twice."""
    words = IDS.split()
    expected = dict(zip(map(int, words[::2]), words[1::2], strict=True))
    assert {api.id: api.name for api in apis.ALL} == expected
    assert len(apis.BY_NAME) == len(apis.ALL) + len(apis.CUPTI_CALLS)
    system_calls = {300: "ioctl", 301: "poll", 302: "ppoll", 303: "mmap"}
    assert {api.id: api.name for api in apis.SYSTEM_CALLS} == system_calls
    assert {id_: api.name for id_, api in apis.BY_ID.items()} == expected | system_calls


@pytest.mark.parametrize("spec", CALLS, ids=lambda spec: spec.base)
def test_cookies_say_what_the_table_says(spec: ProbeSpec) -> None:
    """Every field of a cookie reads back as it was given, so it fits, and nothing is left over."""
    api, arguments = apis.BY_NAME[spec.base], probes._ARGUMENTS[spec.base]
    assert fields(spec.cookie) == {
        CookieShift.API: api.id,
        CookieShift.KIND: api.kind,
        CookieShift.STREAM: arguments.stream,
        CookieShift.OBJECT: arguments.object,
        CookieShift.BYTES: arguments.bytes,
        CookieShift.SHAPE: arguments.shape,
        CookieShift.UNIT: arguments.unit_log2,
        CookieShift.BLOCKING: arguments.blocking,
    }
    assert sum(value << shift for shift, value in fields(spec.cookie).items()) == spec.cookie


def test_system_calls_say_where_descriptor_command_and_length_are() -> None:
    """Positions are those of the system calls: ioctl(fd, command, …), mmap(…, length, …, fd, …), poll(fds, …)."""
    arguments = {"ioctl": (1, 2, 0), "poll": (0, 0, 0), "ppoll": (0, 0, 0), "mmap": (5, 0, 2)}
    (entry,) = (p for p in programs.OPTIONAL if p.name == "on_device_enter")
    (leave,) = (p for p in programs.OPTIONAL if p.name == "on_device_exit")
    found = {}
    for tracepoint in entry.tracepoints:
        values = fields(tracepoint.cookie)
        name = apis.BY_ID[values[CookieShift.API]].name
        assert tracepoint.name == f"sys_enter_{name}"
        assert values[CookieShift.KIND] == Kind.DRIVER
        found[name] = (
            values[CookieShift.STREAM],
            values[CookieShift.OBJECT],
            values[CookieShift.BYTES],
        )
    assert found == arguments
    assert {t.name for t in leave.tracepoints} == {f"sys_exit_{name}" for name in arguments}


def test_fields_of_a_cookie_do_not_overlap() -> None:
    """Each field begins where the one before it ends."""
    shifts = sorted(WIDTHS)
    assert set(shifts) == set(CookieShift)
    for shift, following in pairwise(shifts):
        assert shift + WIDTHS[shift] == following


@pytest.mark.parametrize("spec", NAMES, ids=lambda spec: spec.base)
def test_cookies_of_names_say_where_handle_and_name_are(spec: ProbeSpec) -> None:
    """Bits 0 to 7 are the shape, then four each for the handle's argument and the name's."""
    runtime, shape, handle, source = probes._NAMES[spec.base]
    assert (spec.cookie & 255, spec.cookie >> 8 & 15, spec.cookie >> 12) == (shape, handle, source)
    assert spec.runtime is runtime
    assert source
    assert bool(handle) == (shape is not NameShape.RETURNED)


@pytest.mark.parametrize("spec", CALLS, ids=lambda spec: spec.base)
def test_calls_that_may_block_have_a_return_probe(spec: ProbeSpec) -> None:
    """A duration needs both ends; a call that never blocks is spared the dearer return probe."""
    blocks = apis.BY_NAME[spec.base].blocking is not Blocking.NEVER
    pair = (Program.CALL_ENTER, Program.CALL_RETURN)
    assert spec.programs == (pair if blocks else (Program.CALL,))


@pytest.mark.parametrize("api", apis.ALL, ids=lambda api: api.name)
def test_what_is_known_of_a_call_fits_its_kind(api: apis.Api) -> None:
    """Copies and sets have a size, kernels a handle, OpenCL's blocking flag an argument."""
    arguments = probes._ARGUMENTS[api.name]
    if api.kind in (Kind.COPY, Kind.SET):
        assert bool(arguments.bytes or arguments.shape in SIZED) == (api.detail != "map")
    if api.kind is Kind.LAUNCH:
        assert arguments.object
    if api.kind in apis.SUBMISSIONS and api.kind is not Kind.LAUNCH:
        assert api.detail
    assert bool(arguments.blocking) == (api.blocking is Blocking.BY_ARGUMENT)
    assert (api.runtime is Runtime.CUDA) == (api.id < 200) == api.name.startswith("cu")


def test_programs_exist_in_the_object(tmp_path: Path) -> None:
    """Each program that a probe names is in the compiled object, in a section for entries or for returns."""
    require_tools("make", "clang", "llvm-strip")
    with build_object(tmp_path).open("rb") as file:
        elf = ELFFile(file)
        table = elf.get_section_by_name(".symtab")
        assert table is not None
        sections = {
            symbol.name: elf.get_section(symbol["st_shndx"]).name
            for symbol in table.iter_symbols()
            if symbol["st_info"]["type"] == "STT_FUNC"
        }
    for program in Program:
        expected = "uretprobe" if program.is_return else "uprobe"
        assert sections.get(program.value, "").split("/")[0] == expected, program


@pytest.mark.parametrize(
    ("symbol", "base"),
    [
        ("cuLaunchKernel", "cuLaunchKernel"),
        ("cuLaunchKernel_ptsz", "cuLaunchKernel"),
        ("cuMemcpyHtoD_v2", "cuMemcpyHtoD"),
        ("cuMemcpyHtoD_v2_ptds", "cuMemcpyHtoD"),
        ("cuMemcpyHtoDAsync_v2_ptsz", "cuMemcpyHtoDAsync"),
        ("cuMemcpy_ptds", "cuMemcpy"),
        ("cuCtxSynchronize_v2", "cuCtxSynchronize"),
        ("cuLaunchKernelEx_v12", "cuLaunchKernelEx"),
        ("clFinish", "clFinish"),
    ],
)
def test_versions_and_stream_variants_are_one_call(symbol: str, base: str) -> None:
    """Whatever version a program was compiled for, and for whichever default stream, it is the same call."""
    spec = spec_for_symbol(symbol)
    assert spec is not None
    assert spec.base == base
    assert spec == spec_of(base)


@pytest.mark.parametrize(
    "symbol",
    [
        "cuEventQuery",
        "cuEventQuery_v2",
        "cuStreamQuery",
        "cuStreamQuery_ptsz",
        "cuGetProcAddress",
        "cuGetProcAddress_v2",
        "cuInit",
        "cuMemFreeAsync_ptsz",
        "cuLaunchHostFunc",
        "cuLaunchKernel_v2_extra",
        "cuLaunchKernel_ptsz_v2",
        "xcuLaunchKernel",
        "clFinish_v2",
        "clFinish_ptsz",
        "_v2",
        "cu",
        "",
    ],
)
def test_other_functions_are_left_alone(symbol: str) -> None:
    """Polling calls and cuGetProcAddress are never probed, nor is what only looks like a call of ours."""
    assert spec_for_symbol(symbol) is None


@pytest.mark.parametrize("base", DESCRIPTORS)
def test_first_versions_have_a_descriptor_that_is_not_read(base: str) -> None:
    """Without a version these take 32-bit descriptors: the call is seen, with neither size nor garbage."""
    first, current = spec_for_symbol(base), spec_for_symbol(f"{base}_v2")
    assert first is not None
    assert current is not None
    assert fields(first.cookie)[CookieShift.SHAPE] == Shape.PLAIN
    assert fields(current.cookie)[CookieShift.SHAPE] in (Shape.COPY_2D, Shape.COPY_3D)
    assert first.programs == current.programs
    assert fields(first.cookie) | {CookieShift.SHAPE: 0} == fields(current.cookie) | {
        CookieShift.SHAPE: 0
    }
    assert f"{base}_v2" in EXPORTED


@pytest.mark.parametrize("suffix", ["", "_ptsz"])
def test_batches_of_cuda_12_have_one_more_argument_before_the_stream(suffix: str) -> None:
    """CUDA 13 dropped failIdx: an application compiled for CUDA 12 still calls the first version."""
    first = spec_for_symbol(f"cuMemcpyBatchAsync{suffix}")
    second = spec_for_symbol(f"cuMemcpyBatchAsync_v2{suffix}")
    assert first is not None
    assert second is not None
    assert fields(first.cookie)[CookieShift.STREAM] == 9
    assert fields(second.cookie)[CookieShift.STREAM] == 8
    assert fields(first.cookie)[CookieShift.SHAPE] == Shape.COPY_BATCH


def test_peer_copies_have_no_older_version() -> None:
    """Their descriptor has been 64-bit from the first, so it is read under the plain name."""
    for base in ("cuMemcpy3DPeer", "cuMemcpy3DPeerAsync"):
        spec = spec_for_symbol(base)
        assert spec is not None
        assert fields(spec.cookie)[CookieShift.SHAPE] == Shape.COPY_3D
        assert f"{base}_v2" not in EXPORTED


OF_DRIVERS = [spec for spec in probes.ALL if spec.runtime is not Runtime.CUPTI]


def test_later_versions_of_cuptis_functions_are_left_alone() -> None:
    """They have other arguments, and are of an interface that cannot be used beside the one that we use."""
    for api in apis.CUPTI_CALLS:
        assert spec_for_symbol(api.name) is not None
        assert spec_for_symbol(f"{api.name}_v2") is None


@pytest.mark.parametrize("spec", OF_DRIVERS, ids=lambda spec: spec.base)
def test_names_are_spelled_as_the_driver_spells_them(spec: ProbeSpec) -> None:
    """Each base, plain or in a version, is a name that the library exports."""
    assert any(
        found is not None and found.base == spec.base for found in map(spec_for_symbol, EXPORTED)
    )
    assert spec.base in EXPORTED


@pytest.mark.parametrize("name", [n for n in EXPORTED if spec_for_symbol(n)])
def test_exports_differ_from_their_base_by_suffixes_only(name: str) -> None:
    """An export is never taken for a call of another name."""
    spec = spec_for_symbol(name)
    assert spec is not None
    assert re.fullmatch(re.escape(spec.base) + r"(_v2)?(_ptsz|_ptds)?", name)


def test_every_call_that_gives_work_or_waits_is_probed_or_known_not_to_be() -> None:
    """When a new CUDA version adds a call, it is added to the table, or to the list of what is missing."""
    known = set(UNPROBED.split())
    missing = {
        re.sub(r"_(ptsz|ptds)$", "", name)
        for name in EXPORTED
        if _WORK.match(name) and spec_for_symbol(name) is None
    }
    assert missing == known


def test_the_list_of_exports_is_whole() -> None:
    """The data of these tests is what its head says it is."""
    assert len(EXPORTED) == len(set(EXPORTED)) > 800
    assert {
        "cuLaunchKernel_ptsz",
        "cuMemFree_v2",
        "cuCtxSynchronize_v2",
        "clEnqueueSVMMemcpy",
    } <= set(EXPORTED)


def test_captures_are_seen_outside_of_windows_too() -> None:
    """A graph is captured once, and launched for hours: the agent must not miss its begin and end."""
    for symbol in (
        "cuStreamBeginCapture_v2_ptsz",
        "cuStreamBeginCaptureToGraph",
        "cuStreamEndCapture",
    ):
        spec = probes.spec_for_symbol(symbol)
        assert spec is not None
        assert (spec.windowed, spec.programs) == (False, (Program.CALL,))
        assert fields(spec.cookie)[CookieShift.STREAM] == 1
