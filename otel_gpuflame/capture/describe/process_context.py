"""The resource that a process publishes of itself, in the OpenTelemetry process context (OTEP 4719).

The publisher writes while we read, and may be hostile: a header that changes during the read, sizes that lie and bytes
that are no protobuf all mean that there is nothing to read.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_gpuflame.capture.describe.attributes import published
from otel_gpuflame.symbolize.maps import MAX_MAPS_BYTES
from otel_gpuflame.symbolize.memory import ProcessMemory

# Signature, version, payload's size in bytes, time of publication in ns (0: being written), payload's address.
_HEADER: Final = struct.Struct("=8sIIQQ")
_SIGNATURE: Final = b"OTEL_CTX"
_VERSION: Final = 2
_MAX_PAYLOAD_BYTES: Final = 1 << 16
_ATTEMPTS: Final = 3
# A process has one context. More are none of ours, and the kernel allows 65,530 mappings.
_MAX_MAPPINGS: Final = 8
# Named by prctl where the kernel can, else by the memfd. Never executable.
_MAPPING: Final = re.compile(
    rb"^([0-9a-f]{1,16})-[0-9a-f]{1,16} r[w-]-[ps] [0-9a-f]+ [0-9a-f]+:[0-9a-f]+ [0-9]+ +"
    rb"(?:\[anon_shmem:OTEL_CTX|\[anon:OTEL_CTX|/memfd:OTEL_CTX)",
    re.MULTILINE,
)
_RESOURCE_FIELD, _ATTRIBUTES_FIELD = 1, 2
LOCAL_ROOT_KEY: Final = 0
"""Writers that we know put it first."""
NO_KEY: Final = 255
_KEY_MAP: Final = "threadlocal.attribute_key_map"
_LOCAL_ROOTS: Final = ("local_root_span_id", "datadog.local_root_span_id")
_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES: Final = {_FIXED64: 8, _FIXED32: 4}
_MAX_VARINT_BYTES: Final = 10


def read_process_context(pid: int, proc: Path) -> dict[str, str]:
    """Resource attributes by key; empty where the process publishes none, is gone, or must not be read."""
    payload = _payload(pid, proc)
    return {} if payload is None else resource_attributes(payload)


def read_local_root_key(pid: int, proc: Path) -> int:
    """Which attribute of the threads' records is the local root's span id, by what the process publishes.

    LOCAL_ROOT_KEY where it publishes no names of attributes; NO_KEY where it names others only.
    """
    payload = _payload(pid, proc)
    return LOCAL_ROOT_KEY if payload is None else local_root_key(payload)


def local_root_key(payload: bytes) -> int:
    """The same of a serialised ProcessContext."""
    try:
        attributes = [KeyValue.FromString(each) for each in _fields(payload, _ATTRIBUTES_FIELD)]
        # Some early writers have the names among the resource's attributes.
        attributes += list(_resource(payload).attributes)
    except (DecodeError, ValueError):
        return LOCAL_ROOT_KEY
    for attribute in attributes:
        if attribute.key == _KEY_MAP:
            names = [each.string_value for each in attribute.value.array_value.values[:NO_KEY]]
            return next((i for i, name in enumerate(names) if name in _LOCAL_ROOTS), NO_KEY)
    return LOCAL_ROOT_KEY


def resource_attributes(payload: bytes) -> dict[str, str]:
    """Text attributes of the resource in a serialised ProcessContext; empty where it is none."""
    try:
        resource = _resource(payload)
    except (DecodeError, ValueError):
        return {}
    return published(
        {
            attribute.key: attribute.value.string_value
            for attribute in resource.attributes
            if attribute.value.HasField("string_value")
        }
    )


def _resource(payload: bytes) -> Resource:
    """Raises DecodeError or ValueError where there is none."""
    resource = Resource()
    for part in _fields(payload, _RESOURCE_FIELD):
        resource.MergeFromString(part)
    return resource


def _payload(pid: int, proc: Path) -> bytes | None:
    addresses = _addresses(pid, proc)
    if not addresses:
        return None
    memory = ProcessMemory(pid, proc)
    try:
        payloads = (_read_payload(memory, address) for address in addresses)
        return next((each for each in payloads if each is not None), None)
    finally:
        memory.close()


def _addresses(pid: int, proc: Path) -> list[int]:
    try:
        with (proc / str(pid) / "maps").open("rb") as file:
            text = file.read(MAX_MAPS_BYTES)
    except OSError:
        return []
    return [int(match[1], 16) for match in islice(_MAPPING.finditer(text), _MAX_MAPPINGS)]


def _read_payload(memory: ProcessMemory, address: int) -> bytes | None:
    for _ in range(_ATTEMPTS):
        header = memory.read(address, _HEADER.size)
        if header is None:
            return None
        signature, version, size_bytes, published_ns, payload_address = _HEADER.unpack(header)
        if signature != _SIGNATURE or version != _VERSION:
            return None
        if not published_ns or not 0 < size_bytes <= _MAX_PAYLOAD_BYTES:
            continue
        payload = memory.read(payload_address, size_bytes)
        if payload is not None and memory.read(address, _HEADER.size) == header:
            return payload
    return None


def _fields(message: bytes, number: int) -> Iterator[bytes]:
    """Contents of the length-delimited fields called `number`. Raises ValueError where it is no message.

    By hand, because published packages of the OpenTelemetry protocol do not have this message yet.
    """
    position = 0
    while position < len(message):
        tag, position = _varint(message, position)
        if tag & 7 == _VARINT:
            _, position = _varint(message, position)
            continue
        if tag & 7 == _LENGTH_DELIMITED:
            length, position = _varint(message, position)
        elif tag & 7 in _FIXED_BYTES:
            length = _FIXED_BYTES[tag & 7]
        else:
            raise ValueError("unknown wire type")
        if position + length > len(message):
            raise ValueError("cut")
        if tag & 7 == _LENGTH_DELIMITED and tag >> 3 == number:
            yield message[position : position + length]
        position += length


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """The number, and the position behind it."""
    value = 0
    for index, byte in enumerate(message[position : position + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, position + index + 1
    raise ValueError("cut")
