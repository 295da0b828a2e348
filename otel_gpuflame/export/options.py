"""How to reach the receiver, from the environment variables that OpenTelemetry users know.

Each setting is read from `OTEL_EXPORTER_OTLP_<SIGNAL>_<NAME>`, else from
`OTEL_EXPORTER_OTLP_<NAME>`. For profiles the specification does not define the first form yet; other
exporters of profiles read it, and it follows the pattern of the other signals. An empty value counts
as unset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias
from urllib.parse import SplitResult, unquote, urlsplit

from otel_gpuflame.errors import ConfigError

Protocol: TypeAlias = Literal["grpc", "http/protobuf"]
Compression: TypeAlias = Literal["gzip", "none"]

_BASE = "OTEL_EXPORTER_OTLP_"
# The specification leaves the choice open where there is history: opentelemetry-python takes gRPC,
# and the agent should understand an environment as the application beside it does.
_DEFAULT_PROTOCOL: Protocol = "grpc"
_DEFAULT_TIMEOUT_MS = 10_000
_INTERVAL = "OTEL_METRIC_EXPORT_INTERVAL"
_DEFAULT_INTERVAL_MS = 60_000
_TOKEN = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")


class Signal(NamedTuple):
    """What is sent: its name in variables, and the path that it has at a receiver for HTTP."""

    name: str
    http_path: str


PROFILES = Signal("PROFILES", "/v1development/profiles")
METRICS = Signal("METRICS", "/v1/metrics")
LOGS = Signal("LOGS", "/v1/logs")
TRACES = Signal("TRACES", "/v1/traces")


@dataclass(frozen=True, slots=True, kw_only=True)
class OtlpOptions:
    """A receiver and how to talk to it.

    `endpoint` is a URL for HTTP, host:port for gRPC. `plaintext` means no TLS. `headers` have
    lower-case names; they often hold credentials and are not shown. Files are paths of PEM files,
    empty where not given; without `certificate_file` the usual authorities are trusted.
    """

    protocol: Protocol
    endpoint: str
    plaintext: bool
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    timeout_s: float = _DEFAULT_TIMEOUT_MS / 1000
    compression: Compression = "gzip"
    certificate_file: str = ""
    client_key_file: str = ""
    client_certificate_file: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTelemetryOptions:
    """Where the agent's own metrics go, and how often."""

    destination: OtlpOptions
    interval_s: float


def metric_interval_s(environ: Mapping[str, str]) -> float:
    """Seconds between two exports of metrics, a minute by default.

    Raises:
        ConfigError: the variable does not hold a positive whole number of milliseconds.
    """
    text = environ.get(_INTERVAL, "").strip()
    return (_positive_ms(_Setting(_INTERVAL, text)) if text else _DEFAULT_INTERVAL_MS) / 1000


class _Setting(NamedTuple):
    """A value, and the variable that it came from."""

    variable: str
    value: str


class _Variables(NamedTuple):
    """Where settings are read from."""

    environ: Mapping[str, str]
    signal: Signal

    @property
    def prefix(self) -> str:
        """Of variables that concern the signal alone."""
        return f"{_BASE}{self.signal.name}_"

    def get(self, name: str) -> _Setting:
        """A setting; empty where there is none."""
        for prefix in (self.prefix, _BASE):
            value = self.environ.get(prefix + name, "").strip()
            if value:
                return _Setting(prefix + name, value)
        return _Setting(_BASE + name, "")


def otlp_options(environ: Mapping[str, str], signal: Signal = PROFILES) -> OtlpOptions:
    """Read the options for `signal` from `environ`.

    The timeout is in milliseconds, as the specification says of every duration in a variable
    (opentelemetry-python takes the same variable for seconds). Without a protocol it is gRPC,
    without an endpoint localhost.

    Raises:
        ConfigError: a value cannot be used; the message names its variable.
    """
    variables = _Variables(environ, signal)
    protocol = _protocol(variables)
    endpoint, plaintext = _endpoint(variables, protocol)
    key, certificate = variables.get("CLIENT_KEY"), variables.get("CLIENT_CERTIFICATE")
    if bool(key.value) != bool(certificate.value):
        given, missing = (key, certificate) if key.value else (certificate, key)
        raise ConfigError(
            f"{given.variable} is set, but {missing.variable} is not: both are needed"
        )
    return OtlpOptions(
        protocol=protocol,
        endpoint=endpoint,
        plaintext=plaintext,
        headers=_headers(variables),
        timeout_s=_timeout_ms(variables) / 1000,
        compression=_compression(variables),
        certificate_file=variables.get("CERTIFICATE").value,
        client_key_file=key.value,
        client_certificate_file=certificate.value,
    )


def _protocol(variables: _Variables) -> Protocol:
    variable, value = variables.get("PROTOCOL")
    if value in ("grpc", "http/protobuf"):
        return value  # type: ignore[return-value]
    if not value:
        return _DEFAULT_PROTOCOL
    raise ConfigError(f"{variable}={value!r} is not supported; use grpc or http/protobuf")


def _compression(variables: _Variables) -> Compression:
    variable, value = variables.get("COMPRESSION")
    if value in ("", "gzip"):
        return "gzip"
    if value == "none":
        return "none"
    raise ConfigError(f"{variable}={value!r} is not supported; use gzip or none")


def _timeout_ms(variables: _Variables) -> int:
    setting = variables.get("TIMEOUT")
    return _positive_ms(setting) if setting.value else _DEFAULT_TIMEOUT_MS


def _positive_ms(setting: _Setting) -> int:
    variable, value = setting
    if value.isascii() and value.isdecimal() and int(value) > 0:
        return int(value)
    raise ConfigError(f"{variable}={value!r} is not a positive whole number of milliseconds")


def _insecure(variables: _Variables) -> bool:
    variable, value = variables.get("INSECURE")
    if value.lower() in ("", "false"):
        return False
    if value.lower() == "true":
        return True
    raise ConfigError(f"{variable}={value!r} is neither true nor false")


def _headers(variables: _Variables) -> tuple[tuple[str, str], ...]:
    """`name=value` pairs, separated by commas, values percent-encoded. Errors do not show values."""
    variable, text = variables.get("HEADERS")
    headers: dict[str, str] = {}
    for number, pair in enumerate(filter(str.strip, text.split(",")), start=1):
        name, equals, encoded = pair.partition("=")
        name = name.strip().lower()
        value = unquote(encoded.strip())
        if not equals or not name or not _TOKEN.issuperset(name):
            raise ConfigError(f"{variable}: entry {number} is not of the form name=value")
        if not value.isprintable() or not value.isascii():
            raise ConfigError(
                f"{variable}: the value of {name} has characters that a header cannot have"
            )
        headers[name] = value
    return tuple(headers.items())


def _endpoint(variables: _Variables, protocol: Protocol) -> tuple[str, bool]:
    """Where to send to, and whether that is without TLS."""
    setting = variables.get("ENDPOINT")
    insecure = _insecure(variables)
    if protocol == "grpc":
        if not setting.value:
            return "localhost:4317", True
        return _grpc_endpoint(setting, variables, insecure=insecure)
    if not setting.value:
        return f"http://localhost:4318{variables.signal.http_path}", True
    return _http_endpoint(setting, variables)


def _grpc_endpoint(setting: _Setting, variables: _Variables, *, insecure: bool) -> tuple[str, bool]:
    """A scheme decides about TLS; only without one does `insecure`."""
    has_scheme = "://" in setting.value
    text = setting.value if has_scheme else f"//{setting.value}"
    url = _split(setting, variables, text)
    plaintext = url.scheme == "http" if has_scheme else insecure
    if url.port is None and plaintext:
        raise ConfigError(
            f"{setting.variable}={setting.value!r} has no port; receivers listen on 4317"
        )
    return url.netloc, plaintext


def _http_endpoint(setting: _Setting, variables: _Variables) -> tuple[str, bool]:
    """The URL of the signal is used as it is; a base URL gets the path of the signal."""
    url = _split(setting, variables, setting.value)
    is_base = not setting.variable.startswith(variables.prefix)
    path = url.path.rstrip("/") + variables.signal.http_path if is_base else url.path or "/"
    return url._replace(path=path).geturl(), url.scheme == "http"


def _split(setting: _Setting, variables: _Variables, text: str) -> SplitResult:
    try:
        url = urlsplit(text)
        port_is_valid = url.port != 0
    except ValueError:
        raise _bad_endpoint(setting, "is not a URL with a valid port") from None
    if url.scheme not in ("http", "https") and not text.startswith("//"):
        raise _bad_endpoint(setting, "must start with http:// or https://")
    if not url.hostname or not port_is_valid:
        raise _bad_endpoint(setting, "has no host or no valid port")
    if url.username is not None:
        raise ConfigError(
            f"{setting.variable} holds a user name; put credentials into {variables.prefix}HEADERS"
        )
    return url


def _bad_endpoint(setting: _Setting, problem: str) -> ConfigError:
    return ConfigError(f"{setting.variable}={setting.value!r} {problem}")
