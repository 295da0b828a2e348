# SPDX-License-Identifier: Apache-2.0
"""The patch of `otel-gpuflame env --k8s`: Kubernetes' schemas, and that the program finds the library."""

from __future__ import annotations

import copy
from pathlib import PurePosixPath
from typing import Any

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from otel_gpuflame.capture.cupti.inject import LAYER, LAYERS_VARIABLE, LIBRARY, VARIABLE
from otel_gpuflame.cli.env import IMAGE, env
from otel_gpuflame.cli.main import cli
from tests.contract.test_deploy_kubernetes import DOCUMENTS, OLDEST_KUBERNETES

OTHER_IMAGE = "r.example:5000/otel-gpuflame@sha256:0a"
VERSIONS = (OLDEST_KUBERNETES, kubernetes_validate.latest_version())
WORKLOAD: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "trainer"},
    "spec": {
        "selector": {"matchLabels": {"app": "trainer"}},
        "template": {
            "metadata": {"labels": {"app": "trainer"}},
            "spec": {
                "containers": [
                    {
                        "name": "trainer",
                        "image": "trainer:1",
                        "env": [{"name": "OWN", "value": "1"}],
                        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                    },
                    {"name": "sidecar", "image": "sidecar:1"},
                ],
                "volumes": [{"name": "data", "emptyDir": {}}],
            },
        },
    },
}
KEYS = {"volumeMounts": "mountPath"}
"""Lists of a pod are merged by `name`, but for these."""


def patch(*arguments: str) -> dict[str, Any]:
    """What the command prints."""
    result = CliRunner().invoke(cli, ["env", "--k8s", "--container", "trainer", *arguments])
    assert result.exit_code == 0, result.output
    parsed: dict[str, Any] = yaml.safe_load(result.output)
    return parsed


def merged(base: Any, change: Any, field: str = "") -> Any:
    """As the API server does it: objects by field, lists of objects by their key, the rest replaced."""
    if isinstance(base, dict) and isinstance(change, dict):
        keys = base.keys() | change.keys()
        return {
            key: merged(base[key], change[key], key)
            if key in base and key in change
            else copy.deepcopy(base.get(key, change.get(key)))
            for key in keys
        }
    if isinstance(base, list) and isinstance(change, list):
        key = KEYS.get(field, "name")
        found = {each[key]: each for each in base}
        for each in change:
            found[each[key]] = merged(found.get(each[key], {}), each)
        return list(found.values())
    return change


@pytest.fixture
def pod() -> dict[str, Any]:
    """The spec of the patched workload's pod."""
    spec: dict[str, Any] = merged(WORKLOAD, patch())["spec"]["template"]["spec"]
    return spec


@pytest.fixture
def containers(pod: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Its containers by name, that of the patch too."""
    return {each["name"]: each for each in pod["containers"] + pod["initContainers"]}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_patched_workload_is_valid(version: str) -> None:
    """Every field is in the schema, and of the right type."""
    kubernetes_validate.validate(WORKLOAD, version, strict=True)
    kubernetes_validate.validate(merged(WORKLOAD, patch()), version, strict=True)


def test_a_misspelt_field_of_the_patch_is_found() -> None:
    """The check that the test above relies on does refuse."""
    wrong = patch()
    (init,) = wrong["spec"]["template"]["spec"]["initContainers"]
    init["volumeMount"] = init.pop("volumeMounts")
    with pytest.raises(kubernetes_validate.ValidationError, match="volumeMount"):
        kubernetes_validate.validate(merged(WORKLOAD, wrong), OLDEST_KUBERNETES, strict=True)


def test_the_program_finds_what_the_init_container_copied(
    pod: dict[str, Any], containers: dict[str, dict[str, Any]]
) -> None:
    """Volume, mounts, arguments and variable agree."""
    init, program = containers["otel-gpuflame"], containers["trainer"]
    name, *arguments = init["args"]
    assert name == env.name
    context = env.make_context("env", ["--copy-to", "/tmp", *arguments[2:]])
    assert context.params["copy_to"].name == "tmp"
    (written,) = [m for m in init["volumeMounts"] if m["mountPath"] == arguments[1]]
    variables = {each["name"]: each["value"] for each in program["env"]}
    path, layer = (PurePosixPath(variables[name]) for name in (VARIABLE, LAYERS_VARIABLE))
    assert (path.name, layer.name) == (LIBRARY.name, LAYER.name)
    assert path.parent == layer.parent
    (read,) = [m for m in program["volumeMounts"] if m["mountPath"] == str(path.parent)]
    assert read["name"] == written["name"]
    assert read["readOnly"] is True
    assert [volume for volume in pod["volumes"] if volume["name"] == read["name"]]


def test_what_the_workload_had_is_still_there(containers: dict[str, dict[str, Any]]) -> None:
    """The patch adds; containers that it does not name stay as they are."""
    program = containers["trainer"]
    assert {"name": "OWN", "value": "1"} in program["env"]
    assert {"name": "data", "mountPath": "/data"} in program["volumeMounts"]
    assert program["image"] == "trainer:1"
    assert containers["sidecar"] == {"name": "sidecar", "image": "sidecar:1"}


def test_the_init_container_needs_no_rights(containers: dict[str, dict[str, Any]]) -> None:
    """It is admitted at the level `restricted` of pod security."""
    context = containers["otel-gpuflame"]["securityContext"]
    assert context["runAsNonRoot"] is True
    assert context["runAsUser"] != 0
    assert context["allowPrivilegeEscalation"] is False
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}


def test_the_image_is_that_of_the_agent_unless_named() -> None:
    """Library and agent should be of one version."""
    (agent,) = DOCUMENTS["DaemonSet"]["spec"]["template"]["spec"]["containers"]
    assert agent["image"] == IMAGE
    for arguments, image in (((), IMAGE), (("--image", OTHER_IMAGE), OTHER_IMAGE)):
        (init,) = patch(*arguments)["spec"]["template"]["spec"]["initContainers"]
        assert init["image"] == image
