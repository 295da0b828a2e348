# SPDX-License-Identifier: Apache-2.0
"""The query API as Grafana uses it: Connect over HTTP with JSON bodies.

Answers look like protobuf's JSON: 64-bit numbers are strings, and what is zero or empty is left out. Unlike
Pyroscope, which ignores what it does not know, a field that is not in the API is an error: a client with a
spelling mistake would otherwise be answered about something else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from tests.fakes.pyroscope.flamegraph import FlameGraph, flame_graph
from tests.fakes.pyroscope.limits import Limits, RefusedError, invalid
from tests.fakes.pyroscope.selectors import ids, label_matchers, profile_type
from tests.fakes.pyroscope.store import Store, StoredProfile, StoredSample

Fields: TypeAlias = Mapping[str, Any]
Json: TypeAlias = dict[str, Any]

SERVICE: Final = "/querier.v1.QuerierService/"
_NS_PER_MS: Final = 1_000_000

_SHAPES: Final[Mapping[str, Mapping[str, type]]] = {
    "SelectMergeStacktraces": {
        "profileTypeID": str,
        "labelSelector": str,
        "start": int,
        "end": int,
        "maxNodes": int,
        "spanSelector": list,
        "traceIdSelector": list,
    },
    "ProfileTypes": {"start": int, "end": int},
    "LabelValues": {"name": str, "matchers": list, "start": int, "end": int},
}
_PROTO_NAMES: Final[Mapping[str, str]] = {
    "profile_typeID": "profileTypeID",
    "label_selector": "labelSelector",
    "max_nodes": "maxNodes",
    "span_selector": "spanSelector",
    "trace_id_selector": "traceIdSelector",
}


class QueryApi:
    """Answers queries about `store`."""

    def __init__(self, store: Store, limits: Limits) -> None:
        self._store = store
        self._limits = limits
        self._methods: Mapping[str, Callable[[Fields], Json]] = {
            "SelectMergeStacktraces": self._stacktraces,
            "ProfileTypes": self._profile_types,
            "LabelValues": self._label_values,
        }

    def answer(self, method: str, body: bytes) -> tuple[int, Json]:
        """HTTP status and JSON body for one call; 404 for a method that does not exist."""
        if method not in self._methods:
            return 404, {"code": "unimplemented", "message": f"no method {method!r}"}
        try:
            return 200, self._methods[method](_fields(body, _SHAPES[method]))
        except RefusedError as error:
            refusal = error.refusal
            return refusal.http_status, {"code": refusal.connect_code, "message": str(error)}

    def _stacktraces(self, fields: Fields) -> Json:
        wanted = profile_type(fields.get("profileTypeID", ""))
        spans = ids(fields.get("spanSelector", ()), digits=16, what="span")
        traces = ids(fields.get("traceIdSelector", ()), digits=32, what="trace")

        def selected(sample: StoredSample) -> bool:
            return (not spans or sample.span_id in spans) and (
                not traces or sample.trace_id in traces
            )

        stacks = [
            (sample.stack, sample.value)
            for profile in self._matching([fields.get("labelSelector", "")], _range(fields))
            if profile.profile_type == wanted
            for sample in profile.samples
            if selected(sample)
        ]
        if not stacks:
            return {"flamegraph": {}}
        max_nodes = fields.get("maxNodes") or self._limits.max_flame_graph_nodes
        return {"flamegraph": _flame_graph_json(flame_graph(stacks, max_nodes))}

    def _profile_types(self, fields: Fields) -> Json:
        times = _range(fields) if fields else None
        found = sorted({profile.profile_type for profile in self._matching((), times)})
        types = [
            {
                "ID": kind.id,
                "name": kind.name,
                "sampleType": kind.sample_type,
                "sampleUnit": kind.sample_unit,
                "periodType": kind.period_type,
                "periodUnit": kind.period_unit,
            }
            for kind in found
        ]
        return {"profileTypes": types} if types else {}

    def _label_values(self, fields: Fields) -> Json:
        name = fields.get("name", "")
        if not name:
            raise invalid("name: a label name is needed")
        times = _range(fields) if "start" in fields or "end" in fields else None
        profiles = self._matching(fields.get("matchers", ()), times)
        names = sorted({profile.labels[name] for profile in profiles if name in profile.labels})
        return {"names": names} if names else {}

    def _matching(
        self, selectors: Sequence[str], times_ms: tuple[int, int] | None
    ) -> list[StoredProfile]:
        matchers = [matcher for text in selectors for matcher in label_matchers(text)]
        return [
            profile
            for profile in self._store.all()
            if (times_ms is None or _in_range(profile.time_unix_ns, times_ms))
            and all(matcher.matches(profile.labels) for matcher in matchers)
        ]


def _in_range(time_unix_ns: int, times_ms: tuple[int, int]) -> bool:
    start_ms, end_ms = times_ms
    return start_ms <= time_unix_ns // _NS_PER_MS <= end_ms


def _range(fields: Fields) -> tuple[int, int]:
    start_ms, end_ms = fields.get("start", 0), fields.get("end", 0)
    if not 0 < start_ms < end_ms:
        raise invalid(f"start {start_ms} and end {end_ms} are no range of milliseconds")
    return start_ms, end_ms


def _fields(body: bytes, shape: Mapping[str, type]) -> Fields:
    try:
        raw: Any = json.loads(body)
    except ValueError as error:
        raise invalid(f"the body is no JSON: {error}") from error
    if not isinstance(raw, dict):
        raise invalid("the body is no JSON object")
    return {
        (name := _PROTO_NAMES.get(key, key)): _typed(name, value, shape)
        for key, value in raw.items()
    }


def _typed(key: str, value: Any, shape: Mapping[str, type]) -> Any:
    if key not in shape:
        raise invalid(f"unknown field {key!r}; there are: {', '.join(shape)}")
    wanted = shape[key]
    # Protobuf's JSON writes a 64-bit number as a string, and reads either.
    if wanted is int and isinstance(value, str) and value.lstrip("-").isdigit():
        return int(value)
    if not isinstance(value, wanted) or isinstance(value, bool):
        raise invalid(f"{key}: {value!r} is not of type {wanted.__name__}")
    if isinstance(value, list) and not all(isinstance(item, str) for item in value):
        raise invalid(f"{key}: {value!r} is not a list of strings")
    return value


def _flame_graph_json(graph: FlameGraph) -> Json:
    fields: Json = {
        "names": list(graph.names),
        "levels": [{"values": [str(number) for number in level]} for level in graph.levels],
        "total": str(graph.total) if graph.total else "",
        "maxSelf": str(graph.max_self) if graph.max_self else "",
    }
    return {key: value for key, value in fields.items() if value}
