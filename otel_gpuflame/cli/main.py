"""The command group, and what all commands share: version, logging, errors and exit codes."""

from __future__ import annotations

from typing import Final

import click

from otel_gpuflame import __version__
from otel_gpuflame.cli.agent import agent
from otel_gpuflame.cli.demo import demo
from otel_gpuflame.cli.doctor import doctor
from otel_gpuflame.cli.env import env
from otel_gpuflame.cli.logs import set_up_logging
from otel_gpuflame.cli.record import record
from otel_gpuflame.cli.replay import replay
from otel_gpuflame.cli.top import top
from otel_gpuflame.errors import ConfigError, OtelGpuflameError, SourceUnavailable

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_UNAVAILABLE: Final = 3

_EXIT_CODES: Final[dict[type[OtelGpuflameError], int]] = {
    ConfigError: EXIT_USAGE,
    SourceUnavailable: EXIT_UNAVAILABLE,
}


class _Group(click.Group):
    """Turns our errors into one line and an exit code; anything else is a bug and shows its traceback."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except OtelGpuflameError as error:
            click.echo(f"error: {error}", err=True)
            ctx.exit(_EXIT_CODES.get(type(error), EXIT_FAILED))


@click.group(
    cls=_Group,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 fine, 1 failed, 2 wrong usage, 3 this host cannot do it; `record` ends as its command did, "
    "or with 1 if only its file has failed.",
)
@click.version_option(__version__, prog_name="otel-gpuflame")
@click.option("-v", "--verbose", count=True, help="More messages on standard error; twice for all.")
def cli(verbose: int) -> None:
    """GPU flame graphs for OpenTelemetry: which line of which request makes the GPU wait."""
    set_up_logging(verbose)


for command in (record, replay, agent, top, demo, doctor, env):
    cli.add_command(command)


def main() -> None:
    """Entry point of the console script."""
    cli(prog_name="otel-gpuflame")
