# SPDX-License-Identifier: Apache-2.0
"""Target program: backward passes beside and inside each other, each kernel of which is launched once.

The truth names for each kernel the Python frames and the span on whose behalf it was launched: those of the thread
that called `backward`, with those of a hook that launches or calls `backward` itself on top.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from otel_gpuflame.instrument import install
from tests.fakes import app_common
from tests.fakes.cuda_driver import FakeCuda
from tests.fakes.torch_engine import CPU, FakeEngine, Node

DEVICES = 2
MAX_DEPTH = 3
"""Of passes in one thread; deeper ones are given to another."""
DEEPEST = 5
THREADS = 3
MAX_FRAMES = 128
"""That a stack has room for."""
Frames = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Cause:
    """On whose behalf something runs: Python frames, root first, and the id of a span or nothing."""

    frames: Frames
    span: str


def own_frames(frame: FrameType | None) -> Frames:
    """(file, line) of the frames down to the one that runs the innermost hook."""
    found = []
    while frame is not None:
        found.append((os.path.basename(frame.f_code.co_filename), frame.f_lineno))
        frame = None if frame.f_code is FakeEngine._run_hook.__code__ else frame.f_back
    return tuple(reversed(found))


def own_span() -> str:
    """Id of the span that is current in this thread; empty without one."""
    context = trace.get_current_span().get_span_context()
    return trace.format_span_id(context.span_id) if context.is_valid else ""


NOBODY = Cause((), "")


class Program:
    """Random passes, reproducible for each thread but for how the threads meet."""

    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda = cuda
        self.truth: dict[str, Cause] = {}
        self.tasks: list[int] = []
        self.failed = 0
        self.nested = 0
        self.errors: list[str] = []
        self.tracer = trace.get_tracer(__name__)
        self.engine = FakeEngine(
            cuda.context, devices=DEVICES, max_depth=MAX_DEPTH, new_thread=keep_thread_state
        )

    def kernel(self, label: str) -> str:
        """A new kernel's name."""
        return f"{label}_{threading.get_ident()}_{len(self.truth)}_{random.getrandbits(48)}"

    def launch(self, outer: Cause, label: str) -> None:
        """Launch a kernel from Python."""
        name = self.kernel(label)
        function = ctypes.c_void_p(self.cuda.function(name))
        launch = self.cuda._cuda.cuLaunchKernel
        # fmt: off
        code = launch(function, 1, 1, 1, 32, 1, 1, 0, None, None, self.note([name], outer, sys._getframe()))
        # fmt: on
        assert code == 0

    def note(self, names: list[str], outer: Cause, frame: FrameType) -> None:
        """Kernels are launched from `frame`, on behalf of `outer`."""
        whose = Cause(outer.frames + own_frames(frame), outer.span)
        for name in names:
            self.truth[name] = whose

    def backward(self, rng: random.Random, depth: int, outer: Cause) -> None:
        """A pass on behalf of `outer`, with its hooks, which may call this again."""
        ours: list[Cause] = []
        names = [self.kernel("node") for _ in range(rng.randint(2, 5))]
        fails_at = rng.randrange(len(names)) if rng.random() < 0.15 else len(names)
        after_last = self.kernel("after")
        nodes = [
            Node(
                function=self.cuda.function(name),
                device=rng.choice((CPU, 0, 0, 1)),
                hook=self.hook(rng, depth, ours),
                throws=index == fails_at,
            )
            for index, name in enumerate(names)
        ]
        launched = names[: fails_at + 1] if fails_at < len(names) else [*names, after_last]
        last = self.cuda.function(after_last)
        # fmt: off
        ended = self.engine.backward(nodes, last, self.begin(ours, launched, outer, sys._getframe()))
        # fmt: on
        assert ended.failed == (fails_at < len(names))
        self.tasks.append(ended.task)
        self.failed += ended.failed
        self.nested += depth > 0

    def begin(
        self, ours: list[Cause], names: list[str], outer: Cause, frame: FrameType
    ) -> Callable[[FrameType], None]:
        """What is to be done when the call into the engine is made."""
        caller = own_frames(frame)

        def note(inside: FrameType) -> None:
            complete = (*outer.frames, *caller, own_frames(inside)[-1])
            ours.append(Cause(complete, outer.span))
            self.truth.update(dict.fromkeys(names, ours[0]))

        return note

    def hook(
        self, rng: random.Random, depth: int, ours: list[Cause]
    ) -> functools.partial[None] | None:
        """What a node does after its launch; None: nothing."""
        if rng.random() < 0.5:
            return None
        own = random.Random(rng.getrandbits(64))
        return functools.partial(self.run_hook, own, depth, ours)

    def run_hook(self, rng: random.Random, depth: int, ours: list[Cause]) -> None:
        """Runs in the thread of the node's device, on behalf of the pass."""
        try:
            with self.span("hook", ours[0], wanted=rng.random() < 0.3) as outer:
                self.launch(outer, "hook_before")
                if depth < DEEPEST and rng.random() < 0.6:
                    self.backward(rng, depth + 1, outer)
                    launch = functools.partial(self.launch, outer, "hook_after")
                    levels = rng.randrange(40)
                    # Now and then from further down than a stack has room for.
                    descend(levels if levels < 37 else MAX_FRAMES + levels, launch)
        except BaseException as error:
            self.errors.append(repr(error))

    @contextlib.contextmanager
    def span(self, name: str, outer: Cause, *, wanted: bool) -> Iterator[Cause]:
        """A span, or none: what runs in it is on behalf of what is given."""
        if not wanted:
            yield outer
            return
        with self.tracer.start_as_current_span(name):
            yield Cause(outer.frames, own_span())

    def train(self, seed: int, rounds: int, together: threading.Barrier) -> None:
        """Steps with a forward and a backward half."""
        self.cuda.bind_thread()
        rng = random.Random(seed)
        try:
            for number in range(rounds):
                together.wait()
                with self.span(f"step {number}", NOBODY, wanted=number % 4 != 0) as step:
                    descend(rng.randrange(40), functools.partial(self.launch, step, "forward"))
                    self.backward(rng, 0, step)
                    descend(rng.randrange(40), functools.partial(self.launch, step, "optimizer"))
                self.launch(NOBODY, "outside")
        except BaseException as error:
            self.errors.append(repr(error))
            together.abort()

    def told(self) -> dict[str, object]:
        """The truth of everything up to now."""
        chains = {chain: n for n, chain in enumerate({c.frames for c in self.truth.values()})}
        return {
            "pid": os.getpid(),
            "errors": self.errors,
            "passes": len(self.tasks),
            "distinct_tasks": len(set(self.tasks)),
            "failed": self.failed,
            "nested": self.nested,
            "chains": [chain[-MAX_FRAMES:] for chain in chains],
            "kernels": {name: [chains[c.frames], c.span] for name, c in self.truth.items()},
        }


def descend(depth: int, then: Callable[[], None]) -> None:
    """Call something from so many Python frames further down, and through as many C functions."""
    if depth:
        list(map(descend, (depth - 1,), (then,)))
    else:
        then()


def keep_thread_state() -> None:
    """A thread of the engine has a Python thread state as long as it lives, as PyTorch's have."""
    ctypes.pythonapi.PyGILState_Ensure()


def main() -> None:
    """Train in several threads at once, then tell whose each kernel was."""
    parser = app_common.parser(__doc__ or "")
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    trace.set_tracer_provider(TracerProvider())
    publishes = install()
    program = Program(FakeCuda())
    together = threading.Barrier(THREADS)
    app_common.hold(options)
    while True:
        threads = [
            threading.Thread(target=program.train, args=(seed, options.rounds, together))
            for seed in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if not app_common.emit({"publishes": publishes, **program.told()}):
            return


if __name__ == "__main__":
    app_common.run(main)
