"""Installing, not being able to, and stopping."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.context.contextvars_context import ContextVarsRuntimeContext
from opentelemetry.trace import Tracer

from otel_gpuflame import instrument
from otel_gpuflame.instrument import _library
from otel_gpuflame.instrument.hook import INSTALLATION

ROOT = Path(__file__).resolve().parents[3]
Warnings = Callable[[], list[str]]


def span_id(span: trace.Span) -> int:
    """The span's id as the API has it, an integer."""
    return span.get_span_context().span_id


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs `code` in a fresh interpreter."""
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.usefixtures("fresh_installation")
@pytest.mark.parametrize("content", [None, b"not a library"])
def test_without_the_library_the_application_works(
    content: bytes | None,
    tmp_path: Path,
    tracer: Tracer,
    warnings_logged: Warnings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """install() says no with one warning that names file and remedy, and touches nothing."""
    path = tmp_path / "libogf_context.so"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv("OTEL_GPUFLAME_CONTEXT_LIB", str(path))
    attach = ContextVarsRuntimeContext.attach
    assert instrument.install() is False
    assert instrument.install() is False
    (warning,) = warnings_logged()
    assert str(path) in warning
    assert "OTEL_GPUFLAME_CONTEXT_LIB" in warning
    assert ContextVarsRuntimeContext.attach is attach
    with tracer.start_as_current_span("span") as span:
        assert trace.get_current_span() is span
    instrument.uninstall()


@pytest.mark.usefixtures("fresh_installation")
def test_a_library_without_our_functions_is_refused(
    warnings_logged: Warnings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any other shared library is as good as none."""
    monkeypatch.setenv("OTEL_GPUFLAME_CONTEXT_LIB", "libc.so.6")
    assert instrument.install() is False
    (warning,) = warnings_logged()
    assert "ogf_context_clear" in warning


def test_the_library_of_the_package_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the variable the library that the wheel ships is used."""
    monkeypatch.delenv("OTEL_GPUFLAME_CONTEXT_LIB", raising=False)
    expected = ROOT / "otel_gpuflame" / "_artifacts" / "libogf_context.so"
    assert _library.library_path() == expected


def test_a_second_install_adds_nothing(reader: Any, tracer: Tracer) -> None:
    """The hook is there once, whoever installs again."""
    attach = ContextVarsRuntimeContext.attach
    assert instrument.install()
    assert ContextVarsRuntimeContext.attach is attach
    with tracer.start_as_current_span("span") as span:
        assert reader.span_id() == span_id(span)
    assert reader.span_id() is None


def test_a_span_from_before_the_install_is_not_restored(
    library_path: Path,
    fresh_installation: None,
    tracer: Tracer,
    request: pytest.FixtureRequest,
) -> None:
    """A late install starts with the next span and leaves nothing behind."""
    token = context.attach(trace.set_span_in_context(tracer.start_span("early"), Context()))
    reader = request.getfixturevalue("reader")
    assert reader.span_id() is None
    with tracer.start_as_current_span("late") as late:
        assert reader.span_id() == span_id(late)
    assert reader.span_id() is None
    context.detach(token)
    assert reader.span_id() is None


def test_uninstall_clears_and_stops(
    reader: Any, tracer: Tracer, run_in_thread: Callable[[Callable[[], None]], None]
) -> None:
    """The calling thread publishes nothing at once, a thread inside of a span after it."""

    def work() -> None:
        with tracer.start_as_current_span("span"):
            assert reader.span_id() is not None
            INSTALLATION.publisher.enabled = False  # type: ignore[union-attr]
        assert reader.span_id() is None

    run_in_thread(work)
    assert instrument.install()
    with tracer.start_as_current_span("outer"):
        instrument.uninstall()
        assert reader.span_id() is None
        with tracer.start_as_current_span("inner"):
            assert reader.span_id() is None
    assert reader.span_id() is None


def test_install_after_uninstall_publishes_again(reader: Any, tracer: Tracer) -> None:
    """Publication can be switched off and on."""
    instrument.uninstall()
    assert instrument.install()
    with tracer.start_as_current_span("span") as span:
        assert reader.span_id() == span_id(span)


def test_an_error_of_ours_never_reaches_the_application(
    reader: Any, tracer: Tracer, warnings_logged: Warnings
) -> None:
    """A span class that misbehaves costs its own publication and one warning."""

    class Broken(trace.NonRecordingSpan):
        def get_span_context(self) -> trace.SpanContext:
            raise RuntimeError("broken span")

    with tracer.start_as_current_span("outer") as outer:
        for _ in range(2):
            with trace.use_span(Broken(trace.INVALID_SPAN_CONTEXT)):
                assert reader.span_id() is None
        assert reader.span_id() == span_id(outer)
    (warning,) = warnings_logged()
    assert "broken span" in warning


def test_an_interrupt_leaves_no_span_behind(reader: Any, tracer: Tracer) -> None:
    """KeyboardInterrupt in the middle of a switch passes, and the record is cleared."""

    class Interrupting(trace.NonRecordingSpan):
        def get_span_context(self) -> trace.SpanContext:
            raise KeyboardInterrupt

    with tracer.start_as_current_span("outer") as outer:
        attached = trace.set_span_in_context(Interrupting(trace.INVALID_SPAN_CONTEXT))
        with pytest.raises(KeyboardInterrupt):
            context.attach(attached)
        assert reader.span_id() is None
        with tracer.start_as_current_span("inner", context=Context()) as inner:
            assert reader.span_id() == span_id(inner)
        assert reader.span_id() is None
    assert trace.get_current_span() is not outer
    assert reader.span_id() is None


def test_another_context_implementation_is_refused(library_path: Path) -> None:
    """Where OTEL_PYTHON_CONTEXT selects something else we cannot see attaches, and say so."""
    code = """
import opentelemetry.context as api

class Other:
    current = api.Context()
    def attach(self, context):
        return None
    def get_current(self):
        return self.current
    def detach(self, token):
        pass

api._RUNTIME_CONTEXT = Other()
from otel_gpuflame import instrument
print(instrument.install(), instrument.install())
"""
    done = run_python(code, OTEL_GPUFLAME_CONTEXT_LIB=str(library_path))
    assert done.stdout == "False False\n"
    assert done.stderr.count("OTEL_PYTHON_CONTEXT") == 1


def test_importing_loads_nothing_heavy() -> None:
    """The package goes into application images: no numpy, gRPC, protobuf, SDK or agent module."""
    code = """
import sys
import otel_gpuflame.instrument
ours = {name for name in sys.modules if name.startswith("otel_gpuflame")}
print(sorted(name for name in ours if not name.startswith("otel_gpuflame.instrument")))
heavy = ("numpy", "grpc", "google.protobuf", "opentelemetry.sdk", "click", "elftools")
print([name for name in heavy if name in sys.modules])
"""
    done = run_python(code)
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["['otel_gpuflame', 'otel_gpuflame.errors']", "[]"]
