# SPDX-License-Identifier: Apache-2.0
"""The Pyroscope double answers queries right, and refuses those that are malformed. Needs no Collector."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.pyroscope.double import PyroscopeDouble
from tests.fakes.pyroscope.flamegraph import flame_graph as make_flame_graph
from tests.integration.collector.example_request import (
    SPAN_ID,
    START_UNIX_NS,
    TRACE_ID,
    profiles_request,
)
from tests.integration.collector.otlp_client import export_grpc
from tests.integration.collector.pyroscope_query import (
    OPENED_MARGIN_MS,
    PROVISIONED,
    SHOWN_MARGIN_MS,
    ask,
    flame_graph,
    span_query,
    stacks,
)

WAIT_ID = "gpu:gpu_wait:nanoseconds:gpu:nanoseconds"
LAUNCH_ID = "gpu:gpu_launch:count:gpu:nanoseconds"
START_MS = START_UNIX_NS // 1_000_000
KERNEL = "saxpy<float>(float*, float*)"
WAIT_STACK = ("main", "step", "loss_item", "cuStreamSynchronize", KERNEL)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A double with the example request of two services in it."""
    with PyroscopeDouble(unix_ns=lambda: START_UNIX_NS) as pyroscope:
        export_grpc(pyroscope.grpc_endpoint, profiles_request())
        export_grpc(pyroscope.grpc_endpoint, profiles_request(service_name="cart"))
        yield pyroscope.http_endpoint


def query(**changes: Any) -> dict[str, Any]:
    """A query for the waits of `checkout`."""
    fields = {
        "profileTypeID": WAIT_ID,
        "labelSelector": '{service_name="checkout"}',
        "start": START_MS - 1000,
        "end": START_MS + 1000,
    }
    return {**fields, **changes}


def test_stacks_are_merged_by_function_name(url: str) -> None:
    """Levels, names and totals give back each stack with its own value."""
    graph = flame_graph(url, query())
    assert stacks(graph) == {
        WAIT_STACK: 2_500_040,
        ("main", "/usr/lib/libcuda.so.1 0x7f0000009abc"): 7,
    }
    assert (graph["total"], graph["maxSelf"]) == ("2500047", "2500040")
    assert graph["names"][0] == "total"
    assert graph["levels"][0]["values"] == ["0", "2500047", "0", "0"]


@pytest.mark.parametrize(
    ("changes", "total"),
    [
        ({"spanSelector": [SPAN_ID.hex()]}, 2_500_000),
        ({"spanSelector": ["00f067aa0ba902b7", SPAN_ID.hex()]}, 2_500_000),
        ({"traceIdSelector": [TRACE_ID.hex()]}, 2_500_000),
        ({"spanSelector": ["00f067aa0ba902b7"]}, 0),
        ({"labelSelector": "{}"}, 5_000_094),
        ({"labelSelector": '{service_name=~"c.*", service_name!="cart"}'}, 2_500_047),
        ({"labelSelector": '{"hw.id"!="", service_name="checkout"}'}, 2_500_040),
        ({"labelSelector": '{"hw.id"!~".+", service_name="checkout"}'}, 7),
        ({"labelSelector": '{service_name="nobody"}'}, 0),
        ({"profileTypeID": LAUNCH_ID}, 3),
        ({"profileTypeID": LAUNCH_ID.replace("count", "bytes")}, 0),
        ({"start": START_MS + 1}, 0),
        ({"end": START_MS - 1}, 0),
        ({"start": str(START_MS), "end": str(START_MS + 1)}, 2_500_047),
    ],
)
def test_a_query_selects_by_span_labels_type_and_time(
    url: str, changes: dict[str, Any], total: int
) -> None:
    """Each selector takes what it names and nothing else."""
    assert sum(stacks(flame_graph(url, query(**changes))).values()) == total


SPAN = {
    "service.name": "checkout",
    "service.namespace": "shop",
    "pyroscope.profile.id": SPAN_ID.hex(),
}


@pytest.mark.parametrize("margin_ms", [SHOWN_MARGIN_MS, OPENED_MARGIN_MS])
def test_a_span_finds_profiles_that_began_within_grafanas_margin(url: str, margin_ms: int) -> None:
    """By their begin, so that a window longer than the margin can hold the span and still not be found."""
    found = {}
    for late_ms in (margin_ms, margin_ms + 1):
        at_ms = START_MS + late_ms
        fields = span_query(SPAN, start_ms=at_ms, end_ms=at_ms, margin_ms=margin_ms)
        found[late_ms - margin_ms] = flame_graph(url, fields).get("total")
    assert found == {0: "2500000", 1: None}


def test_without_tags_of_ours_a_namespace_hides_the_profile(tmp_path: Path) -> None:
    """Why the provisioning names its tags: Grafana's own ask for a label that Pyroscope has under another name."""
    settings = yaml.safe_load(PROVISIONED.read_text())
    for source in settings["datasources"]:
        options = source.get("jsonData", {}).get("tracesToProfiles", {})
        for key in ("tags", "customQuery", "query"):
            options.pop(key, None)
    provisioned = tmp_path / "datasources.yaml"
    provisioned.write_text(yaml.safe_dump(settings))
    theirs = span_query(SPAN, start_ms=START_MS, end_ms=START_MS, provisioned=provisioned)
    assert theirs["labelSelector"] == '{service_name="checkout", service_namespace="shop"}'
    ours = span_query(SPAN, start_ms=START_MS, end_ms=START_MS)
    request = profiles_request()
    namespace = request.resource_profiles[0].resource.attributes.add(key="service.namespace")
    namespace.value.string_value = "shop"
    with PyroscopeDouble(unix_ns=lambda: START_UNIX_NS) as pyroscope:
        export_grpc(pyroscope.grpc_endpoint, request)
        labels = [profile.labels for profile in pyroscope.store.all()]
        assert {each["service.namespace"] for each in labels} == {"shop"}
        assert flame_graph(pyroscope.http_endpoint, theirs) == {}
        assert flame_graph(pyroscope.http_endpoint, ours)["total"] == "2500000"


def test_fields_may_have_the_names_of_the_protocol(url: str) -> None:
    """Both spellings of a field mean the same, as in protobuf's JSON."""
    fields = query()
    fields["profile_typeID"] = fields.pop("profileTypeID")
    fields["label_selector"] = fields.pop("labelSelector")
    fields["span_selector"] = [SPAN_ID.hex()]
    assert flame_graph(url, fields)["total"] == "2500000"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"spanSelector": ['${__span.tags["pyroscope.profile.id"]}']},
            "invalid span id length",
        ),
        ({"spanSelector": ["00f067aa0ba902bz"]}, "invalid span id"),
        ({"spanSelector": "00f067aa0ba902b7"}, "not of type list"),
        ({"profileTypeID": "gpu_wait"}, "must be of the form"),
        ({"labelSelector": 'service_name="x"'}, "not of the form"),
        ({"labelSelector": '{service.name="x"}'}, "no matcher at"),
        ({"labelSelector": '{a="x" b="y"}'}, "no comma at"),
        ({"labelSelector": '{a=~"("}'}, "no regular expression"),
        ({"start": 0}, "no range of milliseconds"),
        ({"end": START_MS - 2000}, "no range of milliseconds"),
        ({"labelSelectors": "{}"}, "unknown field 'labelSelectors'"),
    ],
)
def test_a_malformed_query_is_refused(url: str, changes: dict[str, Any], message: str) -> None:
    """The words say what is wrong; nothing is guessed."""
    status, answer = ask(url, "SelectMergeStacktraces", query(**changes))
    assert (status, answer["code"]) == (400, "invalid_argument")
    assert message in answer["message"]


def test_profile_types_are_listed_with_their_parts(url: str) -> None:
    """Every type once, and none outside the time range."""
    times = {"start": START_MS - 1, "end": START_MS + 1}
    _, answer = ask(url, "ProfileTypes", times)
    assert [kind["ID"] for kind in answer["profileTypes"]] == [LAUNCH_ID, WAIT_ID]
    assert answer["profileTypes"][1] == {
        "ID": WAIT_ID,
        "name": "gpu",
        "sampleType": "gpu_wait",
        "sampleUnit": "nanoseconds",
        "periodType": "gpu",
        "periodUnit": "nanoseconds",
    }
    assert ask(url, "ProfileTypes", {"start": 1, "end": 2}) == (200, {})
    assert len(ask(url, "ProfileTypes", {})[1]["profileTypes"]) == 2


def test_label_values_are_those_of_matching_series(url: str) -> None:
    """Grafana's variable: the services that have a profile type."""
    assert ask(url, "LabelValues", {"name": "service_name"}) == (
        200,
        {"names": ["cart", "checkout"]},
    )
    matching = {"name": "service_name", "matchers": ['{service_name=~"ch.+"}']}
    assert ask(url, "LabelValues", matching) == (200, {"names": ["checkout"]})
    assert ask(url, "LabelValues", {"name": "nothing"}) == (200, {})
    assert ask(url, "LabelValues", {})[0] == 400


def test_an_unknown_method_is_told_apart(url: str) -> None:
    """A method that the double does not have is no empty answer."""
    assert ask(url, "SelectMergeSpanProfile", {})[0] == 404


STACKS = st.lists(
    st.tuples(
        st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map(tuple), st.integers(1, 9)
    ),
    min_size=1,
)


@given(STACKS)
def test_levels_hold_every_stack(given_stacks: list[tuple[tuple[str, ...], int]]) -> None:
    """Reading the levels gives the stacks back that were merged."""
    graph = make_flame_graph(given_stacks, max_nodes=10_000)
    expected: dict[tuple[str, ...], int] = {}
    for stack, value in given_stacks:
        expected[stack] = expected.get(stack, 0) + value
    levels = [{"values": level} for level in graph.levels]
    assert stacks({"names": graph.names, "levels": levels}) == expected
    assert graph.total == sum(expected.values())
    assert graph.max_self == max(expected.values())


def test_with_few_bars_allowed_the_small_ones_become_one() -> None:
    """Bars below the smallest that is kept are in `other`, at their place."""
    given_stacks = [(("a", "b"), 10), (("a", "c"), 2), (("a", "d"), 1)]
    graph = make_flame_graph(given_stacks, max_nodes=3)
    assert graph.names == ("total", "a", "b", "other")
    assert graph.levels == ((0, 13, 0, 0), (0, 13, 0, 1), (0, 10, 10, 2, 0, 3, 3, 3))


@given(STACKS)
def test_small_bars_are_put_together_and_the_total_stays(
    given_stacks: list[tuple[tuple[str, ...], int]],
) -> None:
    """With few bars allowed, what is left out is in `other`, and nothing is lost."""
    graph = make_flame_graph(given_stacks, max_nodes=3)
    levels = [{"values": level} for level in graph.levels]
    found = stacks({"names": graph.names, "levels": levels})
    assert sum(found.values()) == sum(value for _, value in given_stacks)
