"""What a call's stream handle means, and in which context its thread works."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from otel_gpuflame.correlate.gpu.keys import codes_of, last_before, shared_codes
from otel_gpuflame.correlate.gpu.streams import (
    CONTEXT_OF_THREAD,
    LAST_DEFAULT,
    LEGACY_STREAM,
    PER_THREAD_STREAM,
    MeaningArray,
    StreamTable,
)
from otel_gpuflame.events.executions import NO_DEVICE
from otel_gpuflame.events.records import CallArray

_PROCESS: Final = ("process_start_ns", "tgid")


@dataclass(frozen=True, slots=True)
class Streams:
    """Columns as long as the calls: where each one's stream is. `found` False: nothing is known of it."""

    found: NDArray[np.bool_]
    context_id: NDArray[np.uint32]
    stream_id: NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Contexts:
    """Columns as long as the calls: in which context, on which device a thread works. `found` False: not known."""

    found: NDArray[np.bool_]
    context_id: NDArray[np.uint32]
    device: NDArray[np.uint32]


def legacy_streams(table: StreamTable) -> MeaningArray:
    """The legacy default streams that are known: at most one a context, except where programs contradict themselves."""
    named = table.meanings
    is_zero = named["handle"] == 0
    is_legacy = (named["handle"] == LEGACY_STREAM) | (is_zero & ~_compiled_per_thread(named, named))
    return named.take(np.flatnonzero(is_legacy & (named["is_graph"] == 0)))


def contexts_of(table: StreamTable, calls: CallArray) -> Contexts:
    """The context of each call's thread: of its last launch before the call, else of its next one.

    A thread that launched nothing is in the process's only context, where it has only one.
    """
    known = table.meanings.take(np.flatnonzero(table.meanings["handle"] == CONTEXT_OF_THREAD))
    place = _lookup(known, calls, (*_PROCESS, "tid"))
    place = np.where(place < 0, _only_context(known, calls), place)
    found = place >= 0
    if not len(known):
        nothing = np.zeros(len(calls), np.uint32)
        return Contexts(found, nothing, np.full(len(calls), NO_DEVICE, np.uint32))
    return Contexts(
        found,
        np.where(found, known["context_id"][place], 0).astype(np.uint32),
        np.where(found, _devices(known)[place], NO_DEVICE).astype(np.uint32),
    )


def _devices(known: MeaningArray) -> NDArray[np.uint32]:
    """(n,) the device of each row's context, which not every row knows."""
    contexts, some = codes_of(*(known[name] for name in (*_PROCESS, "context_id")))
    device = np.full(len(some), NO_DEVICE, np.uint32)
    knows = known["device"] != NO_DEVICE
    device[contexts[knows]] = known["device"][knows]
    return device[contexts]


def _only_context(known: MeaningArray, calls: CallArray) -> NDArray[np.intp]:
    """A row that tells the one context of each call's process; -1 where there is none, or are several."""
    if not len(known):
        return np.full(len(calls), -1, np.intp)
    mine, asked, count = shared_codes(
        [known["process_start_ns"], known["tgid"]], [calls["process_start_ns"], calls["tgid"]]
    )
    low = np.full(count, np.iinfo(np.int64).max)
    high = np.full(count, -1, np.int64)
    contexts = known["context_id"].astype(np.int64)
    np.minimum.at(low, mine, contexts)
    np.maximum.at(high, mine, contexts)
    row = np.full(count, -1, np.intp)
    row[mine] = np.arange(len(known))
    return np.where(low[asked] == high[asked], row[asked], -1)


def _lookup(
    known: MeaningArray, calls: NDArray[np.void], names: tuple[str, ...]
) -> NDArray[np.intp]:
    """The row of `known` that holds for each call: the last one before it, else the first after; -1: none."""
    if not len(known) or not len(calls):
        return np.full(len(calls), -1, np.intp)
    mine, asked, count = shared_codes(
        [known[name] for name in names], [calls[name] for name in names]
    )
    before, after = last_before((mine, known["time_ns"]), (asked, calls["start_ns"]), count)
    return np.where(before >= 0, before, after)


_ASKED: Final[np.dtype[Any]] = np.dtype(
    [
        ("process_start_ns", "<u8"),
        ("handle", "<u8"),
        ("start_ns", "<u8"),
        ("tgid", "<u4"),
        ("tid", "<u4"),
        ("context_id", "<u4"),
    ]
)


def streams_of(table: StreamTable, calls: CallArray) -> Streams:
    """The stream that each call names by its handle.

    Default streams are those of the context in which the thread works. Handle 0 is the legacy one, which all threads
    share, unless launches of several threads showed that each has its own.
    """
    asked = np.zeros(len(calls), _ASKED)
    for name in ("process_start_ns", "start_ns", "tgid", "tid"):
        asked[name] = calls[name]
    asked["handle"] = calls["stream"]
    contexts = contexts_of(table, calls)
    asked["context_id"] = contexts.context_id
    named, places = table.meanings, np.full(len(calls), -1, np.intp)
    _resolve(places, named, asked, asked["handle"] > LAST_DEFAULT, ("handle",))
    is_per_thread = (asked["handle"] == PER_THREAD_STREAM) | (
        (asked["handle"] == 0) & _compiled_per_thread(named, asked)
    )
    of_thread = (asked["handle"] <= LAST_DEFAULT) & is_per_thread & contexts.found
    _resolve(places, named, asked, of_thread, ("tid", "handle", "context_id"))
    shared = (asked["handle"] <= LEGACY_STREAM) & ~is_per_thread & contexts.found
    _resolve(places, *_as_legacy(named, asked), shared, ("handle", "context_id"))
    found = places >= 0
    if not len(named):
        return Streams(found, asked["context_id"], np.zeros(len(calls), np.uint32))
    return Streams(
        found,
        np.where(found, named["context_id"][places], asked["context_id"]).astype(np.uint32),
        np.where(found, named["stream_id"][places], 0).astype(np.uint32),
    )


def _resolve(
    places: NDArray[np.intp],
    named: MeaningArray,
    asked: NDArray[np.void],
    which: NDArray[np.bool_],
    names: tuple[str, ...],
) -> None:
    """Set `places` of the rows `which`; nodes of graphs are believed where nothing else is known."""
    for is_graph in (0, 1):
        rows = np.flatnonzero(
            (named["is_graph"] == is_graph) & (named["handle"] != CONTEXT_OF_THREAD)
        )
        wanted = np.flatnonzero(which & (places < 0))
        found = _lookup(named.take(rows), asked.take(wanted), (*_PROCESS, *names))
        has = found >= 0
        places[wanted[has]] = rows[found[has]]


def _as_legacy(
    named: MeaningArray, asked: NDArray[np.void]
) -> tuple[MeaningArray, NDArray[np.void]]:
    """Both with handle 0 written as `LEGACY_STREAM`."""
    named, asked = named.copy(), asked.copy()
    for rows in (named, asked):
        rows["handle"][rows["handle"] == 0] = LEGACY_STREAM
    return named, asked


def _compiled_per_thread(named: MeaningArray, asked: NDArray[np.void]) -> NDArray[np.bool_]:
    """Whether handle 0 was seen to mean different streams of one context in the call's process."""
    zero = named.take(np.flatnonzero((named["handle"] == 0) & (named["is_graph"] == 0)))
    if not len(zero):
        return np.zeros(len(asked), np.bool_)
    mine, wanted, count = shared_codes(
        [zero[name] for name in _PROCESS], [asked[name] for name in _PROCESS]
    )
    places, _ = codes_of(mine, zero["context_id"])
    low = np.full(int(places.max()) + 1, np.iinfo(np.int64).max)
    high = np.full(len(low), -1, np.int64)
    np.minimum.at(low, places, zero["stream_id"].astype(np.int64))
    np.maximum.at(high, places, zero["stream_id"].astype(np.int64))
    several = np.zeros(count, np.bool_)
    several[mine[low[places] != high[places]]] = True
    return several[wanted]
