"""What every request carries beside the profiles."""

from __future__ import annotations

from typing import Final

from otel_gpuflame import __version__
from otel_gpuflame.encode.otlp import DEVELOPMENT_VERSION
from otel_gpuflame.export.options import OtlpOptions

USER_AGENT: Final = f"otel-gpuflame/{__version__}"
VERSION_HEADER: Final = "otlp-profiles-development-version"


def request_headers(options: OtlpOptions) -> tuple[tuple[str, str], ...]:
    """Headers of `options` and the schema version, of which receivers demand exactly one value."""
    own = tuple((name, value) for name, value in options.headers if name != VERSION_HEADER)
    return (*own, (VERSION_HEADER, DEVELOPMENT_VERSION))
