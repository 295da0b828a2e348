# SPDX-License-Identifier: Apache-2.0
"""Typed ctypes binding of the fake autograd engine (tests/fakes/torch/engine.cpp)."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType

LIBRARY = "libtorch_cpu.so"
CPU = -1
"""The device of nodes that run in the thread that called `backward`."""

_Hook = ctypes.CFUNCTYPE(None, ctypes.c_uint64)


class _Node(ctypes.Structure):
    _fields_ = [
        ("device", ctypes.c_int32),
        ("throws", ctypes.c_int32),
        ("function", ctypes.c_void_p),
        ("hook", _Hook),
        ("tag", ctypes.c_uint64),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Launches `function` on `device`, then calls `hook`, then perhaps fails."""

    function: int
    device: int
    hook: Callable[[], None] | None = None
    throws: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """A pass is over: the address that its task had, and whether a node has failed."""

    task: int
    failed: bool


class FakeEngine:
    """The engine of this process, with a thread for each device, bound to a context of the fake driver.

    A pass that is begun `max_depth` passes deep in one thread is given to another one. `new_thread` is called in each
    new thread.
    """

    def __init__(
        self, context: int, *, devices: int, max_depth: int, new_thread: Callable[[], None]
    ) -> None:
        self._library = ctypes.CDLL(LIBRARY)
        self._library.fake_torch_backward.restype = ctypes.c_uint64
        self._hooks: list[Callable[[], None]] = [new_thread]
        self._call_hook = _Hook(self._run_hook)
        self._library.fake_torch_start(
            devices, max_depth, ctypes.c_void_p(context), self._call_hook
        )

    def backward(
        self, nodes: Sequence[Node], after_last: int, calling: Callable[[FrameType], None]
    ) -> Ended:
        """Run the nodes one after the other, each in the thread of its device, then launch `after_last`.

        `calling` gets the frame that calls the engine, on the line where it does.
        """
        array = (_Node * len(nodes))(*map(self._node, nodes))
        count, after, failed = (
            ctypes.c_uint64(len(nodes)),
            ctypes.c_void_p(after_last),
            ctypes.c_int(),
        )
        run = self._library.fake_torch_backward
        # fmt: off
        task = run(array, count, after, ctypes.byref(failed), calling(sys._getframe()))
        # fmt: on
        return Ended(task, bool(failed.value))

    def _node(self, node: Node) -> _Node:
        tag = 0
        if node.hook is not None:
            # Appending is atomic, finding the position of what was appended is not.
            self._hooks.append(node.hook)
            tag = self._hooks.index(node.hook)
        hook = self._call_hook if node.hook is not None else _Hook()
        return _Node(node.device, node.throws, node.function, hook, tag)

    def _run_hook(self, tag: int) -> None:
        self._hooks[tag]()
