"""Reads what a writer made from the specification publishes, and survives writers that lie."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_gpuflame.capture.describe import describe, publishes_itself
from otel_gpuflame.capture.describe.process_context import (
    NO_KEY,
    local_root_key,
    read_local_root_key,
    read_process_context,
    resource_attributes,
)

PROC = Path("/proc")
SOURCE = Path(__file__).with_name("context_writer.c")


def length_delimited(field: int, content: bytes) -> bytes:
    """One field of a protobuf message."""
    size, prefix = len(content), bytearray()
    while size >= 0x80:
        prefix.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([field << 3 | 2, *prefix, size]) + content


def payload(**attributes: str) -> bytes:
    """A ProcessContext with a resource; dots are written as underscores, twice."""
    resource = Resource()
    for name, value in attributes.items():
        attribute = resource.attributes.add(key=name.replace("__", "."))
        attribute.value.string_value = value
    return length_delimited(1, resource.SerializeToString())


FIRST = payload(service__name="first", service__version="1", team="x")
SECOND = payload(service__name="second" * 100, service__version="2")
FIRST_ATTRIBUTES = {"service.name": "first", "service.version": "1"}
SECOND_ATTRIBUTES = {"service.name": "second" * 100, "service.version": "2"}


class Writer:
    """A running `context_writer.c`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pid = process.pid
        self._answer()

    def read(self, proc: Path = PROC) -> dict[str, str]:
        """What the product reads of it."""
        return read_process_context(self.pid, proc)

    def tell(self, command: str) -> str:
        """Give a command; the answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> str:
        assert self.process.stdout is not None
        answer = self.process.stdout.readline().strip()
        assert answer, "the writer has ended"
        return answer


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled writer."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler is not None, "a C compiler is needed: apt-get install gcc"
    path = tmp_path_factory.mktemp("writer") / "context_writer"
    subprocess.run([compiler, "-std=gnu11", "-O2", "-o", path, SOURCE], check=True)
    return path


@pytest.fixture
def start(program: Path) -> Iterator[Callable[..., Writer]]:
    """Starts writers, and ends them."""
    with contextlib.ExitStack() as stack:

        def start_one(*payloads: bytes, **variables: str) -> Writer:
            process = subprocess.Popen(
                [program, *(each.hex() for each in payloads)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=variables,
                text=True,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return Writer(process)

        yield start_one


def test_a_published_resource_is_read(start: Callable[..., Writer]) -> None:
    """Attributes of the closed list, without preparation by the process."""
    assert start(FIRST).read() == FIRST_ATTRIBUTES


def test_updates_are_seen(start: Callable[..., Writer]) -> None:
    """A process may set up its SDK late, and more than once."""
    writer = start(FIRST, SECOND)
    writer.tell("publish 1")
    assert writer.read() == SECOND_ATTRIBUTES
    writer.tell("publish 0")
    assert writer.read() == FIRST_ATTRIBUTES


def test_an_update_under_way_is_not_read(start: Callable[..., Writer]) -> None:
    """Until the time of publication is back nothing is to be trusted."""
    writer = start(FIRST)
    writer.tell("updating")
    assert writer.read() == {}
    writer.tell("publish 0")
    assert writer.read() == FIRST_ATTRIBUTES


def test_a_read_during_updates_is_never_mixed(start: Callable[..., Writer]) -> None:
    """Against a writer that replaces its payload all the time, each read is one of the two or nothing."""
    # As long as is allowed, and equally long, so that a read is slow and a mixed one is not broken.
    payloads = [
        payload(service__name=each, team="x" * 60_000, service__version=each) for each in "ab"
    ]
    writer = start(*payloads)
    assert writer.tell("race") == "racing"
    seen = [writer.read() for _ in range(300)]
    writer.tell("")
    whole = [{"service.name": each, "service.version": each} for each in "ab"]
    assert all(each in ({}, *whole) for each in seen)
    assert writer.read() in whole


def test_a_forked_child_has_none(start: Callable[..., Writer]) -> None:
    """It publishes its own when it is ready; its parent's is not inherited."""
    writer = start(FIRST)
    child = int(writer.tell("fork"))
    assert read_process_context(child, PROC) == {}
    assert not publishes_itself(child)
    assert publishes_itself(writer.pid)


def test_the_process_itself_knows_best(start: Callable[..., Writer]) -> None:
    """What it publishes wins over its environment; what it does not say comes from there."""
    variables = {
        "OTEL_SERVICE_NAME": "from environment",
        "OTEL_RESOURCE_ATTRIBUTES": "service.version=0,service.namespace=shop",
    }
    writer = start(FIRST, **variables)
    found = dict(describe(writer.pid) or ())
    assert found["service.name"] == "first"
    assert found["service.version"] == "1"
    assert found["service.namespace"] == "shop"
    assert found["process.executable.name"] == "context_writer"


@pytest.mark.parametrize(
    "name", ["/memfd:OTEL_CTX (deleted)", "[anon:OTEL_CTX]", "[anon_shmem:OTEL_CTX]"]
)
def test_the_mapping_is_found_by_each_of_its_names(
    name: str, start: Callable[..., Writer], tmp_path: Path
) -> None:
    """Kernels differ in whether mappings can be named; the memfd has its name everywhere."""
    writer = start(FIRST)
    assert writer.read(renamed(writer, tmp_path, name)) == FIRST_ATTRIBUTES


@pytest.mark.parametrize(
    "name", ["/tmp/OTEL_CTX", "/memfd:other", "[anon:other]", "/x [anon:OTEL_CTX]"]
)
def test_other_mappings_are_not_read(
    name: str, start: Callable[..., Writer], tmp_path: Path
) -> None:
    """A file may be called anything."""
    writer = start(FIRST)
    assert writer.read(renamed(writer, tmp_path, name)) == {}


def renamed(writer: Writer, tmp_path: Path, name: str) -> Path:
    """A /proc in which the writer's mapping has another name."""
    directory = tmp_path / str(writer.pid)
    directory.mkdir()
    text = (PROC / str(writer.pid) / "maps").read_text()
    assert text.count("/memfd:OTEL_CTX (deleted)") == 1
    (directory / "maps").write_text(text.replace("/memfd:OTEL_CTX (deleted)", name))
    os.symlink(PROC / str(writer.pid) / "mem", directory / "mem")
    return tmp_path


SIGNATURE, VERSION, SIZE, PAYLOAD_LOW, PAYLOAD_HIGH = 0, 8, 12, 24, 28


@pytest.mark.parametrize(
    ("offset", "value"),
    [
        pytest.param(SIGNATURE, 0, id="another signature"),
        pytest.param(VERSION, 1, id="an older version"),
        pytest.param(VERSION, 3, id="a newer version"),
        pytest.param(SIZE, 0, id="no payload"),
        pytest.param(SIZE, 65_537, id="more than a reader takes"),
        pytest.param(SIZE, 2**32 - 1, id="4 GiB"),
        pytest.param(SIZE, 20, id="cut payload"),
        pytest.param(PAYLOAD_LOW, 0, id="payload elsewhere"),
        pytest.param(PAYLOAD_HIGH, 2**32 - 1, id="payload in the kernel"),
    ],
)
def test_headers_that_lie_are_refused(
    offset: int, value: int, start: Callable[..., Writer]
) -> None:
    """Nothing is read, nothing is raised."""
    writer = start(FIRST)
    writer.tell(f"poke {offset} {value}")
    assert writer.read() == {}


def test_a_process_without_a_context_has_none() -> None:
    """As nearly all processes."""
    assert read_process_context(os.getpid(), PROC) == {}


def test_a_process_that_is_gone_has_none(tmp_path: Path) -> None:
    """Nothing is raised."""
    assert read_process_context(1, tmp_path) == {}


def test_other_fields_of_the_message_are_skipped() -> None:
    """Attributes of the thread context, and what later versions may add."""
    key_map = length_delimited(2, b"anything, it is not read")
    numbers = b"\x18\x96\x01" + b"\x21" + bytes(8) + b"\x2d" + bytes(4)
    assert resource_attributes(key_map + numbers + FIRST) == FIRST_ATTRIBUTES


def test_a_resource_in_parts_is_put_together() -> None:
    """As protobuf merges a field that comes twice."""
    parts = payload(service__name="a") + payload(service__version="1")
    assert resource_attributes(parts) == {"service.name": "a", "service.version": "1"}


def test_values_of_other_types_are_left_out() -> None:
    """The attributes of the list are all text."""
    resource = Resource()
    resource.attributes.add(key="service.name").value.int_value = 7
    assert resource_attributes(length_delimited(1, resource.SerializeToString())) == {}


def key_map(*names: str, field: int = 2, key: str = "threadlocal.attribute_key_map") -> bytes:
    """A ProcessContext that names the attributes of threads' records."""
    attribute = KeyValue(key=key)
    for name in names:
        attribute.value.array_value.values.add().string_value = name
    if field == 1:
        return length_delimited(1, Resource(attributes=[attribute]).SerializeToString())
    return length_delimited(field, attribute.SerializeToString())


@pytest.mark.parametrize(
    ("published", "key"),
    [
        (key_map("local_root_span_id"), 0),
        (key_map("http.route", "local_root_span_id"), 1),
        (key_map("http.route", "datadog.local_root_span_id"), 1),
        (key_map("a", "local_root_span_id", field=1), 1),
        (key_map("http.route"), NO_KEY),
        (key_map(), NO_KEY),
        (key_map(*["a"] * 255, "local_root_span_id"), NO_KEY),
        (FIRST + key_map("a", "b", "local_root_span_id"), 2),
        (FIRST, 0),
        (key_map("a", key="other"), 0),
        (b"", 0),
        (key_map("a")[:-1], 0),
    ],
)
def test_which_attribute_is_the_local_root(published: bytes, key: int) -> None:
    """By its name, wherever that stands; by where all put it, if no names are published."""
    assert local_root_key(published) == key


def test_names_are_read_from_the_process(start: Callable[..., Writer]) -> None:
    """As the resource is, beside it; a process without a context has none."""
    writer = start(FIRST + key_map("http.route", "local_root_span_id"))
    assert read_local_root_key(writer.pid, PROC) == 1
    assert writer.read() == FIRST_ATTRIBUTES
    assert read_local_root_key(os.getpid(), PROC) == 0


@given(st.binary(max_size=200))
def test_any_bytes_are_read_without_an_error(data: bytes) -> None:
    """The payload is whatever the process wrote."""
    assert isinstance(resource_attributes(data), dict)
    assert 0 <= local_root_key(data) <= NO_KEY


@given(st.integers(0, len(FIRST)), st.integers(0, 255))
def test_damaged_payloads_are_read_without_an_error(position: int, byte: int) -> None:
    """One byte changed, or the end cut off."""
    damaged = FIRST[:position] + bytes([byte]) + FIRST[position + 1 :]
    assert isinstance(resource_attributes(damaged), dict)
    assert isinstance(resource_attributes(FIRST[:position]), dict)
