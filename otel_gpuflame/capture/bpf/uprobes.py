"""Attaching uprobes by file (inode), for every process at once: BPF filters by process."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from otel_gpuflame.capture.bpf.detaching import Detacher, detach_together
from otel_gpuflame.capture.bpf.libbpf import LibbpfError
from otel_gpuflame.capture.bpf.probes import ProbeGroup, Program
from otel_gpuflame.capture.system_call import system_call

ATTACH_TYPE_UPROBE_MULTI: Final = 48
_BPF_LINK_CREATE: Final = 28
_FLAG_RETURN: Final = 1


@dataclass(frozen=True, slots=True)
class ProbePoint:
    """One place to probe. `offset` is in bytes from the start of the file."""

    program: Program
    offset: int
    cookie: int
    windowed: bool = False
    """Whether the agent attaches it only in windows."""
    group: ProbeGroup | None = None
    """With which it may become windowed; None: never."""


def _link_create(program_fd: int, path: bytes, points: Sequence[ProbePoint], *, flags: int) -> int:
    """BPF_LINK_CREATE for BPF_TRACE_UPROBE_MULTI; a link fd, or -errno.

    By system call because libbpf wraps it only from 1.3 on, and Debian 12 has 1.1.
    """
    count = len(points)
    offsets = (ctypes.c_uint64 * count)(*(point.offset for point in points))
    cookies = (ctypes.c_uint64 * count)(*(point.cookie for point in points))
    path_buffer = ctypes.create_string_buffer(path)
    # prog_fd, target_fd, attach_type, flags, path, offsets, ref_ctr_offsets, cookies, cnt, flags, pid
    attributes = struct.pack(
        "<IIIIQQQQIII4x",
        program_fd,
        0,
        ATTACH_TYPE_UPROBE_MULTI,
        0,
        ctypes.addressof(path_buffer),
        ctypes.addressof(offsets),
        0,
        ctypes.addressof(cookies),
        count,
        flags,
        0,
    )
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    return system_call("bpf", _BPF_LINK_CREATE, buffer, len(attributes))


def multi_is_supported(program_fd: int) -> bool:
    """Whether the kernel has uprobe_multi: it then refuses "/" for not being a regular file (EBADF).

    The program must have been loaded with ATTACH_TYPE_UPROBE_MULTI.
    """
    point = ProbePoint(Program.CALL, 0, 0)
    return _link_create(program_fd, b"/", [point], flags=0) == -errno.EBADF


class ProbedObject(Protocol):
    """Loaded programs that uprobes run."""

    def program_fd(self, name: str) -> int:
        """Descriptor of a program."""

    def attach_uprobe(
        self, name: str, path: Path, offset: int, *, cookie: int, is_return: bool
    ) -> Callable[[], None]:
        """One uprobe; returns what detaches it. Raises LibbpfError."""


_Links = dict[Hashable, list[tuple[bool, Detacher]]]
"""By owner: whether it is for returns, and what detaches it."""


class UprobeLinks:
    """Attachments of one object, in two groups: what stays, and what a window opens and closes.

    One link a program and file with uprobe_multi, one a probe otherwise. On kernels from 6.13 on a link takes about
    0.1 s to detach, whether it has one probe or 60.
    """

    def __init__(self, bpf_object: ProbedObject, *, multi: bool) -> None:
        self._object = bpf_object
        self._multi = multi
        self._lasting: _Links = {}
        self._windowed: _Links = {}

    def attach(
        self, owner: Hashable, path: Path, points: Sequence[ProbePoint], *, in_window: bool = False
    ) -> None:
        """Attach points of a file for `owner`. Raises LibbpfError; what was attached before stays until `detach`."""
        detachers = (self._windowed if in_window else self._lasting).setdefault(owner, [])
        # Return probes first: a call that has its entry seen must also have its return seen.
        for program in sorted({point.program for point in points}, key=lambda p: not p.is_return):
            chosen = [p for p in points if p.program is program]
            # One by one: when a probe is refused, those before it are still known to `detach`.
            for detacher in self._attach_program(path, program, chosen):
                detachers.append((program.is_return, detacher))

    def descriptors(self, points: Sequence[ProbePoint]) -> int:
        """How many it takes to attach them all, group by group."""
        if not self._multi:
            return len(points)
        return len({(each.program, each.group, each.windowed) for each in points})

    def close_window(self, grace_s: float = 0.0) -> None:
        """Detach whatever was attached `in_window`; returns not before `grace_s` from now."""
        _detach(self._windowed, tuple(self._windowed), grace_s)

    def detach(self, owner: Hashable) -> None:
        """Detach everything of `owner`."""
        _detach(self._windowed, (owner,))
        _detach(self._lasting, (owner,))

    def detach_all(self) -> None:
        """Detach everything."""
        self.close_window()
        _detach(self._lasting, tuple(self._lasting))

    def _attach_program(
        self, path: Path, program: Program, points: Sequence[ProbePoint]
    ) -> Iterator[Detacher]:
        if not self._multi:
            for point in points:
                yield self._object.attach_uprobe(
                    program.value,
                    path,
                    point.offset,
                    cookie=point.cookie,
                    is_return=program.is_return,
                )
            return
        fd = _link_create(
            self._object.program_fd(program.value),
            os.fsencode(path),
            points,
            flags=_FLAG_RETURN if program.is_return else 0,
        )
        if fd < 0:
            raise LibbpfError(-fd, f"attach {program.value} to {path}")
        yield partial(os.close, fd)


def _detach(links: _Links, owners: Sequence[Hashable], grace_s: float = 0.0) -> None:
    """Entries first: a call that is seen to begin must be seen to end."""
    ours = [link for owner in owners for link in links.pop(owner, ())]
    entries, returns = ([detach for ends, detach in ours if ends is end] for end in (False, True))
    started_s = time.monotonic()
    detach_together(entries)
    if returns:
        time.sleep(max(started_s + grace_s - time.monotonic(), 0.0))
        detach_together(returns)
