"""Command line: `otel-gpuflame record | replay | demo | doctor`."""

from otel_gpuflame.cli.main import main

__all__ = ["main"]
