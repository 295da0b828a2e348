"""Who calls: each process is described before its first call is handed out, and again when that has changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from otel_gpuflame.capture.describe import Attributes
from otel_gpuflame.capture.distinct import DistinctPairs
from otel_gpuflame.capture.replaced import Replaced, ReplacedPrograms
from otel_gpuflame.capture.targets import Targets
from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.events.records import CallArray, TargetInfo
from otel_gpuflame.events.records import Targets as TargetsEvent


class Descriptions:
    """Owns which descriptions have been given out. `met` is called with a process when it calls for the first time."""

    def __init__(
        self, targets: Targets, replaced: ReplacedPrograms, met: Callable[[ProcessKey], None]
    ) -> None:
        self._targets = targets
        self._replaced = replaced
        self._met = met
        self._seen = DistinctPairs()
        self._given_out: dict[ProcessKey, Attributes] = {}

    def events(self, rows: CallArray) -> Iterator[TargetsEvent]:
        """What must be known before these calls."""
        infos = self._new(rows) + self._former() + self._changed()
        if infos:
            yield TargetsEvent(tuple(infos))

    def end_program(self, program: Replaced, *, has_calls: bool) -> Iterator[TargetsEvent]:
        """A process executed another program: describes the one before, if that was not done, and begins anew.

        `has_calls`: whether calls of the program before are still to come.
        """
        process = program.change.process
        given_out = self._given_out.pop(process, None)
        if given_out != program.former and (given_out is not None or has_calls):
            yield TargetsEvent((TargetInfo(process, program.former),))

    def forget(self, process: ProcessKey) -> None:
        """The process has ended, and its last calls are through."""
        self._given_out.pop(process, None)
        self._seen.forget([(process.tgid, process.start_ns)])

    def _new(self, rows: CallArray) -> list[TargetInfo]:
        """Of processes that call for the first time."""
        infos = []
        for tgid, start_ns in self._seen.among(rows["tgid"], rows["process_start_ns"]):
            process = ProcessKey(tgid, start_ns)
            if process in self._given_out:
                continue
            fallback = (("process.pid", tgid), ("service.name", "unknown_service"))
            self._met(process)
            former = self._replaced.formers().get(process)
            infos.append(
                self._give_out(process, former or self._targets.attributes(tgid) or fallback)
            )
        return infos

    def _former(self) -> list[TargetInfo]:
        """Those that were given out and may have been read too late, from the program that came next.

        At once: the window of those calls may close in this round.
        """
        return [
            self._give_out(process, former)
            for process, former in self._replaced.formers().items()
            if self._given_out.get(process, former) != former
        ]

    def _changed(self) -> list[TargetInfo]:
        """Those that have changed since they were given out."""
        changed = self._targets.take_redescribed()
        # Their new description is given out with the first call of the new program.
        changed -= self._replaced.pids
        infos = []
        for process in [process for process in self._given_out if process.tgid in changed]:
            attributes = self._targets.attributes(process.tgid)
            if attributes is not None and attributes != self._given_out[process]:
                infos.append(self._give_out(process, attributes))
        return infos

    def _give_out(self, process: ProcessKey, attributes: Attributes) -> TargetInfo:
        self._given_out[process] = attributes
        return TargetInfo(process, attributes)
