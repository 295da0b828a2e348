"""Options from environment variables."""

from __future__ import annotations

import pytest

from otel_gpuflame.errors import ConfigError
from otel_gpuflame.export.options import OtlpOptions, otlp_options

BASE = "OTEL_EXPORTER_OTLP_"
PROFILES = "OTEL_EXPORTER_OTLP_PROFILES_"
HTTP = {BASE + "PROTOCOL": "http/protobuf"}


def test_defaults() -> None:
    """Without any variable: gRPC to a local Collector, ten seconds, gzip, no headers."""
    assert otlp_options({}) == OtlpOptions(
        protocol="grpc",
        endpoint="localhost:4317",
        plaintext=True,
        headers=(),
        timeout_s=10.0,
        compression="gzip",
    )


def test_defaults_for_http() -> None:
    """HTTP goes to its own port and the path of the signal."""
    options = otlp_options(HTTP)

    assert options.endpoint == "http://localhost:4318/v1development/profiles"
    assert options.plaintext


@pytest.mark.parametrize(
    ("environ", "endpoint", "plaintext"),
    [
        ({BASE + "ENDPOINT": "http://collector:4317"}, "collector:4317", True),
        ({BASE + "ENDPOINT": "https://collector:4317/ignored"}, "collector:4317", False),
        ({BASE + "ENDPOINT": "https://collector"}, "collector", False),
        ({BASE + "ENDPOINT": "collector:4317"}, "collector:4317", False),
        ({BASE + "ENDPOINT": "collector:4317", BASE + "INSECURE": "true"}, "collector:4317", True),
        ({BASE + "ENDPOINT": "https://c:1", BASE + "INSECURE": "TRUE"}, "c:1", False),
        ({BASE + "ENDPOINT": "http://[::1]:4317"}, "[::1]:4317", True),
        ({BASE + "ENDPOINT": "http://a:1", PROFILES + "ENDPOINT": "http://b:2"}, "b:2", True),
        ({BASE + "ENDPOINT": "http://a:1", PROFILES + "ENDPOINT": " "}, "a:1", True),
        (
            {BASE + "ENDPOINT": "c:1", BASE + "INSECURE": "true", PROFILES + "INSECURE": "false"},
            "c:1",
            False,
        ),
    ],
)
def test_grpc_endpoint(environ: dict[str, str], endpoint: str, plaintext: bool) -> None:
    """The scheme decides about TLS, INSECURE only without one; the signal's variable wins."""
    options = otlp_options(environ)

    assert (options.endpoint, options.plaintext) == (endpoint, plaintext)


@pytest.mark.parametrize(
    ("environ", "endpoint"),
    [
        ({BASE + "ENDPOINT": "http://c:4318"}, "http://c:4318/v1development/profiles"),
        ({BASE + "ENDPOINT": "https://c/otlp/"}, "https://c/otlp/v1development/profiles"),
        ({PROFILES + "ENDPOINT": "http://c:4040/ingest?x=1"}, "http://c:4040/ingest?x=1"),
        ({PROFILES + "ENDPOINT": "http://c:4318"}, "http://c:4318/"),
    ],
)
def test_http_endpoint(environ: dict[str, str], endpoint: str) -> None:
    """A base URL gets the path of the signal, the signal's own URL is used as it is."""
    assert otlp_options(HTTP | environ).endpoint == endpoint


def test_headers_are_decoded() -> None:
    """Pairs are split, names lower-cased and values percent-decoded."""
    options = otlp_options({BASE + "HEADERS": "Authorization=Basic%20dTpw, x-scope-orgid = 7,"})

    assert options.headers == (("authorization", "Basic dTpw"), ("x-scope-orgid", "7"))


def test_headers_of_the_signal_replace_those_of_all() -> None:
    """The more specific variable wins as a whole."""
    environ = {BASE + "HEADERS": "a=1,b=2", PROFILES + "HEADERS": "c=3"}

    assert otlp_options(environ).headers == (("c", "3"),)


def test_headers_are_not_shown() -> None:
    """Credentials do not appear where options are printed."""
    assert "secret" not in repr(otlp_options({BASE + "HEADERS": "authorization=secret"}))


def test_timeout_is_in_milliseconds() -> None:
    """The variable counts milliseconds, as the specification says."""
    assert otlp_options({BASE + "TIMEOUT": "2500"}).timeout_s == 2.5
    assert otlp_options({BASE + "TIMEOUT": "1", PROFILES + "TIMEOUT": "30000"}).timeout_s == 30


def test_compression_can_be_switched_off() -> None:
    """`none` sends plain bodies."""
    assert otlp_options({PROFILES + "COMPRESSION": "none"}).compression == "none"


def test_tls_files() -> None:
    """Paths of PEM files are taken over."""
    options = otlp_options(
        {
            BASE + "CERTIFICATE": "/ca.pem",
            PROFILES + "CLIENT_KEY": "/key.pem",
            PROFILES + "CLIENT_CERTIFICATE": "/chain.pem",
        }
    )

    assert options.certificate_file == "/ca.pem"
    assert options.client_key_file == "/key.pem"
    assert options.client_certificate_file == "/chain.pem"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        (PROFILES + "PROTOCOL", "http/json"),
        (BASE + "PROTOCOL", "udp"),
        (BASE + "COMPRESSION", "zstd"),
        (BASE + "TIMEOUT", "10s"),
        (PROFILES + "TIMEOUT", "0"),
        (BASE + "TIMEOUT", "-1"),
        (BASE + "TIMEOUT", "²"),
        (BASE + "INSECURE", "yes"),
        (BASE + "HEADERS", "no-equals-sign"),
        (BASE + "HEADERS", "=value"),
        (BASE + "HEADERS", "bad name=value"),
        (BASE + "HEADERS", "name=line%0D%0Abreak"),
        (BASE + "HEADERS", "name=%C3%A9"),
        (BASE + "ENDPOINT", "ftp://collector:4317"),
        (BASE + "ENDPOINT", "http://collector:99999"),
        (BASE + "ENDPOINT", "http://collector:0"),
        (BASE + "ENDPOINT", "http://:4317"),
        (BASE + "ENDPOINT", "http://collector"),
        (BASE + "ENDPOINT", "http://[::1"),
        (PROFILES + "ENDPOINT", "http://user:secret@collector:4317"),
        (BASE + "CLIENT_KEY", "/key.pem"),
        (PROFILES + "CLIENT_CERTIFICATE", "/chain.pem"),
    ],
)
def test_unusable_value_names_its_variable(variable: str, value: str) -> None:
    """A wrong value is an error that names the variable, and shows no credentials."""
    with pytest.raises(ConfigError, match=variable) as caught:
        otlp_options({variable: value})

    assert "secret" not in str(caught.value)
