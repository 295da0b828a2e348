# SPDX-License-Identifier: Apache-2.0
"""What the Pyroscope double refuses, and how it says so."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import grpc

_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one tenant; the defaults are those of Pyroscope 2.x."""

    max_body_bytes: int = 256 * _MIB
    max_profile_bytes: int = 4 * _MIB
    max_samples: int = 16_000
    max_labels_per_sample: int = 100
    max_stack_depth: int = 1000
    max_labels_per_series: int = 30
    max_label_name_bytes: int = 1024
    max_label_value_bytes: int = 2048
    ingest_bytes_per_s: int = 4 * _MIB
    # Also what a single profile may have: one above it never passes, however long its sender waits.
    ingest_burst_bytes: int = 2 * _MIB
    oldest_ns: int = 3_600_000_000_000
    newest_ns: int = 600_000_000_000
    max_flame_graph_nodes: int = 8192


class Refusal(Enum):
    """Why something was refused: gRPC code, HTTP status, code of the Connect protocol."""

    CONVERSION = (grpc.StatusCode.INVALID_ARGUMENT, 500, "invalid_argument")
    """A request that does not convert; HTTP answers 500, since the handler knows no better code."""
    VALIDATION = (grpc.StatusCode.INVALID_ARGUMENT, 400, "invalid_argument")
    RATE = (grpc.StatusCode.RESOURCE_EXHAUSTED, 429, "resource_exhausted")

    @property
    def grpc_code(self) -> grpc.StatusCode:
        """What the gRPC front answers."""
        return self.value[0]

    @property
    def http_status(self) -> int:
        """What the HTTP front answers."""
        return self.value[1]

    @property
    def connect_code(self) -> str:
        """What the query API answers."""
        return self.value[2]


class RefusedError(Exception):
    """A request, profile or query that Pyroscope does not take."""

    def __init__(self, refusal: Refusal, message: str) -> None:
        super().__init__(message)
        self.refusal = refusal


def conversion_error(message: str) -> RefusedError:
    """The request breaks OTLP; nothing of it is stored."""
    return RefusedError(Refusal.CONVERSION, f"failed to convert otel profile: {message}")


def invalid(message: str) -> RefusedError:
    """A profile that breaks a limit, or a query that cannot be read."""
    return RefusedError(Refusal.VALIDATION, message)
