# SPDX-License-Identifier: Apache-2.0
"""The shipped Collector configuration with the Pyroscope double behind it, and the bundled recording before it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
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
) -> RunningCollector:
    """`collector.yaml` and `pyroscope.yaml`, on free ports."""
    env = {
        "OTLP_GRPC_ENDPOINT": "127.0.0.1:0",
        "OTLP_HTTP_ENDPOINT": "127.0.0.1:0",
        "PROFILES_BACKEND_ENDPOINT": pyroscope.http_endpoint,
        "TRACES_BACKEND_ENDPOINT": traces_endpoint,
    }
    return RunningCollector(binary, SHIPPED, overlays=overlays, env=env)


def clean_environment() -> dict[str, str]:
    """This process's environment without settings of OpenTelemetry and without proxies."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("OTEL_") and not name.lower().endswith("_proxy")
    }


def replay(*arguments: str) -> str:
    """Standard output of `otel-gpuflame replay` on the bundled recording."""
    done = subprocess.run(
        [sys.executable, "-m", "otel_gpuflame", "replay", str(CAPTURE), *arguments],
        cwd=ROOT,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
