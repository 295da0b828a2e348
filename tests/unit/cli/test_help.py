"""Help texts, versions and wrong usage."""

from __future__ import annotations

import re

import click
import pytest

from otel_gpuflame import __version__
from otel_gpuflame.cli.main import cli
from otel_gpuflame.errors import (
    CaptureFileError,
    ConfigError,
    EncodeError,
    ExportError,
    OtelGpuflameError,
    SourceUnavailable,
    TargetError,
)
from tests.unit.cli.captures import run, run_program

COMMANDS = sorted(cli.commands)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples_that_parse(command: str) -> None:
    """The help has examples, each on a line of its own, and each uses options that exist."""
    result = run(command, "--help")
    assert result.exit_code == 0
    examples = re.findall(
        rf"^ *(?:sudo )?otel-gpuflame {command}(.*)$", result.output, re.MULTILINE
    )
    assert "Examples:" in result.output
    assert examples
    options = {o for p in cli.commands[command].params for o in (*p.opts, *p.secondary_opts)}
    for example in examples:
        ours = example.split(" -- ")[0].split(" | ")[0]
        used = set(re.findall(r"(?<=\s)--?[a-z][a-z0-9-]*", ours))
        assert used <= options, example


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_explained(command: str) -> None:
    """No option is without a help text."""
    for parameter in cli.commands[command].params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name


def test_the_group_lists_its_commands_and_exit_codes() -> None:
    """One look at the help tells what there is, and what exit codes mean."""
    result = run("-h")
    assert result.exit_code == 0
    for command in COMMANDS:
        assert re.search(rf"^  {command} +\S", result.output, re.MULTILINE), command
    assert "Exit codes: 0 fine, 1 failed, 2 wrong usage, 3 this host cannot do it" in result.output


def test_version() -> None:
    """The version is that of the package."""
    assert run("--version").output == f"otel-gpuflame, version {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["frobnicate"], "No such command 'frobnicate'"),
        (["replay"], "Missing argument 'CAPTURE'"),
        (["replay", "a", "--frobnicate"], "No such option"),
        (["replay", "a", "--sample-type", "gpu_stall"], "'gpu_wait', 'gpu_time', 'gpu_queue'"),
        (["replay", "a", "--span-id", "xyz"], "16 hexadecimal digits"),
        (["replay", "a", "--span-id", "00f067aa0ba902"], "16 hexadecimal digits"),
        (["replay", "a", "--span-id", "00f067aa0ba902b7ff"], "16 hexadecimal digits"),
        (["replay", "a", "--span-id", "0000000000000000"], "not all zero"),
        (["replay", "a", "--span-link", "parent"], "'local_root', 'active'"),
        (["replay", "a", "--protocol", "carrier-pigeon"], "'grpc', 'http/protobuf'"),
        (["replay", "a", "--top", "0"], "0 is not in the range x>=1"),
        (["replay", "/"], "is a directory"),
        (["record"], "give either a command after `--`, or --pid"),
        (["record", "--pid", "1", "--", "true"], "give either a command after `--`, or --pid"),
        (["record", "--quiet", "--", "true"], "--quiet without --output would do nothing"),
        (
            ["record", "--no-driver", "--device", "/dev/null", "--", "true"],
            "--device with --no-driver would do nothing",
        ),
        (
            ["record", "--device", "/dev/null", "--loader", "bcc", "--", "true"],
            "--device needs --loader libbpf",
        ),
        (
            ["record", "--quiet", "-o", "o", "-n", "5", "--", "true"],
            "--top with --quiet would do nothing: leave out one of them",
        ),
        (["top", "--json", "-n", "3"], "--rows with --json would do nothing"),
        (["doctor", "--protocol", "grpc"], "give --endpoint, or set OTEL_EXPORTER_OTLP_ENDPOINT"),
        (
            ["replay", "a", "--sample-type", "gpu_wait"],
            "--sample-type without --folded would do nothing: give --folded too, or leave out",
        ),
        (["replay", "a", "--protocol", "grpc"], "--protocol without --endpoint would do nothing"),
        (["replay", "a", "--keep-times"], "--keep-times without --endpoint would do nothing"),
        (
            ["replay", "a", "--span-link", "active", "--folded", "-"],
            "--span-link without --span-id or --pprof or --html or --endpoint or --batch-split would do nothing",
        ),
        (["record", "--pid", "0"], "0 is not in the range x>=1"),
        (["record", "--duration", "0", "--", "true"], "0.0 is not in the range x>0"),
        (["record", "--library", "/nonexistent.so", "--", "true"], "does not exist"),
        (["demo", "-n", "few"], "'few' is not a valid integer"),
    ],
)
def test_wrong_usage_is_told_and_ends_with_2(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistake on the command line has exit code 2 and a message that names it."""
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_PROFILES_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not result.stdout


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (ConfigError, 2),
        (SourceUnavailable, 3),
        (CaptureFileError, 1),
        (TargetError, 1),
        (EncodeError, 1),
        (ExportError, 1),
        (OtelGpuflameError, 1),
    ],
)
def test_each_error_is_one_line_and_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, error: type[OtelGpuflameError], exit_code: int
) -> None:
    """Our own errors show their message, without a traceback; only a host that cannot capture gives 3."""

    def fail(**_: object) -> None:
        raise error("this is the matter")

    monkeypatch.setattr(cli.commands["demo"], "callback", fail)
    result = run("demo")
    assert (result.exit_code, result.stderr) == (exit_code, "error: this is the matter\n")


def test_the_module_is_the_program() -> None:
    """`python -m otel_gpuflame` calls itself by the name of the script."""
    result = run_program("--help")
    assert result.returncode == 0
    assert result.stdout.startswith(b"Usage: otel-gpuflame ")
    assert run_program("replay").returncode == 2
