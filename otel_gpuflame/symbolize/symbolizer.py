"""Raw stacks → resolved stacks, for all captured processes. Used by one thread."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from otel_gpuflame.events.frames import Frame, ProcessKey, Stack
from otel_gpuflame.events.wire import PythonState
from otel_gpuflame.symbolize.cpython.code import UNREADABLE
from otel_gpuflame.symbolize.demangle import Demangler
from otel_gpuflame.symbolize.elf_files import ElfFiles
from otel_gpuflame.symbolize.process import ProcessView
from otel_gpuflame.symbolize.raw import RawStack
from otel_gpuflame.symbolize.stacks import Parts, join

MAX_PROCESSES = 256
"""Each holds a descriptor; the least recently used one is forgotten and read again when needed."""


@dataclass(frozen=True, slots=True)
class _Draft:
    """A stack of which all has been read that only a living process can tell."""

    raw: RawStack
    view: ProcessView
    python: list[Frame]
    owner_frames: int
    runs: list[int]
    """How many of the thread's own each run of the interpreter's loop has."""
    interpreter: tuple[str, int, str] | None
    refusal: str


class Symbolizer:
    """Never raises for what it finds in a target: frames that cannot be resolved are marks, and
    counted.
    """

    def __init__(self, proc: Path = Path("/proc"), files: ElfFiles | None = None) -> None:
        self._proc = proc
        self._files = files or ElfFiles()
        self._demangler = Demangler()
        self._views: OrderedDict[ProcessKey, ProcessView] = OrderedDict()
        self._counts: Counter[str] = Counter()

    def resolve(self, raw: RawStack) -> Stack:
        """The stack, root first."""
        return self._finish(self._read(raw))

    def resolve_all(self, raws: Iterable[RawStack]) -> list[Stack]:
        """Stacks that came together; of all of them first what is lost when their process ends.

        Those of calls come before those of samples, of which a busy host has a hundred a second, and which a program
        that ends after its first launch has too. Symbol tables, which take up to 0.1 s each, can wait.
        """
        urgent_first = sorted(raws, key=lambda raw: raw.leaf_is_instruction)
        return [self._finish(draft) for draft in [self._read(raw) for raw in urgent_first]]

    def prepare(self, process: ProcessKey) -> None:
        """Read the mappings and find the interpreter of a process that will soon have stacks."""
        self._view(process).update()

    def _read(self, raw: RawStack) -> _Draft:
        view = self._view(raw.process)
        view.update()
        own_count = len(raw.python) - raw.owner_frames
        python: list[Frame] = []
        runs: list[int] = []
        for position, each in enumerate(raw.python[:own_count]):
            frame = view.python_frame(*each)
            if frame is not None:
                python.append(frame)
            if position in raw.called_by_c:
                runs.append(len(python) - sum(runs))
        of_owner = [
            frame
            for each in raw.python[own_count:]
            if (frame := view.python_frame(*each)) is not None
        ]
        view.open_files(raw.native)
        return _Draft(
            raw, view, python + of_owner, len(of_owner), runs, view.interpreter, view.refusal
        )

    def _finish(self, draft: _Draft) -> Stack:
        raw, python = draft.raw, draft.python
        native = draft.view.native_stack(
            raw.native,
            leaf_is_instruction=raw.leaf_is_instruction,
            instructions=raw.instructions,
        )
        frames = join(
            Parts(
                python=python,
                native=native,
                python_state=raw.python_state,
                native_state=raw.native_state,
                interpreter=draft.interpreter,
                refusal=draft.refusal,
                owner_frames=draft.owner_frames,
                runs=draft.runs,
            )
        )
        self._count(python, len(native.frames), cut=native.cut)
        self._counts["python_stacks_unreadable"] += raw.python_state == PythonState.NOT_FOUND
        return Stack(raw.key, raw.process, frames)

    def refresh(self, process: ProcessKey) -> None:
        """The mappings have changed: exec or dlopen. After exec everything known about the process
        is dropped.
        """
        view = self._views.get(process)
        if view is None:
            return
        if view.same_address_space():
            view.refresh()
        else:
            self.forget(process)

    def forget(self, process: ProcessKey) -> None:
        """The process has ended, or is no longer captured."""
        view = self._views.pop(process, None)
        if view is not None:
            view.close()

    def counters(self) -> dict[str, int]:
        """Running totals since the start."""
        return {
            "stacks": self._counts["stacks"],
            "python_frames": self._counts["python_frames"],
            "python_frames_unreadable": self._counts["python_frames_unreadable"],
            "python_stacks_unreadable": self._counts["python_stacks_unreadable"],
            "native_frames": self._counts["native_frames"],
            "native_stacks_cut": self._counts["native_stacks_cut"],
            "processes_unreadable": self._counts["processes_unreadable"],
            "elf_files_unreadable": self._files.unreadable,
        }

    def _view(self, process: ProcessKey) -> ProcessView:
        view = self._views.get(process)
        if view is None:
            view = ProcessView(process, self._proc, self._files, self._demangler)
            self._counts["processes_unreadable"] += not view.readable
            self._views[process] = view
            if len(self._views) > MAX_PROCESSES:
                self._views.popitem(last=False)[1].close()
        self._views.move_to_end(process)
        return view

    def _count(self, python: list[Frame], native: int, *, cut: bool) -> None:
        unreadable = sum(frame is UNREADABLE for frame in python)
        self._counts["stacks"] += 1
        self._counts["python_frames"] += len(python) - unreadable
        self._counts["python_frames_unreadable"] += unreadable
        self._counts["native_frames"] += native
        self._counts["native_stacks_cut"] += cut
