# SPDX-License-Identifier: Apache-2.0
"""collector-config/grafana: its parts agree with each other and with the registry of sample types."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from otel_gpuflame.profile import sample_types
from otel_gpuflame.profile.model import ValueType

GRAFANA = Path(__file__).parents[2] / "collector-config" / "grafana"
DATA_SOURCES: dict[str, Any] = {
    source["uid"]: source
    for source in yaml.safe_load(
        (GRAFANA / "provisioning" / "datasources" / "otel-gpuflame.yaml").read_text()
    )["datasources"]
}
COMPOSE: dict[str, Any] = yaml.safe_load((GRAFANA / "compose.yaml").read_text())
DASHBOARD: dict[str, Any] = json.loads((GRAFANA / "dashboards" / "gpu-waits.json").read_text())
PANELS: dict[str, Any] = {panel["title"]: panel for panel in DASHBOARD["panels"]}


def profile_type_id(sample_type: ValueType) -> str:
    """The id under which Pyroscope knows a sample type: it names a profile after its period type."""
    period = sample_types.period(sample_type)
    assert period is not None, sample_type
    return ":".join((period.type.type, *sample_type, *period.type))


HEADLINE_ID = profile_type_id(sample_types.HEADLINE)


def test_a_span_opens_the_headline_profile_type() -> None:
    """`tracesToProfiles` names our headline and the Pyroscope data source that exists."""
    settings = DATA_SOURCES["tempo"]["jsonData"]["tracesToProfiles"]
    assert settings["profileTypeId"] == HEADLINE_ID
    assert DATA_SOURCES[settings["datasourceUid"]]["type"] == "grafana-pyroscope-datasource"


def test_a_span_is_matched_by_service_name_only() -> None:
    """The label is one that Pyroscope has of every profile, whatever else the span carries."""
    settings = DATA_SOURCES["tempo"]["jsonData"]["tracesToProfiles"]
    assert settings["tags"] == [{"key": "service.name", "value": "service_name"}]


def test_dollar_signs_of_queries_survive_provisioning() -> None:
    """Grafana expands `$NAME` of its environment in these files; `$$` is a dollar sign."""
    settings = DATA_SOURCES["tempo"]["jsonData"]["tracesToProfiles"]
    assert settings["customQuery"] is True
    assert settings["query"] == "{$${__tags}}"
    for path in GRAFANA.glob("provisioning/*/*.yaml"):
        text = "\n".join(line for line in path.read_text().splitlines() if "#" not in line)
        assert not re.search(r"(?<!\$)(\$\$)*\$(?!\$)", text), path


def every_query() -> Iterator[dict[str, Any]]:
    """The query of each panel, and that of each variable."""
    for panel in DASHBOARD["panels"]:
        yield from panel["targets"]
    for variable in DASHBOARD["templating"]["list"]:
        yield {"datasource": variable["datasource"], **variable["query"]}


def test_every_query_has_a_type_of_ours_and_a_data_source_that_exists() -> None:
    """A renamed sample type or data source would leave a panel empty without a word."""
    ids = {profile_type_id(t) for t in sample_types.ALL if sample_types.period(t) is not None}
    for query in every_query():
        assert query["profileTypeId"] in ids
        source = DATA_SOURCES[query["datasource"]["uid"]]
        assert query["datasource"]["type"] == source["type"]


@pytest.mark.parametrize(
    ("title", "kind", "query_type", "sample_type"),
    [
        ("GPU wait by service", "timeseries", "metrics", sample_types.GPU_WAIT),
        ("GPU submissions by service", "timeseries", "metrics", sample_types.GPU_LAUNCH),
        ("Copied by service", "timeseries", "metrics", sample_types.GPU_COPY),
        ("Top services by GPU wait", "bargauge", "metrics", sample_types.GPU_WAIT),
        ("Where it waits", "flamegraph", "profile", sample_types.GPU_WAIT),
    ],
)
def test_each_panel_asks_for_what_its_title_says(
    title: str, kind: str, query_type: str, sample_type: ValueType
) -> None:
    """A graph of numbers by service, or a flame graph of the chosen service."""
    panel = PANELS[title]
    (query,) = panel["targets"]
    assert (panel["type"], query["queryType"]) == (kind, query_type)
    assert query["profileTypeId"] == profile_type_id(sample_type)
    assert query["groupBy"] == ([] if query_type == "profile" else ["service_name"])
    assert query["labelSelector"] == '{service_name=~"$service"}'


def test_the_variable_of_the_selectors_exists_and_offers_services() -> None:
    """`$service` is the label that every profile has, and all of them by default."""
    (variable,) = DASHBOARD["templating"]["list"]
    assert variable["name"] == "service"
    assert (variable["query"]["type"], variable["query"]["labelName"]) == (
        "labelValue",
        "service_name",
    )
    assert (variable["includeAll"], variable["allValue"]) == (True, ".*")


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    """Grafana moves what overlaps, and mixes up what has the same id."""
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) == len(PANELS)
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)


def test_dashboards_are_provisioned_from_where_they_are_mounted() -> None:
    """The provider's folder is the mount point of `dashboards`."""
    path = GRAFANA / "provisioning" / "dashboards" / "otel-gpuflame.yaml"
    (provider,) = yaml.safe_load(path.read_text())["providers"]
    assert (
        f"./dashboards:{provider['options']['path']}:ro"
        in COMPOSE["services"]["grafana"]["volumes"]
    )


def test_every_image_has_a_version() -> None:
    """A newer release of any of them must not change what a user gets."""
    for name, service in COMPOSE["services"].items():
        assert re.fullmatch(r"[\w./-]+:\d+\.\d+\.\d+", service["image"]), name


def test_nothing_listens_beyond_this_host() -> None:
    """There is no login anywhere, so every published port is on 127.0.0.1."""
    for service in COMPOSE["services"].values():
        for port in service["ports"]:
            assert port.startswith("127.0.0.1:")


def test_every_mounted_file_and_volume_exists() -> None:
    """A path that is not there becomes an empty folder in the container."""
    for service in COMPOSE["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (GRAFANA / source).exists(), source
            else:
                assert source in COMPOSE["volumes"]


def test_every_address_is_that_of_a_service() -> None:
    """Data sources and the Collector's environment name containers that exist."""
    urls = [source["url"] for source in DATA_SOURCES.values()]
    environment = COMPOSE["services"]["collector"]["environment"]
    urls += [environment["PROFILES_BACKEND_ENDPOINT"], environment["TRACES_BACKEND_ENDPOINT"]]
    hosts = {url.removeprefix("http://").split(":")[0] for url in urls}
    assert hosts == {"pyroscope", "tempo"}


def test_tempo_listens_where_it_is_asked_and_sent_to() -> None:
    """Its two ports are those of the data source and of the Collector's environment."""
    tempo = yaml.safe_load((GRAFANA / "tempo.yaml").read_text())
    assert DATA_SOURCES["tempo"]["url"].endswith(f":{tempo['server']['http_listen_port']}")
    receiver = tempo["distributor"]["receivers"]["otlp"]["protocols"]["grpc"]["endpoint"]
    environment = COMPOSE["services"]["collector"]["environment"]
    assert receiver.split(":")[1] == environment["TRACES_BACKEND_ENDPOINT"].split(":")[1]


def test_the_collector_is_new_enough_and_has_both_files_and_the_gate() -> None:
    """0.148 is the first that reads our fields right, and Pyroscope needs the second file."""
    collector = COMPOSE["services"]["collector"]
    version = tuple(map(int, collector["image"].split(":")[1].split(".")))
    assert version >= (0, 148, 0)
    mounted = {volume.split(":")[1] for volume in collector["volumes"]}
    given = {c.removeprefix("--config=") for c in collector["command"] if "--config=" in c}
    assert given == mounted
    assert {Path(name).name for name in given} == {"collector.yaml", "pyroscope.yaml"}
    assert "--feature-gates=+service.profilesSupport" in collector["command"]
