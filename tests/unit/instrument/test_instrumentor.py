"""What `opentelemetry-instrument` starts: spans, marks and the resource, in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Tracer

from otel_gpuflame.capture.describe.process_context import _fields, read_process_context
from otel_gpuflame.instrument.instrumentor import GpuflameInstrumentor
from otel_gpuflame.instrument.process_context import is_published, process_context

ROOT = Path(__file__).resolve().parents[3]
PROC = Path("/proc")
PROGRAM = """
import os, sys
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from otel_gpuflame import instrument

def provide(name):
    provider = TracerProvider(resource=Resource({"service.name": name}), shutdown_on_exit=False)
    trace.set_tracer_provider(provider)

def span():
    with trace.get_tracer("test").start_as_current_span("request") as span:
        return span

def step(text):
    print(text, flush=True)
    sys.stdin.readline()
"""


class App:
    """A program that goes on with each line it gets."""

    def __init__(self, code: str, library_path: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM + code],
            env={
                "PATH": "/usr/bin:/bin",
                "PYTHONPATH": ":".join([str(ROOT), *filter(None, sys.path)]),
                "OTEL_GPUFLAME_CONTEXT_LIB": str(library_path),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def read(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        assert line, "the program has ended"
        return line

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> None:
        self.go()
        self.process.communicate(timeout=600)
        assert self.process.returncode == 0


def service(pid: int) -> str | None:
    """The service name that the agent reads from the process."""
    return read_process_context(pid, PROC).get("service.name")


def test_one_call_is_enough(library_path: Path) -> None:
    """The resource of the SDK is published, and roots are marked once each, by one processor."""
    code = """
provide("first")
instrumentor = instrument.GpuflameInstrumentor()
assert instrumentor.instrument(skip_dep_check=True)
assert instrument.GpuflameInstrumentor().instrument()
root = span()
assert root.attributes["pyroscope.profile.id"] == f"{root.context.span_id:016x}"
processors = trace.get_tracer_provider()._active_span_processor._span_processors
assert len(processors) == 1
step(os.getpid())
"""
    app = App(code, library_path)
    assert service(int(app.read())) == "first"
    app.end()


def test_an_sdk_that_is_set_up_later_is_found_by_its_first_span(library_path: Path) -> None:
    """`install()` may come first: names of the thread's attributes at once, the resource when known."""
    code = """
assert instrument.install()
step(os.getpid())
provide("late")
root = span()
assert root.attributes["pyroscope.profile.id"] == f"{root.context.span_id:016x}"
step("set up")
provide("ignored")
span()
step("again")
"""
    app = App(code, library_path)
    pid = int(app.read())
    assert is_published(PROC / str(pid) / "maps")
    assert service(pid) is None
    for said in ("set up", "again"):
        app.go()
        assert app.read() == said
        assert service(pid) == "late"
    app.end()


def test_a_forked_child_publishes_for_itself(library_path: Path) -> None:
    """The mapping is not inherited; parent and child have one each."""
    code = """
provide("forking")
assert instrument.GpuflameInstrumentor().instrument()
if os.fork() == 0:
    step(os.getpid())
    os._exit(0)
os.wait()
step(os.getpid())
"""
    app = App(code, library_path)
    child = int(app.read())
    assert service(child) == "forking"
    app.go()
    parent = int(app.read())
    assert parent != child
    assert service(parent) == "forking"
    app.end()


def test_the_context_of_another_publisher_is_left_alone(library_path: Path) -> None:
    """There is one for a process: whoever was first has it, in its children too."""
    code = """
import mmap
file = os.memfd_create("OTEL_CTX")
os.ftruncate(file, 4096)
theirs = mmap.mmap(file, 4096, flags=mmap.MAP_PRIVATE)
provide("ours")
assert instrument.GpuflameInstrumentor().instrument()
span()
assert theirs[:] == bytes(4096)
step(open("/proc/self/maps").read().count("OTEL_CTX"))
"""
    app = App(code, library_path)
    assert int(app.read()) == 1
    app.end()


@pytest.mark.parametrize(
    "value",
    ["text", "", "ü" * 200, True, 0, -1, 1 << 40, 2.5, ("a", "b"), (1, 2), ("a",) * 100],
)
def test_values_are_encoded_as_the_protocol_has_them(value: Any) -> None:
    """Against the messages of the protocol's own package."""
    (resource,) = _fields(process_context({"key": value}), 1)
    (attribute,) = _fields(resource, 1)
    decoded = KeyValue.FromString(attribute)
    assert decoded.key == "key"
    assert plain(decoded.value) == value


def plain(value: AnyValue) -> object:
    """A value of the protocol as Python has it."""
    kind = value.WhichOneof("value")
    assert kind is not None
    if kind == "array_value":
        return tuple(plain(item) for item in value.array_value.values)
    return getattr(value, kind)


def test_values_that_the_protocol_lacks_are_left_empty() -> None:
    """A resource may hold anything; what cannot be said is not said."""
    (resource,) = _fields(process_context({"key": object()}), 1)
    (attribute,) = _fields(resource, 1)
    assert KeyValue.FromString(attribute).value.WhichOneof("value") is None


def test_readers_of_threads_find_the_names_of_attributes() -> None:
    """OTEP 4947: a version of the layout, and by index what the attributes of a record are called."""
    attributes = [KeyValue.FromString(each) for each in _fields(process_context({}), 2)]
    assert {each.key: plain(each.value) for each in attributes} == {
        "threadlocal.schema_version": "tlsdesc_v1_dev",
        "threadlocal.attribute_key_map": ("local_root_span_id",),
    }


def test_without_an_sdk_it_installs_all_the_same(reader: Any, tracer: Tracer) -> None:
    """The API's own provider makes no spans; others may be made current later."""
    assert GpuflameInstrumentor().instrument()
    assert GpuflameInstrumentor().instrumentation_dependencies() == ()
    with tracer.start_as_current_span("span"):
        assert reader.span_id() is not None
    GpuflameInstrumentor().uninstrument()
    with tracer.start_as_current_span("span"):
        assert reader.span_id() is None


def test_a_provider_that_is_named_gets_the_processor(reader: Any, provider: TracerProvider) -> None:
    """As with other instrumentors; a second call adds nothing."""
    for _ in range(2):
        assert GpuflameInstrumentor().instrument(tracer_provider=provider)
    assert len(provider._active_span_processor._span_processors) == 1
    with provider.get_tracer("test").start_as_current_span("root") as root:
        assert reader.span_id() == root.get_span_context().span_id
