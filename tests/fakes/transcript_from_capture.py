"""Turn a capture of a real program into a transcript that the fake driver replays (format: README.md).

Usage: python -m tests.fakes.transcript_from_capture FILE.ogfcap [--calls N] > transcript.txt

Calls, threads, streams, sizes and times are those of the recording. How long kernels ran on the device is not in a
capture without GPU times, so they take the fake's default.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any

from otel_gpuflame.capture.replay import ReplaySource
from otel_gpuflame.events import wire
from otel_gpuflame.events.apis import BY_ID
from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.events.records import Calls, Names
from otel_gpuflame.events.wire import Kind

HEADER = "fake-cuda-transcript 1"
MAX_COPY_BYTES = 64 << 20
"""The fake refuses larger ones, since it really moves the bytes."""

# Functions of the transcript format, by the name of the API.
_EXPORTED = {
    "cuMemcpyHtoD": "cuMemcpyHtoD_v2",
    "cuMemcpyDtoH": "cuMemcpyDtoH_v2",
    "cuMemcpyHtoDAsync": "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync": "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoD": "cuMemcpyDtoD_v2",
    "cuMemcpyDtoDAsync": "cuMemcpyDtoDAsync_v2",
}
_AS_NAMED = frozenset(
    {
        "cuLaunchKernel",
        "cuLaunchKernelEx",
        "cuLaunchCooperativeKernel",
        "cuStreamSynchronize",
        "cuCtxSynchronize",
        "cuMemsetD8Async",
    }
)


def transcript_lines(path: str, limit: int) -> Iterator[str]:
    """Header and at most `limit` calls; calls that the format does not know are left out."""
    yield HEADER
    names: dict[tuple[ProcessKey, int], str] = {}
    threads: dict[int, int] = {}
    first_ns = 0
    count = 0
    with ReplaySource(path, call_dtype=wire.CALL) as source:
        for event in source.events():
            if isinstance(event, Names):
                names.update(((n.process, n.handle), n.name) for n in event.names)
            if not isinstance(event, Calls):
                continue
            for row in event.rows:
                line = _call(row, names)
                if line is None:
                    continue
                first_ns = first_ns or int(row["start_ns"])
                thread = threads.setdefault(int(row["tid"]), len(threads))
                yield f"{max(int(row['start_ns']) - first_ns, 0)} {thread} {line}"
                count += 1
                if count == limit:
                    return


def _call(row: Any, names: dict[tuple[ProcessKey, int], str]) -> str | None:
    api = BY_ID[int(row["api"])]
    function = _EXPORTED.get(api.name) or (api.name if api.name in _AS_NAMED else None)
    if function is None:
        return None
    stream = f"stream={int(row['stream']):#x}"
    if api.kind is Kind.LAUNCH:
        process = ProcessKey(int(row["tgid"]), int(row["process_start_ns"]))
        name = names.get((process, int(row["object"])), "unnamed")
        grid = ",".join(str(n) for n in row["grid"])
        block = ",".join(str(n) for n in row["block"])
        return f"{function} name={name} {stream} grid={grid} block={block}"
    if api.kind in (Kind.COPY, Kind.SET):
        size = f"bytes={min(int(row['bytes']), MAX_COPY_BYTES)}"
        return f"{function} {size} {stream}" if "Async" in function else f"{function} {size}"
    return function if api.name == "cuCtxSynchronize" else f"{function} {stream}"


def main() -> None:
    """Write the transcript to standard output."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("capture")
    parser.add_argument("--calls", type=int, default=1_000, help="at most this many (default 1000)")
    options = parser.parse_args()
    sys.stdout.writelines(f"{line}\n" for line in transcript_lines(options.capture, options.calls))


if __name__ == "__main__":
    main()
