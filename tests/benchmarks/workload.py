"""The load that the benchmarks share: 10,000 distinct stacks of 40 frames, 50 kernels, 2 processes, 100 spans.

Everything follows from the index of a stack, so that each run measures the same bytes.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.events import apis, wire
from otel_gpuflame.events.frames import Frame, FrameKind, ProcessKey, Stack, StackKey
from otel_gpuflame.events.records import CallArray, HandleName, Names, Stacks, TargetInfo, Targets
from otel_gpuflame.profile.model import AttributeSet, Bundle, Link, Profile, Window
from otel_gpuflame.profile.sample_types import GPU_COPY, GPU_LAUNCH, GPU_WAIT, SCOPE

STACKS: Final = 10_000
DEPTH: Final = 40
KERNELS: Final = 50
PROCESSES: Final = 2
SPANS: Final = 100

_NATIVE_DEPTH: Final = 10
_FRAMES_A_LEVEL: Final = 400
_WAIT_NS: Final = 20_000
_COPY_BYTES: Final = 65_536
_WINDOW_NS: Final = 10_000_000_000
# Above the largest pid that a kernel gives (2**22): no process of this host is described or read by mistake.
_FIRST_TGID: Final = 1 << 23
_INDEX: Final = np.arange(STACKS, dtype=np.uint64)
_LINKED: Final = wire.CallFlag.HAS_SPAN | wire.CallFlag.SPAN_SAMPLED | wire.CallFlag.HAS_LOCAL_ROOT


def processes() -> tuple[ProcessKey, ...]:
    """The calling processes."""
    return tuple(ProcessKey(_FIRST_TGID + i, 1_000_000 + i) for i in range(PROCESSES))


def call_templates() -> CallArray:
    """(STACKS,) one call a stack, times zero: of ten calls, eight launch, one copies and waits, one synchronises.

    A stack is a place in the code: it always makes the same call, in one process and for one span.
    """
    rows = np.zeros(STACKS, wire.CALL)
    owner = _INDEX % np.uint64(PROCESSES)
    rows["tgid"] = rows["tid"] = _FIRST_TGID + owner
    rows["process_start_ns"] = 1_000_000 + owner
    rows["stack_hash"] = _hash_words()
    rows["api"] = apis.BY_NAME["cuLaunchKernel"].id
    rows["kind"] = wire.Kind.LAUNCH
    rows["object"] = _handles()[_INDEX // np.uint64(10) % np.uint64(KERNELS)]
    rows["flags"] = _LINKED
    put_spans(rows, _INDEX % np.uint64(SPANS))
    for remainder, name in ((0, "cuMemcpyDtoH"), (1, "cuStreamSynchronize")):
        chosen = _INDEX % np.uint64(10) == remainder
        rows["api"][chosen] = apis.BY_NAME[name].id
        rows["kind"][chosen] = apis.BY_NAME[name].kind
        rows["flags"][chosen] |= int(wire.CallFlag.RETURNED)
        # A duration: whoever makes calls of templates adds the time of the call to both.
        rows["end_ns"][chosen] = _WAIT_NS
    rows["bytes"] = np.where(rows["kind"] == wire.Kind.COPY, _COPY_BYTES, 0)
    return rows


def put_spans(rows: CallArray, span: NDArray[np.uint64]) -> None:
    """Have `rows` made for the spans with these numbers; each is the local root of its trace."""
    ids = _span_words()[span]
    rows["trace_id"] = ids[:, :2].copy().view(np.uint8)
    rows["span_id"] = rows["local_root_span_id"] = ids[:, 2:].copy().view(np.uint8)


def calls(stack: NDArray[np.integer], start_ns: int, step_ns: int) -> CallArray:
    """Calls of the stacks with these indexes, `step_ns` apart from `start_ns` on."""
    rows: CallArray = call_templates()[stack]
    times_ns = np.uint64(start_ns) + np.arange(len(rows), dtype=np.uint64) * np.uint64(step_ns)
    rows["start_ns"] += times_ns
    rows["end_ns"][rows["end_ns"] > 0] += times_ns[rows["end_ns"] > 0]
    return rows


def stacks() -> Stacks:
    """All stacks, resolved."""
    owner = processes()
    paths = frame_paths()
    frames = _frames(paths)
    return Stacks(
        tuple(
            Stack(
                StackKey(*words),
                owner[index % PROCESSES],
                tuple(frames[level, which] for level, which in enumerate(path)),
            )
            for index, (words, path) in enumerate(
                zip(_hash_words().tolist(), paths.tolist(), strict=True)
            )
        )
    )


def names() -> Names:
    """Names of the kernels, in each process."""
    handles = _handles().tolist()
    return Names(
        tuple(
            HandleName(process, 0, handle, f"_Z{len(name)}{name}Pfi", f"{name}(float*, int)")
            for process in processes()
            for handle, name in ((h, f"elementwise_kernel_{i}") for i, h in enumerate(handles))
        )
    )


def targets() -> Targets:
    """Descriptions of the processes."""
    return Targets(tuple(TargetInfo(p, _resource(p.tgid)) for p in processes()))


def window() -> Bundle:
    """STACKS stacks of exactly DEPTH frames, each with a sample of three types, for SPANS spans."""
    paths = frame_paths()
    frames = _frames(paths)
    numbers = {place: number for number, place in enumerate(frames)}
    resource = _resource(_FIRST_TGID)
    profiles = tuple(
        Profile(
            sample_type=sample_type,
            stack=np.arange(STACKS, dtype=np.int32),
            link=np.arange(STACKS, dtype=np.int32) % SPANS,
            attributes=np.ones(STACKS, np.int32),
            # Of the size that such values have, and different everywhere, so that they do not compress away.
            value=(np.arange(1, STACKS + 1, dtype=np.int64) * 7_919 * 10 ** (4 * (place % 2))),
        )
        for place, sample_type in enumerate((GPU_WAIT, GPU_LAUNCH, GPU_COPY))
    )
    return Bundle(
        resource=resource,
        scope=SCOPE,
        window=Window(1_750_000_000_000_000_000, 1_750_000_000_000_000_000 + _WINDOW_NS),
        frames=tuple(frames.values()),
        stacks=tuple(
            tuple(numbers[level, which] for level, which in enumerate(path))
            for path in paths.tolist()
        ),
        links=tuple(Link(words[:2].tobytes(), words[2:].tobytes()) for words in _span_words()),
        attribute_sets=((), tuple(item for item in resource if item[0] == "service.name")),
        profiles=profiles,
    )


def frame_paths() -> NDArray[np.int64]:
    """(STACKS, DEPTH) which frame each stack has at each level, root first.

    A tree: level d has 10,000^(d/39) nodes, so neighbours share most of their path as stacks of one program do. At most
    400 different frames a level: deep down the same functions are called from many places.
    """
    widths = np.power(float(STACKS), np.arange(DEPTH) / (DEPTH - 1)).round().astype(np.int64)
    nodes = np.arange(STACKS)[:, None] * widths // STACKS
    return np.asarray(nodes % _FRAMES_A_LEVEL)


def _frames(paths: NDArray[np.int64]) -> dict[tuple[int, int], Frame]:
    """The frames that `paths` use, by (level, number)."""
    return {
        (level, which): _frame(level, which)
        for level in range(DEPTH)
        for which in np.unique(paths[:, level]).tolist()
    }


def _frame(level: int, which: int) -> Frame:
    if level < DEPTH - _NATIVE_DEPTH:
        return Frame(
            FrameKind.PYTHON,
            f"Module{which % 37}.forward_{level}_{which}",
            file=f"/opt/app/lib/python3.11/site-packages/torch/nn/modules/module_{which % 53}.py",
            line=10 + (level * 131 + which * 17) % 1500,
        )
    name = f"operator_{level}_{which}"
    return Frame(
        FrameKind.NATIVE,
        f"at::native::{name}(at::Tensor const&, at::Tensor const&, c10::Scalar const&)",
        system_name=f"_ZN2at6native{len(name)}{name}ERKNS_6TensorES3_RKN3c106ScalarE",
        module="/opt/app/lib/python3.11/site-packages/torch/lib/libtorch_cuda.so",
        build_id="0123456789abcdef0123456789abcdef01234567",
        address=0x10_0000 + (level * _FRAMES_A_LEVEL + which) * 0x140,
    )


def _resource(tgid: int) -> AttributeSet:
    return (("host.name", "bench"), ("process.pid", tgid), ("service.name", "bench"))


def _handles() -> NDArray[np.uint64]:
    """Kernel handles: addresses, as the driver gives them."""
    return np.uint64(0x5555_0000_0000) + np.arange(KERNELS, dtype=np.uint64) * np.uint64(0x2C0)


def _hash_words() -> NDArray[np.uint64]:
    """(STACKS, 2) identities that look like hashes and are different: both factors are odd."""
    return np.stack(
        [
            (_INDEX + np.uint64(1)) * np.uint64(0x9E37_79B9_7F4A_7C15),
            (_INDEX + np.uint64(1)) * np.uint64(0xC2B2_AE3D_27D4_EB4F),
        ],
        axis=1,
    )


def _span_words() -> NDArray[np.uint64]:
    """(SPANS, 3) trace id in two words and span id."""
    numbers = np.arange(1, SPANS + 1, dtype=np.uint64)
    factors = np.array(
        [0xD6E8_FEB8_6659_FD93, 0xA076_1D64_78BD_642F, 0xE703_7ED1_A0B4_28DB], np.uint64
    )
    return numbers[:, None] * factors
