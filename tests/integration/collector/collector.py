# SPDX-License-Identifier: Apache-2.0
"""Runs a real OpenTelemetry Collector as a child process."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.integration.collector.build import CollectorError, build_collector

__all__ = ["CollectorError", "RunningCollector", "Verdict", "build_collector", "validate_config"]

PROFILES_GATE = "service.profilesSupport"
READY_MESSAGE = "Everything is ready. Begin running and processing data."

START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 300.0
"""Against hanging: neither takes a second where the machine is not busy."""

_TEST_OVERLAY = (
    # The reader of these logs is this module.
    "yaml:service::telemetry::logs::encoding: json",
    # The Collector's own metrics listen on the fixed port 8888: two test runs would collide.
    "yaml:service::telemetry::metrics::level: none",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What `otelcol validate` said about a configuration."""

    accepted: bool
    output: str


def validate_config(
    binary: Path,
    *configs: Path,
    env: Mapping[str, str] | None = None,
    feature_gates: Sequence[str] = (PROFILES_GATE,),
) -> Verdict:
    """Run the Collector's own check of configuration files, merged in this order; nothing listens or connects."""
    sources = [f"--config={config}" for config in configs]
    done = subprocess.run(
        [str(binary), "validate", *sources, *_gate_arguments(feature_gates)],
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S,
        check=False,
    )
    return Verdict(accepted=done.returncode == 0, output=done.stdout + done.stderr)


def _gate_arguments(feature_gates: Sequence[str]) -> list[str]:
    return [f"--feature-gates=+{gate}" for gate in feature_gates]


class RunningCollector:
    """A Collector child process, ready to receive while the `with` block runs.

    Give every listener port 0: the real ports are read from the Collector's log, so two test runs
    never race for one. `config` is a file, or the YAML text itself; `overlays` are merged over it.

    Raises:
        CollectorError: on entry, when it ends or is not ready in time (with its log); on exit, when
            it did not stop on SIGTERM in time and had to be killed, or ended with an error.
    """

    def __init__(
        self,
        binary: Path,
        config: Path | str,
        *,
        overlays: Sequence[Path] = (),
        env: Mapping[str, str] | None = None,
        feature_gates: Sequence[str] = (PROFILES_GATE,),
    ) -> None:
        self._binary = binary
        self._config = config
        self._overlays = tuple(overlays)
        self._env = dict(env or {})
        self._feature_gates = tuple(feature_gates)
        self._lines: list[str] = []
        self._ended = False
        self._changed = threading.Condition()

    def __enter__(self) -> RunningCollector:
        self._directory = tempfile.TemporaryDirectory(prefix="otelcol-")
        try:
            self._start()
            self._wait_until_ready(time.monotonic() + START_TIMEOUT_S)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return_code = self._stop()
        # It says that it is ready a moment before it handles SIGTERM; until then ours just ends it.
        if return_code not in (0, -signal.SIGTERM) and exc is None:
            raise CollectorError(f"the Collector ended with {return_code}:\n{self.log_text()}")

    @property
    def grpc_endpoint(self) -> str:
        """`host:port` of the OTLP/gRPC receiver."""
        return self._endpoint_of("Starting GRPC server")

    @property
    def http_endpoint(self) -> str:
        """`host:port` of the OTLP/HTTP receiver."""
        return self._endpoint_of("Starting HTTP server")

    def log_text(self) -> str:
        """All that the Collector has written so far."""
        with self._changed:
            return "\n".join(self._lines)

    def wait_for_log(self, text: str, *, timeout_s: float = START_TIMEOUT_S) -> str:
        """The first log line that contains `text`, waiting for it when it isn't there yet."""
        deadline_s = time.monotonic() + timeout_s
        with self._changed:
            while True:
                found = next((line for line in self._lines if text in line), None)
                if found is not None:
                    return found
                remaining_s = deadline_s - time.monotonic()
                if self._ended or remaining_s <= 0:
                    why = "ended" if self._ended else f"did not in {timeout_s:.0f} s"
                    raise CollectorError(
                        f"the Collector should have logged {text!r} but {why}. Its log:\n"
                        + "\n".join(self._lines)
                    )
                self._changed.wait(remaining_s)

    def _start(self) -> None:
        config = self._config
        if isinstance(config, str):
            path = Path(self._directory.name) / "config.yaml"
            path.write_text(config)
            config = path
        self._process = subprocess.Popen(
            [
                str(self._binary),
                *(f"--config={source}" for source in (config, *self._overlays, *_TEST_OVERLAY)),
                *_gate_arguments(self._feature_gates),
            ],
            env={**os.environ, **self._env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read_log, name="otelcol-log", daemon=True)
        self._reader.start()

    def _read_log(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self._lines.append(line.rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _wait_until_ready(self, deadline_s: float) -> None:
        self.wait_for_log(READY_MESSAGE, timeout_s=deadline_s - time.monotonic())
        for endpoint in self._endpoints():
            host, port = endpoint.rsplit(":", 1)
            remaining_s = max(deadline_s - time.monotonic(), 0.1)
            with socket.create_connection((host, int(port)), timeout=remaining_s):
                pass

    def _records(self) -> Iterator[Mapping[str, Any]]:
        with self._changed:
            lines = list(self._lines)
        for line in lines:
            if line.startswith("{"):
                yield json.loads(line)

    def _endpoints(self) -> list[str]:
        messages = ("Starting GRPC server", "Starting HTTP server")
        return [str(r["endpoint"]) for r in self._records() if r.get("msg") in messages]

    def _endpoint_of(self, message: str) -> str:
        for record in self._records():
            if record.get("msg") == message:
                return str(record["endpoint"])
        raise CollectorError(f"the Collector did not log {message!r}: is that protocol configured?")

    def _stop(self) -> int:
        """Return the exit status; negative is the signal that ended it."""
        process = getattr(self, "_process", None)
        if process is not None:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            self._reader.join(STOP_TIMEOUT_S)
        self._directory.cleanup()
        return 0 if process is None else int(process.returncode)
