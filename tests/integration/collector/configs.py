# SPDX-License-Identifier: Apache-2.0
"""Collector configurations for tests. All listen on free ports; sinks come from the environment."""

from __future__ import annotations

from tests.integration.collector.sink import OtlpSink

RECEIVER = """
receivers:
  otlp:
    protocols:
      grpc: {endpoint: "127.0.0.1:0"}
      http: {endpoint: "127.0.0.1:0"}
"""

RELAY_CONFIG = (
    RECEIVER
    + """
exporters:
  otlp_http/sink: {endpoint: "${env:SINK_HTTP}", retry_on_failure: {enabled: false}}
  otlp_grpc/sink: {endpoint: "${env:SINK_GRPC}", tls: {insecure: true}}
service:
  pipelines:
    profiles: {receivers: [otlp], exporters: [otlp_http/sink, otlp_grpc/sink]}
"""
)

MERGING_CONFIG = (
    RECEIVER
    + """
exporters:
  otlp_http/sink:
    endpoint: "${env:SINK_HTTP}"
    # Eight samples are the two requests of the test: neither leaves alone.
    sending_queue: {sizer: items, batch: {flush_timeout: 60s, min_size: 8}}
service:
  pipelines:
    profiles: {receivers: [otlp], exporters: [otlp_http/sink]}
"""
)

ENRICHING_CONFIG = (
    RECEIVER
    + """
processors:
  resource:
    attributes: [{key: deployment.environment.name, value: staging, action: upsert}]
exporters:
  otlp_http/sink: {endpoint: "${env:SINK_HTTP}"}
service:
  pipelines:
    profiles: {receivers: [otlp], processors: [resource], exporters: [otlp_http/sink]}
"""
)

TRACES_ONLY_CONFIG = (
    RECEIVER
    + """
exporters: {debug: {}}
service:
  pipelines:
    traces: {receivers: [otlp], exporters: [debug]}
"""
)


def sink_addresses(sink: OtlpSink) -> dict[str, str]:
    """The environment that the configurations with a sink need."""
    return {"SINK_HTTP": sink.http_endpoint, "SINK_GRPC": sink.grpc_endpoint}
