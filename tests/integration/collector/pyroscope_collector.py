# SPDX-License-Identifier: Apache-2.0
"""The shipped Collector configuration with the Pyroscope double behind it, and the bundled recording before it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.fakes.pyroscope.double import PyroscopeDouble
from tests.integration.collector.collector import RunningCollector

ROOT = Path(__file__).parents[3]
CONFIG_DIR = ROOT / "collector-config"
CAPTURE = ROOT / "examples" / "captures" / "h200_train.ogfcap"
SHIPPED = CONFIG_DIR / "collector.yaml"
PYROSCOPE_OVERLAY = CONFIG_DIR / "pyroscope.yaml"


def shipped_collector(
    binary: Path,
    pyroscope: PyroscopeDouble,
    *,
    overlays: Sequence[Path] = (PYROSCOPE_OVERLAY,),
    traces_endpoint: str = "127.0.0.1:1",
    more_env: Mapping[str, str] | None = None,
) -> RunningCollector:
    """`collector.yaml` and `pyroscope.yaml`, on free ports."""
    env = {
        "OTLP_GRPC_ENDPOINT": "127.0.0.1:0",
        "OTLP_HTTP_ENDPOINT": "127.0.0.1:0",
        "PROFILES_BACKEND_ENDPOINT": pyroscope.http_endpoint,
        "TRACES_BACKEND_ENDPOINT": traces_endpoint,
        **(more_env or {}),
    }
    return RunningCollector(binary, SHIPPED, overlays=overlays, env=env)


def clean_environment() -> dict[str, str]:
    """This process's environment without settings of OpenTelemetry and without proxies."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("OTEL_") and not name.lower().endswith("_proxy")
    }


def replay(*arguments: str, capture: Path = CAPTURE) -> str:
    """Standard output of `otel-gpuflame replay`, by default on the bundled recording."""
    done = subprocess.run(
        [sys.executable, "-m", "otel_gpuflame", "replay", str(capture), *arguments],
        cwd=ROOT,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
