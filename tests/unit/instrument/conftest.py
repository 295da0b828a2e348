"""Builds the context library once, and undoes an installation after each test."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import shutil
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from typing import TypeVar

import pytest
from opentelemetry import context
from opentelemetry.context.contextvars_context import ContextVarsRuntimeContext
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Tracer

from otel_gpuflame import instrument
from otel_gpuflame.instrument.hook import INSTALLATION

ROOT = Path(__file__).resolve().parents[3]
NATIVE = ROOT / "otel_gpuflame" / "native"
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A record as a reader outside of the process decodes it."""

    trace_id: bytes
    span_id: bytes
    trace_flags: int
    attributes: dict[int, bytes]

    @property
    def local_root(self) -> str:
        return self.attributes[0].decode()


class Reader:
    """Reads the calling thread's record, and the bytes of OTEP 4947 in it."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.PyDLL(str(path))

    def raw(self) -> bytes | None:
        buffer = ctypes.create_string_buffer(64)
        return buffer.raw if self._library.ogf_context_get(buffer) == 0 else None

    def read(self) -> Published | None:
        raw = self.raw()
        if raw is None:
            return None
        trace_id, span_id, valid, flags, size = struct.unpack_from("=16s8sBBH", raw)
        if valid != 1:
            return None
        attributes, data = {}, raw[28 : 28 + size]
        while data:
            attributes[data[0]] = data[2 : 2 + data[1]]
            data = data[2 + data[1] :]
        return Published(
            trace_id=trace_id, span_id=span_id, trace_flags=flags, attributes=attributes
        )

    def span_id(self) -> int | None:
        published = self.read()
        return None if published is None else int.from_bytes(published.span_id, "big")

    def set(self, trace_id: bytes, span_id: bytes, local_root: bytes | None, flags: int) -> int:
        return int(self._library.ogf_context_set(trace_id, span_id, local_root, flags))

    def clear(self) -> None:
        self._library.ogf_context_clear()


@pytest.fixture(scope="session")
def library_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library as `make` builds it with the default compiler."""
    if shutil.which("make") is None:
        pytest.fail("make and a C compiler are needed: apt-get install build-essential")
    out = tmp_path_factory.mktemp("context")
    subprocess.run(["make", "-s", "-C", str(NATIVE), f"OUT={out}"], check=True)
    return out / "libogf_context.so"


def _clear_watchers() -> None:
    """From CPython 3.14 on each installation takes one of eight watchers for good, as there is but one in a process."""
    clear = getattr(ctypes.pythonapi, "PyContext_ClearWatcher", None)
    for watcher in range(8) if clear is not None else ():
        with contextlib.suppress(ValueError):  # not in use
            clear(watcher)


@pytest.fixture
def fresh_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation that never happened, whose traces are removed after the test.

    The test starts without a current span, whatever another one left behind.
    """
    context.attach(context.Context())
    _clear_watchers()
    for owner, name in (
        (ContextVarsRuntimeContext, "attach"),
        (ContextVarsRuntimeContext, "detach"),
        (ExtensionFileLoader, "create_module"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    for name, value in vars(type(INSTALLATION)()).items():
        monkeypatch.setattr(INSTALLATION, name, value)


@pytest.fixture
def reader(
    library_path: Path, fresh_installation: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Reader]:
    """Publication is on; the fixture reads what the calling thread publishes."""
    monkeypatch.setenv("OTEL_GPUFLAME_CONTEXT_LIB", str(library_path))
    assert instrument.install()
    yield Reader(library_path)
    instrument.uninstall()


@pytest.fixture
def provider() -> TracerProvider:
    """An SDK without processors."""
    return TracerProvider(shutdown_on_exit=False)


@pytest.fixture
def tracer(provider: TracerProvider) -> Tracer:
    """Makes recording, sampled spans."""
    return provider.get_tracer("test")


@pytest.fixture
def warnings_logged(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The warnings that our package logged so far."""
    caplog.set_level(logging.WARNING)

    def messages() -> list[str]:
        return [
            record.getMessage()
            for record in caplog.records
            if record.name.startswith("otel_gpuflame")
        ]

    return messages


def in_thread(work: Callable[[], T]) -> T:
    """Runs `work` in a thread of its own; returns or raises what it does."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


@pytest.fixture
def run_in_thread() -> Callable[[Callable[[], T]], T]:
    """`in_thread`, for tests that live in other modules."""
    return in_thread
