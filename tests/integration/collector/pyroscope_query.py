# SPDX-License-Identifier: Apache-2.0
"""Asks Pyroscope's query API as Grafana does, and reads its flame graphs back into stacks."""

from __future__ import annotations

import http.client
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

PROVISIONED = (
    Path(__file__).parents[3]
    / "collector-config"
    / "grafana"
    / "provisioning"
    / "datasources"
    / "otel-gpuflame.yaml"
)
SHOWN_MARGIN_MS, OPENED_MARGIN_MS = 30_000, 60_000
"""Around a span, in the query of the flame graph inside of it, and of its button "Profiles for this span"."""
_DEFAULT_TAGS = (
    {"key": "service.name", "value": "service_name"},
    {"key": "service.namespace", "value": "service_namespace"},
)


def ask(url: str, method: str, fields: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
    """HTTP status and body of one call."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=300)
    try:
        connection.request(
            "POST",
            f"/querier.v1.QuerierService/{method}",
            json.dumps(fields).encode(),
            {"Content-Type": "application/json"},
        )
        response = connection.getresponse()
        answer: dict[str, Any] = json.loads(response.read())
        return response.status, answer
    finally:
        connection.close()


def flame_graph(url: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The flame graph of a query that must succeed."""
    status, answer = ask(url, "SelectMergeStacktraces", fields)
    assert status == 200, answer
    graph: dict[str, Any] = answer["flamegraph"]
    return graph


def stacks(graph: Mapping[str, Any]) -> Counter[tuple[str, ...]]:
    """Own value of each stack, root first, from the levels of a flame graph.

    A bar of a level lies on the bar of the level below that covers its begin.
    """
    names: Sequence[str] = graph.get("names", ())
    found: Counter[tuple[str, ...]] = Counter()
    below: list[tuple[int, int, tuple[str, ...]]] = []
    for level in graph.get("levels", ()):
        numbers = [int(number) for number in level["values"]]
        bars, end = [], 0
        for at in range(0, len(numbers), 4):
            offset, total, own, name = numbers[at : at + 4]
            begin = end + offset
            end = begin + total
            stack = (*_stack_at(begin, below), names[name]) if below else ()
            bars.append((begin, end, stack))
            found[stack] += own
        below = bars
    return +found


def _stack_at(begin: int, bars: Sequence[tuple[int, int, tuple[str, ...]]]) -> tuple[str, ...]:
    return next(stack for first, last, stack in bars if first <= begin < last)


def span_query(
    span: Mapping[str, str],
    *,
    start_ms: int,
    end_ms: int,
    margin_ms: int = SHOWN_MARGIN_MS,
    provisioned: Path = PROVISIONED,
) -> dict[str, Any]:
    """What Grafana 13 asks when one opens the profile of a span: made from our provisioning and nothing else.

    `span` has the attributes of its resource, and then its own, as the trace store has them. A profile is found by its
    begin, so that it is out of reach if its window began longer than the margin before the span.
    """
    tempo = data_source("tempo", provisioned)
    settings = tempo["jsonData"]["tracesToProfiles"]
    wanted = {tag["key"]: tag for tag in settings.get("tags") or _DEFAULT_TAGS}
    # Grafana leaves out what the span does not have, and writes keys without a label as they are.
    tags = ", ".join(
        f'{wanted[key].get("value") or key}="{value}"'
        for key, value in span.items()
        if key in wanted
    )
    has_query = settings.get("customQuery") and settings.get("query")
    # `$$` is how a provisioning file writes a dollar sign.
    query = settings["query"].replace("$$", "$") if has_query else "{${__tags}}"
    return {
        "profileTypeID": settings["profileTypeId"],
        "labelSelector": query.replace("${__tags}", tags),
        "spanSelector": [span["pyroscope.profile.id"]],
        "start": start_ms - margin_ms,
        "end": end_ms + margin_ms,
    }


def data_source(kind: str, provisioned: Path = PROVISIONED) -> dict[str, Any]:
    """The one provisioned data source of a type."""
    sources = yaml.safe_load(provisioned.read_text())["datasources"]
    (found,) = [source for source in sources if source["type"] == kind]
    return dict(found)
