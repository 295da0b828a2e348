"""The producer of the road benchmark: a process of its own that has BPF write calls into a recorder's rings.

Run: python -m tests.benchmarks.flood RATE_PER_S SECONDS MAP=FD..., with the file descriptors inherited. It waits for a
line on standard input and prints what it did as a JSON line. In a process of its own because it must keep its pace
while the recorder's interpreter lock is taken.
"""

from __future__ import annotations

import ctypes
import errno
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from ctypes import c_int, c_size_t, c_uint32, c_void_p
from pathlib import Path
from typing import Final

from otel_gpuflame.capture.bpf.libbpf import BpfMap, BpfObject, LibbpfError
from otel_gpuflame.capture.bpf.library import load_library
from otel_gpuflame.events import wire
from tests.benchmarks import workload

ROOT: Final = Path(__file__).parents[2]
OBJECT: Final = Path(__file__).parent / ".build" / "flood.bpf.o"
SHARED_MAPS: Final = ("targets", "counters", "calls", "stacks", "names", "processes")
_TICK_S: Final = 0.001
_MOST_A_TICK: Final = 50_000
"""A producer that was held up does not come back with more than this at once: 7.6 MB of the ring."""


class _TestRunOptions(ctypes.Structure):
    """struct bpf_test_run_opts."""

    _fields_ = (
        ("size", c_size_t),
        ("data_in", c_void_p),
        ("data_out", c_void_p),
        ("data_size_in", c_uint32),
        ("data_size_out", c_uint32),
        ("context_in", c_void_p),
        ("context_out", c_void_p),
        ("context_size_in", c_uint32),
        ("context_size_out", c_uint32),
        ("return_value", c_uint32),
        ("repeat", c_int),
        ("duration", c_uint32),
        ("flags", c_uint32),
        ("cpu", c_uint32),
        ("batch_size", c_uint32),
    )


class Flood(BpfObject):
    """The loaded producer, writing into the maps of a recorder."""

    def __init__(self, map_fds: Mapping[str, int]) -> None:
        library = load_library()
        library.bpf_map__reuse_fd.argtypes = (c_void_p, c_int)
        library.bpf_prog_test_run_opts.argtypes = (c_int, c_void_p)
        super().__init__(library, OBJECT.read_bytes())
        for name in SHARED_MAPS:
            self._check(library.bpf_map__reuse_fd(self._map(name), map_fds[name]), f"share {name}")
        self.load()
        templates = BpfMap(library, self.map_fd("templates"), value_size=wire.CALL.itemsize)
        for index, row in enumerate(workload.call_templates()):
            templates.set(index.to_bytes(4, "little"), row.tobytes())
        self._programs = {name: self.program_fd(name) for name in ("announce", "flood")}

    def announce(self) -> None:
        """Write every stack that calls will refer to, without frames."""
        self._run("announce", 0)

    def write(self, count: int) -> None:
        """Write `count` calls."""
        self._run("flood", count)

    def _run(self, program: str, argument: int) -> None:
        # Room for the arguments of any tracepoint; the program reads the first.
        context = (ctypes.c_uint64 * 12)(argument)
        options = _TestRunOptions(size=ctypes.sizeof(_TestRunOptions))
        options.context_in = ctypes.addressof(context)
        options.context_size_in = ctypes.sizeof(context)
        result = self._library.bpf_prog_test_run_opts(
            self._programs[program], ctypes.byref(options)
        )
        if result:
            raise LibbpfError(result, f"run {program}")


def build() -> None:
    """Compile the producer. Raises RuntimeError with what make said."""
    result = subprocess.run(
        ["make", "-s", "-C", str(ROOT / "bpf"), "bench"],
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        raise RuntimeError(f"cannot build the producer:\n{result.stderr.strip()}")


def run_at(flood: Flood, rate_per_s: float, seconds: float) -> dict[str, float]:
    """Write calls at a steady rate, catching up after being held up; what was done."""
    written = 0
    longest_pause_s = 0.0
    cpu_s = time.process_time()
    begin_s = last_s = time.monotonic()
    while (now_s := time.monotonic()) - begin_s < seconds:
        longest_pause_s = max(longest_pause_s, now_s - last_s)
        last_s = now_s
        due = min(int((now_s - begin_s) * rate_per_s) - written, _MOST_A_TICK)
        flood.write(due)
        written += due
        time.sleep(_TICK_S)
    wall_s = time.monotonic() - begin_s
    return {
        "written": written,
        "wall_s": wall_s,
        "cpu_s": time.process_time() - cpu_s,
        "process_cpu_s": time.process_time(),
        "longest_pause_s": longest_pause_s,
    }


def main() -> None:
    """Load, wait for a line, write, report."""
    rate_per_s, seconds = float(sys.argv[1]), float(sys.argv[2])
    map_fds = {name: int(fd) for name, _, fd in (item.partition("=") for item in sys.argv[3:])}
    try:
        flood = Flood(map_fds)
    except LibbpfError as error:
        remedy = " (run as root)" if error.errno in (errno.EPERM, errno.EACCES) else ""
        sys.exit(f"{error}{remedy}")
    flood.announce()
    sys.stdin.readline()
    print(json.dumps(run_at(flood, rate_per_s, seconds)), flush=True)


if __name__ == "__main__":
    main()
