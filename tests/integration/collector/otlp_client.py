# SPDX-License-Identifier: Apache-2.0
"""Sends OTLP requests as they are: no retry, no batching, none of the project's own exporters."""

from __future__ import annotations

import gzip
import http.client
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

import grpc
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
    ExportProfilesServiceResponse,
)

from tests.integration.collector.example_request import DEVELOPMENT_VERSION

EXPORT_METHOD = "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export"
TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpReply:
    """`headers` has lower-case names."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def export_grpc(
    endpoint: str,
    request: ExportProfilesServiceRequest,
    *,
    metadata: tuple[tuple[str, str], ...] = (DEVELOPMENT_VERSION,),
    compression: grpc.Compression = grpc.Compression.NoCompression,
    timeout_s: float = TIMEOUT_S,
) -> ExportProfilesServiceResponse:
    """One unary Export; raises `grpc.RpcError` with the server's own status."""
    with grpc.insecure_channel(endpoint) as channel:
        export = channel.unary_unary(
            EXPORT_METHOD,
            request_serializer=ExportProfilesServiceRequest.SerializeToString,
            response_deserializer=ExportProfilesServiceResponse.FromString,
        )
        response: ExportProfilesServiceResponse = export(
            request, timeout=timeout_s, metadata=metadata, compression=compression
        )
    return response


def post(
    url: str,
    body: bytes,
    *,
    headers: Mapping[str, str] | None = None,
    compress: bool = True,
    timeout_s: float = TIMEOUT_S,
) -> HttpReply:
    """One POST of a protobuf body, gzip by default; any status is a reply, not an error."""
    parts = urlsplit(url)
    all_headers = {"Content-Type": "application/x-protobuf", **dict([DEVELOPMENT_VERSION])}
    if compress:
        all_headers["Content-Encoding"] = "gzip"
        body = gzip.compress(body, mtime=0)
    connection = http.client.HTTPConnection(parts.netloc, timeout=timeout_s)
    try:
        connection.request("POST", parts.path, body, {**all_headers, **(headers or {})})
        response = connection.getresponse()
        return HttpReply(
            status=response.status,
            headers={name.lower(): value for name, value in response.getheaders()},
            body=response.read(),
        )
    finally:
        connection.close()
