"""Handles and the GPU functions they mean, in each process."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from otel_gpuflame.capture.bpf.decode import RawName
from otel_gpuflame.capture.bpf.probes import ProbeGroup
from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.events.recent_handles import RecentHandles
from otel_gpuflame.events.records import HandleName

MAX_READABLE = 16_384
"""Characters of a demangled name that a capture keeps; real ones have up to 5,000. A profile shows less of it."""


def shorten(name: str) -> str:
    """At most MAX_READABLE characters; a hash of the whole keeps names with equal beginnings apart."""
    if len(name) <= MAX_READABLE:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: MAX_READABLE - 9]}…{digest}"


@dataclass(frozen=True, slots=True)
class LearnedNames:
    """`fresh` handles had no name before; `renamed` ones mean something else from their time on (module reloaded).

    `repeated`: how often each process asked for what is known, or cannot be (aliases of what was named before us).
    """

    fresh: tuple[HandleName, ...]
    renamed: tuple[HandleName, ...]
    repeated: Mapping[tuple[ProcessKey, ProbeGroup], int]


class NameTable:
    """Resolves aliases (a CUfunction got from a CUkernel) and notices handles that are used again."""

    def __init__(self, readable: Callable[[str], str]) -> None:
        self._readable = readable
        self._names: dict[ProcessKey, RecentHandles[str]] = {}
        self.unresolved_aliases = 0
        """Answers that a handle means what another one does, of which no name is known."""
        self.forgotten = 0
        """Names of handles that had not been used for longest, of processes with more than `RecentHandles` has room
        for."""

    def learn(self, raw_names: Iterable[RawName]) -> LearnedNames:
        """Take in names in the order in which they were given."""
        fresh: list[HandleName] = []
        renamed: list[HandleName] = []
        repeated: Counter[tuple[ProcessKey, ProbeGroup]] = Counter()
        for raw in raw_names:
            known = self._names.setdefault(raw.process, RecentHandles())
            name = raw.name or known.get(raw.alias_of) or ""
            before = known.get(raw.handle)
            if not name:
                self.unresolved_aliases += 1
            if not name or before == name:
                repeated[raw.process, ProbeGroup.NAME if raw.name else ProbeGroup.ALIAS] += 1
                continue
            self.forgotten += len(known.put(raw.handle, name, len(name)))
            (fresh if before is None else renamed).append(
                HandleName(
                    raw.process, raw.time_ns, raw.handle, name, shorten(self._readable(name))
                )
            )
        renamed.sort(key=lambda n: n.time_ns)
        return LearnedNames(tuple(fresh), tuple(renamed), repeated)

    def forget(self, process: ProcessKey) -> None:
        """The process has ended."""
        self._names.pop(process, None)
