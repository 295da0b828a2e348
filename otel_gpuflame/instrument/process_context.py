# SPDX-License-Identifier: Apache-2.0
"""Publishes the application's OpenTelemetry resource where profilers look for it (OTEP 4719).

With it goes what readers of the threads' records need (OTEP 4947): the names of their attributes.
Written by hand, since the application need not have protobuf.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

from opentelemetry.trace import Span

from otel_gpuflame.instrument._library import NativeContextLibrary

_logger = logging.getLogger(__name__)

_PUBLISHED = re.compile(
    rb"^\S+ r[w-]-[ps] .*(?:\[anon_shmem:OTEL_CTX|\[anon:OTEL_CTX|/memfd:OTEL_CTX)", re.MULTILINE
)
# Of the record's layout; and by index what its attributes are called (`OGF_ATTR_...` in context.h).
_THREAD_ATTRIBUTES = {
    "threadlocal.schema_version": "tlsdesc_v1_dev",
    "threadlocal.attribute_key_map": ("local_root_span_id",),
}

# Field numbers of ProcessContext, Resource, KeyValue, AnyValue and ArrayValue.
_RESOURCE, _ATTRIBUTES = 1, 2
_KEY, _VALUE = 1, 2
_STRING, _BOOL, _INT, _DOUBLE, _ARRAY = 1, 2, 3, 4, 5
_REPEATED = 1


class ProcessContext:
    """The context of this process. Errors are logged once and never reach the application."""

    def __init__(self, library: NativeContextLibrary) -> None:
        self._library = library
        self._payload: bytes | None = None
        self._resource_known = False
        self._is_ours = not is_published()
        if self._is_ours:
            # A child has none of its own until it publishes.
            os.register_at_fork(after_in_child=self._publish)

    def describe(self, resource: object) -> None:
        """Publishes the attributes of an SDK's resource, and the names of the thread's attributes.

        Without a resource, those names alone. Does nothing beside another publisher.
        """
        if not self._is_ours:
            return
        attributes = _attributes(resource)
        self._resource_known = attributes is not None
        self._payload = process_context(attributes or {})
        self._publish()

    def describe_by(self, span: Span) -> bool:
        """Publishes the resource of a span of the SDK, if that is not known yet.

        Returns:
            Whether no other span need be asked.
        """
        resource = getattr(span, "resource", None)
        if not self._resource_known and _attributes(resource) is not None:
            self.describe(resource)
        return self._resource_known or not self._is_ours

    def _publish(self) -> None:
        if self._payload is None:
            return
        status = self._library.publish_process(self._payload, len(self._payload))
        if status != 0:
            self._payload = None
            name = errno.errorcode.get(-status, str(-status))
            _logger.warning("the resource is not published to profilers: %s", name)


def _attributes(resource: object) -> Mapping[str, object] | None:
    attributes = getattr(resource, "attributes", None)
    return attributes if isinstance(attributes, Mapping) else None


def is_published(maps: Path = Path("/proc/self/maps")) -> bool:
    """Whether this process has a context already, ours or another library's."""
    try:
        return _PUBLISHED.search(maps.read_bytes()) is not None
    except OSError:
        return False


def process_context(resource: Mapping[str, object]) -> bytes:
    """A serialised ProcessContext. Values of other types than OpenTelemetry's are left out."""
    attributes = b"".join(_field(_ATTRIBUTES, _key_value(*i)) for i in _THREAD_ATTRIBUTES.items())
    values = b"".join(_field(_REPEATED, _key_value(*item)) for item in resource.items())
    return _field(_RESOURCE, values) + attributes


def _key_value(key: str, value: object) -> bytes:
    return _field(_KEY, key.encode(errors="replace")) + _field(_VALUE, _any_value(value))


def _any_value(value: object) -> bytes:
    """Empty, which is a value that is not set, for what OpenTelemetry does not have."""
    if isinstance(value, str):
        return _field(_STRING, value.encode(errors="replace"))
    if isinstance(value, bool):
        return _tag(_BOOL, 0) + _varint(value)
    if isinstance(value, int):
        return _tag(_INT, 0) + _varint(value & 0xFFFF_FFFF_FFFF_FFFF)
    if isinstance(value, float):
        return _tag(_DOUBLE, 1) + struct.pack("<d", value)
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return _field(_ARRAY, b"".join(_field(_REPEATED, _any_value(item)) for item in value))
    return b""


def _field(number: int, content: bytes) -> bytes:
    return _tag(number, 2) + _varint(len(content)) + content


def _tag(number: int, wire_type: int) -> bytes:
    return _varint(number << 3 | wire_type)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
