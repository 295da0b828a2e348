"""Which resource attributes a target may have, and what their values may be."""

from __future__ import annotations

import re
from typing import Final

Attributes = tuple[tuple[str, str | int], ...]
"""Sorted by key; keys are unique."""

MAX_VALUE_BYTES: Final = 1024

# Everything else that a target says of itself stays out: backends make a time series of each distinct set.
PUBLISHED_KEYS: Final = frozenset(
    {
        "service.name",
        "service.namespace",
        "service.version",
        "service.instance.id",
        "deployment.environment.name",
        "container.id",
        "k8s.namespace.name",
        "k8s.pod.name",
        "k8s.pod.uid",
        "k8s.container.name",
        "telemetry.sdk.name",
        "telemetry.sdk.language",
        "telemetry.sdk.version",
    }
)
_FORMER_KEYS: Final = {"deployment.environment": "deployment.environment.name"}
_UNPRINTABLE: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def bounded(value: str) -> str:
    """At most MAX_VALUE_BYTES of UTF-8, cut between characters, without control characters or outer blanks."""
    text = _UNPRINTABLE.sub("\ufffd", value.strip())
    return text.encode()[:MAX_VALUE_BYTES].decode("utf-8", "ignore")


def published(values: dict[str, str]) -> dict[str, str]:
    """Those of a target's own attributes that are on the list, bounded; empty values count as unset."""
    kept = {}
    for key, value in values.items():
        current = _FORMER_KEYS.get(key, key)
        is_replaced = current != key and values.get(current)
        if current in PUBLISHED_KEYS and not is_replaced and bounded(value):
            kept[current] = bounded(value)
    return kept
