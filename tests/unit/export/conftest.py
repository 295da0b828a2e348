"""Fixtures shared by the tests of both transports."""

from __future__ import annotations

import shutil

import pytest
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)

from otel_gpuflame.encode.otlp import encode_otlp
from tests.unit.encode.bundles import waits_and_launches
from tests.unit.export.receivers import Authority, make_authority


@pytest.fixture
def request_() -> ExportProfilesServiceRequest:
    """A request worth sending."""
    return encode_otlp([waits_and_launches()])[0]


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """A throw-away certificate authority."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command")
    return make_authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proxies of the machine must not come between the tests and the loopback."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def one_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first pause would end after any timeout, so that there is none, however long an attempt may take."""
    monkeypatch.setattr("otel_gpuflame.export.retry.FIRST_DELAY_S", 3_600.0)
