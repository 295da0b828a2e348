# SPDX-License-Identifier: Apache-2.0
"""What queries select by: labels, profile type, spans. Nothing is guessed from a selector that is malformed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from tests.fakes.pyroscope.limits import invalid
from tests.fakes.pyroscope.store import ProfileType

_MATCHER: Final = re.compile(
    r'\s*(?P<name>[A-Za-z_][A-Za-z0-9_]*|"(?:[^"\\]|\\.)*")'
    r'\s*(?P<operator>=~|!~|!=|=)\s*(?P<value>"(?:[^"\\]|\\.)*")\s*'
)
_OPERATORS: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "=": lambda have, want: have == want,
    "!=": lambda have, want: have != want,
    "=~": lambda have, want: re.fullmatch(want, have) is not None,
    "!~": lambda have, want: re.fullmatch(want, have) is None,
}
_HEX: Final = re.compile(r"[0-9a-f]*")


class Matcher(NamedTuple):
    """One condition on a label; a missing label is an empty one."""

    name: str
    operator: str
    value: str

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether a series with `labels` is selected."""
        return _OPERATORS[self.operator](labels.get(self.name, ""), self.value)


def label_matchers(selector: str) -> tuple[Matcher, ...]:
    """The conditions of `{a="b", "dotted.name"=~"c.*"}`; a dotted name must be quoted."""
    text = selector.strip()
    if not (text.startswith("{") and text.endswith("}")):
        raise invalid(f"label selector {selector!r} is not of the form {{...}}")
    inner, position, found = text[1:-1], 0, []
    while inner[position:].strip():
        match = _MATCHER.match(inner, position)
        if match is None:
            raise invalid(f"label selector {selector!r}: no matcher at {inner[position:]!r}")
        found.append(Matcher(_unquoted(match["name"]), match["operator"], _value(match)))
        position = match.end()
        if position < len(inner):
            if inner[position] != ",":
                raise invalid(f"label selector {selector!r}: no comma at {inner[position:]!r}")
            position += 1
    return tuple(found)


def profile_type(text: str) -> ProfileType:
    """The parts of a profile type id."""
    parts = text.split(":")
    if len(parts) != len(ProfileType._fields):
        raise invalid(
            f"profile-type selection must be of the form "
            f"<name>:<sample-type>:<sample-unit>:<period-type>:<period-unit>, got {text!r}"
        )
    return ProfileType(*parts)


def ids(selector: Sequence[str], *, digits: int, what: str) -> frozenset[str]:
    """Span or trace ids of `digits` hexadecimal digits."""
    for item in selector:
        if len(item) != digits:
            raise invalid(f"invalid {what} id length: {json.dumps(item)}")
        if not _HEX.fullmatch(item.lower()):
            raise invalid(f"invalid {what} id: {json.dumps(item)}")
    return frozenset(item.lower() for item in selector)


def _value(match: re.Match[str]) -> str:
    value = _unquoted(match["value"])
    if match["operator"] in ("=~", "!~"):
        try:
            re.compile(value)
        except re.error as error:
            raise invalid(f"label selector: {value!r} is no regular expression: {error}") from error
    return value


def _unquoted(text: str) -> str:
    if not text.startswith('"'):
        return text
    try:
        return str(json.loads(text))
    except ValueError as error:
        raise invalid(f"label selector: {text} is no string: {error}") from error
