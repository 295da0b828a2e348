"""Command line: `otel-gpuflame record | replay | agent | top | demo | doctor`."""

import sys

try:
    from otel_gpuflame.cli.main import main
except ModuleNotFoundError as error:
    # The base install, for application images, has the script too, but not what the agent needs.
    if (error.name or "").partition(".")[0] == "otel_gpuflame":
        raise
    sys.exit(
        f"error: {error.name} is not installed, which the command line needs: "
        "pip install 'otel-gpuflame[agent]'"
    )

__all__ = ["main"]
