"""Whether a receiver takes profiles: it is sent one, with one sample."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)

from otel_gpuflame.capture.checks.result import Check, fail, ok, skip, warn
from otel_gpuflame.encode.otlp import encode_otlp
from otel_gpuflame.errors import OtelGpuflameError
from otel_gpuflame.events.frames import mark
from otel_gpuflame.export import Exporter, ExportResult, OtlpOptions, Outcome, open_exporter
from otel_gpuflame.profile.model import Bundle, Profile, Window
from otel_gpuflame.profile.sample_types import HEADLINE, SCOPE

SERVICE_NAME: Final = "otel_gpuflame.doctor"
_NAME: Final = "Collector"
_TIMEOUT_S: Final = 5.0
_WINDOW_NS: Final = 1_000_000_000
_VALUE_NS: Final = 1


def check_collector(
    options: OtlpOptions | None,
    open_one: Callable[[OtlpOptions], Exporter] = open_exporter,
    clock_ns: Callable[[], int] = time.time_ns,
) -> Check:
    """Send one small profile and read the answer; None: nobody said where to."""
    if options is None:
        return skip(_NAME, "give --endpoint, or set OTEL_EXPORTER_OTLP_ENDPOINT")
    limited = replace(options, timeout_s=min(options.timeout_s, _TIMEOUT_S))
    try:
        exporter = open_one(limited)
    except OtelGpuflameError as error:
        return fail(_NAME, str(error), "correct the file that it names")
    try:
        return _judge(limited, exporter.export(one_sample(clock_ns())))
    finally:
        exporter.close()


def one_sample(now_unix_ns: int) -> ExportProfilesServiceRequest:
    """The smallest profile that says something: 1 ns of waiting, of a service that is called like this check."""
    bundle = Bundle(
        resource=(("service.name", SERVICE_NAME),),
        scope=SCOPE,
        window=Window(now_unix_ns - _WINDOW_NS, now_unix_ns),
        frames=(mark("otel_gpuflame doctor"),),
        stacks=((0,),),
        links=(),
        attribute_sets=((), (("service.name", SERVICE_NAME),)),
        profiles=(
            Profile(
                sample_type=HEADLINE,
                stack=np.array([0], np.int32),
                link=np.array([-1], np.int32),
                attributes=np.array([1], np.int32),
                value=np.array([_VALUE_NS], np.int64),
            ),
        ),
    )
    (request,) = encode_otlp([bundle], dropped=Counter())
    return request


def _judge(options: OtlpOptions, result: ExportResult) -> Check:
    where = f"{options.endpoint} ({options.protocol})"
    if result.outcome is Outcome.ACCEPTED:
        warning = f"; it says: {result.message}" if result.message else ""
        return ok(_NAME, f"{where} took a profile{warning}")
    if result.outcome is Outcome.PARTIAL:
        return warn(_NAME, f"{where}: {result.message}", "see the log of the receiver")
    # The message names the remedy where one is known: the feature gate, credentials, TLS.
    remedy = "start an OpenTelemetry Collector of version 0.148 or newer there (collector-config/), and see its log"
    return fail(_NAME, result.message or f"{where} did not take a profile", remedy)
