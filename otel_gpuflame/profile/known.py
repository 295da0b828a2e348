"""What events told about processes, stacks, names and devices, for as long as a window may ask for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from otel_gpuflame.correlate.groups import Groups, runs
from otel_gpuflame.events.attributions import StackPair
from otel_gpuflame.events.frames import Frame, ProcessKey, Stack, StackKey
from otel_gpuflame.events.recent_handles import RecentHandles
from otel_gpuflame.events.records import HandleName, TargetInfo
from otel_gpuflame.events.wire import Kind
from otel_gpuflame.profile import labels
from otel_gpuflame.profile.known_devices import KnownDevices
from otel_gpuflame.profile.model import AttributeSet
from otel_gpuflame.profile.retention import Retention

UNKNOWN_TARGET: Final[AttributeSet] = (("service.name", "unknown_service"),)
NOBODY: Final = 0xFFFFFFFF
"""Id of no process: of what is not known to be anyone's."""

_NO_PROCESS: Final = ProcessKey(0, 0)
_TGID_SHIFT, _KIND_SHIFT = np.uint64(32), np.uint64(24)
_BELOW_TGID, _BYTE = np.uint64(0xFFFFFFFF), np.uint64(0xFF)


class Known:
    """Processes and kernels by small numbers that keep their meaning, whatever becomes of pids and handles."""

    def __init__(self) -> None:
        self.devices = KnownDevices()
        self._stacks: dict[StackKey, Stack] = {}
        self._stack_keys: dict[ProcessKey, set[StackKey]] = {}
        self._names: dict[int, HandleName] = {}
        self._name_count = 0
        self._name_ids: dict[ProcessKey, RecentHandles[int]] = {}
        """By the handles that have them now."""
        self._name_retention: Retention[int] = Retention()
        self._processes: dict[ProcessKey, int] = {}
        self._process_count = 0
        self._retention: Retention[ProcessKey] = Retention()
        self._stack_retention: Retention[StackKey] = Retention()
        self._resources: dict[ProcessKey, AttributeSet] = {}
        self._former: dict[ProcessKey, dict[int, AttributeSet]] = {}
        """Of programs that their process has replaced by another one, by the id that their calls have."""

    def add_stacks(self, stacks: Iterable[Stack]) -> None:
        """Stacks, some of which may have been forgotten before."""
        for stack in stacks:
            self._stack_keys.setdefault(stack.process, set()).add(stack.key)
            self._stacks[stack.key] = stack
            if stack.key in self._stack_retention:
                self._stack_retention.lives(stack.key)

    def add_pairs(self, pairs: Iterable[StackPair]) -> None:
        """Stacks put together of two: what becomes of these no longer matters."""
        for pair in pairs:
            outer, inner = (self._frames(key) for key in (pair.outer, pair.inner))
            between = (labels.call_frame(pair.api), labels.CAPTURED_AT)
            self._stacks[pair.key] = Stack(pair.key, pair.process, (*outer, *between, *inner))
            self._stack_keys.setdefault(pair.process, set()).add(pair.key)

    def _frames(self, key: StackKey) -> tuple[Frame, ...]:
        stack = self._stacks.get(key)
        if stack is not None:
            return stack.frames
        return (labels.NO_STACK if any(key) else labels.NO_STACK_TAKEN,)

    def add_names(self, names: Iterable[HandleName], stratum: int) -> None:
        """From now on handles mean these. `stratum`: the last one that has been opened, counted from 1."""
        for name in names:
            ids = self._name_ids.setdefault(name.process, RecentHandles())
            before = ids.get(name.handle)
            if before is not None:
                known = self._names[before]
                if (known.name, known.readable) == (name.name, name.readable):
                    continue
                self._name_retention.ended((before,), stratum)
            self._name_count += 1
            characters = len(name.name) + len(name.readable)
            gone = ids.put(name.handle, self._name_count, characters)
            self._name_retention.ended(gone, stratum)
            self._names[self._name_count] = name

    def add_targets(self, targets: Iterable[TargetInfo]) -> None:
        """Processes, or the programs that they have become."""
        for target in targets:
            if target.process in self._retention:
                self._replace(target.process)
            self._resources[target.process] = target.attributes

    def end(self, processes: Iterable[ProcessKey], stratum: int) -> None:
        """No more will come of these. `stratum`: the last one that has been opened, counted from 1."""
        self._retention.ended(processes, stratum)

    def end_stacks(self, keys: Iterable[StackKey], stratum: int) -> None:
        """These come again before they are used again."""
        self._stack_retention.ended(keys, stratum)

    def closed(self, windows: int, oldest: int) -> None:
        """So many windows have closed, and all strata before `oldest`: forget what no open one can refer to."""
        for name_id in self._name_retention.closed(windows, oldest):
            del self._names[name_id]
        self._forget(self._retention.closed(windows, oldest))
        self._forget_stacks(self._stack_retention.closed(windows, oldest))

    def stack(self, key: StackKey) -> Stack | None:
        """A stack that has come and is not forgotten."""
        return self._stacks.get(key)

    def name(self, name_id: int) -> HandleName | None:
        """What `resolve` put in place of a handle.

        None for 0, and for one that has been forgotten: a call of a time that has not come yet keeps its window open
        for longer than its process is known.
        """
        return self._names.get(name_id)

    def resources(self) -> dict[int, AttributeSet]:
        """Of all processes, by id."""
        resources = {
            process_id: self._resources.get(process, UNKNOWN_TARGET)
            for process, process_id in self._processes.items()
        }
        for former in self._former.values():
            resources |= former
        return resources

    def process_id(self, process: ProcessKey) -> int:
        """The number of the program that the process runs now."""
        if process == _NO_PROCESS:
            return NOBODY
        found = self._processes.get(process)
        if found is None:
            found = self._processes[process] = self._process_count
            self._process_count += 1
        return found

    def resolve(self, groups: Groups) -> Groups:
        """Replace process and handle by what they mean now: a handle may mean another kernel later.

        Keys begin with tgid << 32 | kind << 24 | …, start of the process, handle; they come back one column shorter,
        beginning with process id << 32 | kind << 24 | …, id of the name or 0. A DRIVER's third column is kept: a
        command of a device driver means the same whenever and wherever it is given.

        Done once for each distinct (process, handle): small batches have nearly as many groups as calls.
        """
        keys = groups.keys
        meanings = keys[:, :3].copy(order="K")
        meanings[:, 0] >>= _TGID_SHIFT
        order, starts = runs(meanings)
        process_ids = np.empty(len(starts), np.uint64)
        name_ids = np.empty(len(starts), np.uint64)
        for run, (tgid, start_ns, handle) in enumerate(meanings[order[starts]].tolist()):
            process = ProcessKey(tgid, start_ns)
            process_ids[run] = self.process_id(process)
            name_ids[run] = self._name_id(process, handle)
        lengths = np.diff(np.append(starts, len(keys)))
        resolved = np.empty((keys.shape[1] - 1, len(keys)), np.uint64).T
        resolved[order, 0] = np.repeat(process_ids << _TGID_SHIFT, lengths)
        resolved[order, 1] = np.repeat(name_ids, lengths)
        resolved[:, 0] |= keys[:, 0] & _BELOW_TGID
        is_command = keys[:, 0] >> _KIND_SHIFT & _BYTE == Kind.DRIVER
        resolved[is_command, 1] = keys[is_command, 2]
        resolved[:, 2:] = keys[:, 3:]
        return Groups(resolved, groups.sums)

    def _name_id(self, process: ProcessKey, handle: int) -> int:
        ids = self._name_ids.get(process) if handle else None
        return 0 if ids is None else ids.get(handle) or 0

    def _replace(self, process: ProcessKey) -> None:
        """The process executed another program: calls until now belong to the one before."""
        self._retention.lives(process)
        process_id = self._processes.pop(process, None)
        if process_id is not None:
            former = self._resources.get(process, UNKNOWN_TARGET)
            self._former.setdefault(process, {})[process_id] = former

    def _forget(self, processes: Sequence[ProcessKey]) -> None:
        if not processes:
            return
        for process in processes:
            self._resources.pop(process, None)
            self._processes.pop(process, None)
            self._former.pop(process, None)
            for key in self._stack_keys.pop(process, ()):
                self._stacks.pop(key, None)
            # Those that its handles had before have gone by now: they were replaced before it ended.
            ids = self._name_ids.pop(process, None)
            for name_id in () if ids is None else ids.values():
                del self._names[name_id]

    def _forget_stacks(self, keys: Sequence[StackKey]) -> None:
        for key in keys:
            stack = self._stacks.pop(key, None)
            if stack is not None and stack.process in self._stack_keys:
                self._stack_keys[stack.process].discard(key)
