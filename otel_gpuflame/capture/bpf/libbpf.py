"""libbpf by ctypes: only what loading an object and attaching its programs needs."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Iterator
from ctypes import c_bool, c_char_p, c_size_t, c_uint64
from functools import partial
from pathlib import Path
from typing import Any, Final

from otel_gpuflame.capture.bpf.detaching import detach_together


class LibbpfError(OSError):
    """A libbpf call failed; `errno` is the kernel's answer and `filename` what was attempted."""

    def __init__(self, code: int, attempt: str) -> None:
        super().__init__(abs(code), os.strerror(abs(code)), attempt)


_BPF_EXIST: Final = 2


class PerfEventOptions(ctypes.Structure):
    """struct bpf_perf_event_opts."""

    _fields_ = (("size", c_size_t), ("cookie", c_uint64))


class UprobeOptions(ctypes.Structure):
    """struct bpf_uprobe_opts."""

    _fields_ = (
        ("size", c_size_t),
        ("reference_counter_offset", c_size_t),
        ("cookie", c_uint64),
        ("is_return", c_bool),
        ("function_name", c_char_p),
    )


class BpfObject:
    """An opened BPF object: configure, then `load`, then attach. Links and maps live as long as it does."""

    def __init__(self, library: ctypes.CDLL, image: bytes) -> None:
        self._library = library
        self._object = library.bpf_object__open_mem(image, len(image), None)
        if not self._object:
            raise LibbpfError(ctypes.get_errno(), "open BPF object")
        self._links: list[int] = []

    def programs(self) -> Iterator[tuple[str, int]]:
        """(name, handle) of each program."""
        program = self._library.bpf_object__next_program(self._object, None)
        while program:
            yield self._library.bpf_program__name(program).decode(), program
            program = self._library.bpf_object__next_program(self._object, program)

    def program(self, name: str) -> int:
        """Handle of the program called `name`; KeyError if the object has none."""
        return dict(self.programs())[name]

    def program_fd(self, name: str) -> int:
        """File descriptor of a loaded program."""
        return int(self._library.bpf_program__fd(self.program(name)))

    def set_autoload(self, name: str, *, load: bool) -> None:
        """Whether `load` gives this program to the kernel."""
        self._check(
            self._library.bpf_program__set_autoload(self.program(name), load), f"configure {name}"
        )

    def set_attach_type(self, name: str, attach_type: int) -> None:
        """Expected attach type, before loading."""
        self._check(
            self._library.bpf_program__set_expected_attach_type(self.program(name), attach_type),
            f"configure {name}",
        )

    def set_map_size(self, name: str, entries: int) -> None:
        """max_entries of a map (bytes for a ring buffer), before loading."""
        self._check(
            self._library.bpf_map__set_max_entries(self._map(name), entries), f"size map {name}"
        )

    def set_constants(self, section: str, value: bytes) -> None:
        """The whole of a section of read-only data, before loading."""
        self._check(
            self._library.bpf_map__set_initial_value(self._map(section), value, len(value)),
            f"set {section}",
        )

    def load(self) -> None:
        """Give the object to the kernel; LibbpfError carries its errno."""
        self._check(self._library.bpf_object__load(self._object), "load BPF object")

    def attach(self, name: str) -> None:
        """Attach a program where its section says (tracepoints)."""
        link = self._library.bpf_program__attach(self.program(name))
        if not link:
            raise LibbpfError(ctypes.get_errno(), f"attach {name}")
        self._links.append(link)

    def attach_perf_event(self, name: str, fd: int, *, cookie: int = 0) -> None:
        """Attach to a perf event (`perf_events`), whose descriptor is closed with the link, or here if it fails."""
        options = PerfEventOptions(ctypes.sizeof(PerfEventOptions), cookie)
        link = self._library.bpf_program__attach_perf_event_opts(
            self.program(name), fd, ctypes.byref(options)
        )
        if not link:
            code = ctypes.get_errno()
            os.close(fd)
            raise LibbpfError(code, f"attach {name}")
        self._links.append(link)

    def attach_uprobe(
        self, name: str, path: Path, offset: int, *, cookie: int, is_return: bool
    ) -> Callable[[], None]:
        """One uprobe at a file offset, for every process (kernels without uprobe_multi); returns what detaches it."""
        options = UprobeOptions(ctypes.sizeof(UprobeOptions), 0, cookie, is_return, None)
        link = self._library.bpf_program__attach_uprobe_opts(
            self.program(name), -1, os.fsencode(path), offset, ctypes.byref(options)
        )
        if not link:
            raise LibbpfError(ctypes.get_errno(), f"attach {name} to {path}+{offset:#x}")
        self._links.append(link)
        return partial(self._destroy, link)

    def map_fd(self, name: str) -> int:
        """File descriptor of a map."""
        return int(self._library.bpf_map__fd(self._map(name)))

    def detach(self) -> None:
        """Destroy every link of this object."""
        detach_together([partial(self._destroy, link) for link in self._links])

    def close(self) -> None:
        """Detach and free; maps and programs go when nothing else holds them. Safe to call twice."""
        if self._object:
            self.detach()
            self._library.bpf_object__close(self._object)
            self._object = None

    def _destroy(self, link: int) -> None:
        if link in self._links:
            self._links.remove(link)
            self._library.bpf_link__destroy(link)

    def _map(self, name: str) -> int:
        found = self._library.bpf_object__find_map_by_name(self._object, name.encode())
        if not found:
            raise KeyError(f"BPF object has no map {name!r}")
        return int(found)

    @staticmethod
    def _check(result: int, attempt: str) -> None:
        if result:
            raise LibbpfError(result, attempt)


class BpfMap:
    """A hash, array or queue with fixed-size keys and values, as bytes."""

    def __init__(self, library: ctypes.CDLL, fd: int, *, value_size: int) -> None:
        self._library = library
        self._fd = fd
        self._value_size = value_size

    def get(self, key: bytes) -> bytes | None:
        """The value, or None if the key is absent."""
        value = ctypes.create_string_buffer(self._value_size)
        if self._call(self._library.bpf_map_lookup_elem, key, value):
            return None
        return value.raw

    def set(self, key: bytes, value: bytes, *, must_exist: bool = False) -> bool:
        """Store; False if the map is full, or if the key is absent and must not be."""
        if len(value) != self._value_size:
            raise ValueError(f"value has {len(value)} bytes, the map takes {self._value_size}")
        flags = c_uint64(_BPF_EXIST if must_exist else 0)
        return not self._call(self._library.bpf_map_update_elem, key, value, flags)

    def delete(self, key: bytes) -> bool:
        """Remove; False if the key was absent."""
        return not self._call(self._library.bpf_map_delete_elem, key)

    def pop(self) -> bytes | None:
        """The oldest element of a queue, which it leaves; None if there is none."""
        value = ctypes.create_string_buffer(self._value_size)
        if self._call(self._library.bpf_map_lookup_and_delete_elem, None, value):
            return None
        return value.raw

    def _call(self, function: Callable[..., int], *arguments: Any) -> int:
        ctypes.set_errno(0)
        result = function(self._fd, *arguments)
        if result and ctypes.get_errno() not in (errno.ENOENT, errno.E2BIG, errno.ENOSPC):
            raise LibbpfError(ctypes.get_errno(), "access BPF map")
        return result
