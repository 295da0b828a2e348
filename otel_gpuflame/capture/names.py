"""Handles and the GPU functions they mean, in each process."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from otel_gpuflame.capture.bpf.decode import RawName
from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.events.records import HandleName

MAX_READABLE = 160
"""Longer names of kernels are template expansions that no flame graph can show."""


def shorten(name: str) -> str:
    """At most MAX_READABLE characters; a hash of the whole keeps names with equal beginnings apart."""
    if len(name) <= MAX_READABLE:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: MAX_READABLE - 9]}…{digest}"


@dataclass(frozen=True, slots=True)
class LearnedNames:
    """`fresh` handles had no name before; `renamed` ones mean something else from their time on (module reloaded)."""

    fresh: tuple[HandleName, ...]
    renamed: tuple[HandleName, ...]


class NameTable:
    """Resolves aliases (a CUfunction got from a CUkernel) and notices handles that are used again."""

    def __init__(self, readable: Callable[[str], str]) -> None:
        self._readable = readable
        self._names: dict[ProcessKey, dict[int, str]] = {}
        self.unresolved_aliases = 0

    def learn(self, raw_names: Iterable[RawName]) -> LearnedNames:
        """Take in names in the order in which they were given."""
        fresh: list[HandleName] = []
        renamed: list[HandleName] = []
        for raw in raw_names:
            known = self._names.setdefault(raw.process, {})
            name = raw.name or known.get(raw.alias_of, "")
            if not name:
                self.unresolved_aliases += 1
                continue
            before = known.get(raw.handle)
            if before == name:
                continue
            known[raw.handle] = name
            (fresh if before is None else renamed).append(
                HandleName(
                    raw.process, raw.time_ns, raw.handle, name, shorten(self._readable(name))
                )
            )
        return LearnedNames(tuple(fresh), tuple(sorted(renamed, key=lambda n: n.time_ns)))

    def forget(self, process: ProcessKey) -> None:
        """The process has ended."""
        self._names.pop(process, None)
