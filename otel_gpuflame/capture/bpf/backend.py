"""What capture needs of whoever loads the BPF programs: libbpf (kernel.py) or BCC (bcc_backend.py)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol

from otel_gpuflame.capture.bpf.decode import RawXid
from otel_gpuflame.capture.bpf.drain import Drain
from otel_gpuflame.capture.bpf.libbpf import BpfMap
from otel_gpuflame.capture.bpf.unwind_maps import UnwindMaps
from otel_gpuflame.capture.bpf.uprobes import UprobeLinks
from otel_gpuflame.events.frames import StackKey
from otel_gpuflame.events.records import LossCount

MIB: Final = 1 << 20
NOT_PERMITTED: Final = (
    "loading BPF programs is not permitted: run as root, or give the process CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE, "
    "CAP_DAC_READ_SEARCH and CAP_CHECKPOINT_RESTORE; root in a container needs them too"
)
"""The first two load the programs. All five are named, so that nobody who lacks them comes back for the others."""


class Loader(Enum):
    """Who loads the BPF programs."""

    LIBBPF = "libbpf"
    """Programs built with the package; needs a kernel with BTF."""
    BCC = "bcc"
    """Programs compiled on the host; needs BCC and kernel headers."""


@dataclass(frozen=True, slots=True)
class RingSizes:
    """Bytes of each BPF ring, powers of two. 16 MiB of calls are 110,000 calls."""

    calls: int = 16 * MIB
    stacks: int = 8 * MIB
    names: int = 1 * MIB
    processes: int = 1 * MIB


@dataclass(slots=True)
class LoadReport:
    """What the host gave us."""

    loader: str
    """Which one, and its version."""
    uprobe_multi: bool
    missing: dict[str, str] = field(default_factory=dict)
    """Program → what does not work without it."""


class CaptureBackend(Protocol):
    """Programs in the kernel, attached to all but libraries. Whoever makes one raises SourceUnavailable."""

    @property
    def report(self) -> LoadReport:
        """What the host gave us."""

    @property
    def uprobes(self) -> UprobeLinks:
        """Attaches probes to libraries."""

    @property
    def targets(self) -> BpfMap:
        """Processes that are captured: key u32 tgid, value `wire.TARGET`."""

    @property
    def costs(self) -> BpfMap:
        """Key u32 tgid, value `wire.COST`; counted where there is an entry."""

    @property
    def gpu_majors(self) -> BpfMap | None:
        """Which devices are GPUs; None where system calls on them cannot be captured."""

    @property
    def passes_since(self) -> BpfMap | None:
        """See `autograd.SeenPasses`; None where these programs take over nothing from whoever calls `backward()`."""

    @property
    def waits_since(self) -> BpfMap | None:
        """See `seen_returns.SeenReturns`; None where these programs are of `record` alone, which has no windows."""

    @property
    def unwind_maps(self) -> UnwindMaps | None:
        """Where unwind tables go; None where these programs walk stacks by frame pointer alone."""

    def open_drain(self, poll_ns: int) -> Drain:
        """The drain of all rings, in the order calls, stacks, names, processes."""

    def watch_host(self) -> None:
        """From now on whoever hits a probe becomes a target. Raises SourceUnavailable."""

    def cost_of(self, pid: int) -> tuple[int, int] | None:
        """(hits, nanoseconds in our programs) of a target since it was found; None if it is none."""

    def passes_of(self, pid: int) -> int:
        """Backward passes of a target that were seen to begin since it was found; 0 if it is none."""

    def forget_stack(self, key: StackKey) -> None:
        """Make BPF send a stack again, because it got lost on the way."""

    def counters(self) -> list[LossCount]:
        """All nonzero counters, summed over CPUs."""

    def take_xids(self) -> list[RawXid]:
        """Errors of devices that were reported since the last time, at most as many as BPF keeps."""

    def detach(self) -> None:
        """Detach everything; maps and rings stay."""

    def close(self) -> None:
        """Detach everything and free the rest. Safe to call twice."""
