"""The command: which checks run, how they are shown, and how it ends."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from otel_gpuflame.cli import doctor as command
from otel_gpuflame.doctor import Check, Status, run_checks
from otel_gpuflame.doctor import run as run_module
from otel_gpuflame.export import OtlpOptions
from tests.unit.doctor.hosts import healthy, refused


def test_a_host_has_at_least_15_checks_with_names_of_their_own(tmp_path: Path) -> None:
    """Scripts look for them by name."""
    names = [check.name for check in run_checks(healthy(tmp_path))]
    assert len(names) == len(set(names)) >= 15
    assert all(names)


def test_a_target_adds_its_own_checks(tmp_path: Path) -> None:
    """Under names that do not clash with the host's."""
    host = healthy(tmp_path, proc=Path("/proc"))
    names = [check.name for check in run_checks(host, pid=os.getpid())]
    assert len(names) == len(set(names))
    assert [name for name in names if name.startswith("target")] == [
        "target",
        "target's GPU libraries",
        "target's CUDA runtime",
        "target's GPU times",
        "target's interpreter",
        "target's spans",
        "target's service name",
    ]


def test_nothing_is_said_about_a_target_that_is_not_there(tmp_path: Path) -> None:
    """One failure, and not six."""
    checks = [c for c in run_checks(healthy(tmp_path), pid=7) if c.name.startswith("target")]
    assert [(check.name, check.status) for check in checks] == [("target", Status.FAIL)]


def test_a_check_that_breaks_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails with what went wrong, and the rest goes on."""

    def check_something(_host: object) -> Check:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(run_module, "OF_HOST", (check_something, *run_module.OF_HOST))
    first, *rest = run_checks(healthy(tmp_path))
    assert (first.name, first.status) == ("something", Status.FAIL)
    assert "ZeroDivisionError: oops" in first.detail
    assert len(rest) > 15


def test_the_programs_are_loaded_once(tmp_path: Path) -> None:
    """Two checks look at the result, and loading takes a moment."""
    host = healthy(tmp_path)
    loads: list[int] = []

    def load() -> Any:
        loads.append(1)
        return host.load_programs()

    list(run_checks(healthy(tmp_path / "again", load_programs=load)))
    assert loads == [1]


def invoke(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *arguments: str, **changes: Any
) -> tuple[Result, dict[str, Any]]:
    """Run the command on a made-up host; its result, and what it asked for."""
    asked: dict[str, Any] = {}

    def checks(**options: Any) -> list[Check]:
        asked.update(options)
        return list(run_checks(healthy(tmp_path, **changes)))

    monkeypatch.setattr(command, "run_checks", checks)
    return CliRunner().invoke(command.doctor, arguments), asked


def test_a_healthy_host_ends_with_0(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every check has a line."""
    result, _ = invoke(monkeypatch, tmp_path)
    assert result.exit_code == 0
    assert "CAP_CHECKPOINT_RESTORE" in result.output
    assert "→" not in result.output


def test_a_warning_ends_with_0(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Capture works; the remedy is shown."""
    result, _ = invoke(monkeypatch, tmp_path, open_mapped_file=refused())
    assert result.exit_code == 0
    assert "→ run as root, or give CAP_CHECKPOINT_RESTORE" in result.output


def test_a_failure_ends_with_1(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Scripts can rely on it."""
    result, _ = invoke(monkeypatch, tmp_path, create_privileged_map=refused())
    assert result.exit_code == 1
    assert "→ run as root, or give CAP_BPF" in result.output


@pytest.mark.parametrize("works", [True, False])
def test_json_has_the_same(works: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Name, status, detail and remedy of every check."""
    changes = {} if works else {"create_privileged_map": refused()}
    result, _ = invoke(monkeypatch, tmp_path, "--json", **changes)
    document = json.loads(result.output)
    assert document["ok"] is works
    assert result.exit_code == (0 if works else 1)
    assert {check["status"] for check in document["checks"]} >= {"ok", "skip"}
    assert all(set(c) == {"name", "status", "detail", "remedy"} for c in document["checks"])
    (bpf,) = [check for check in document["checks"] if check["name"] == "CAP_BPF"]
    assert bpf["status"] == ("ok" if works else "fail")


@pytest.fixture
def no_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment that names no receiver."""
    for name in [name for name in os.environ if name.startswith("OTEL_EXPORTER_OTLP_")]:
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("no_endpoint")
def test_without_an_endpoint_no_receiver_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A default would send to whatever listens on this host."""
    _, asked = invoke(monkeypatch, tmp_path)
    assert asked == {"pid": None, "receiver": None}


@pytest.mark.usefixtures("no_endpoint")
def test_pid_and_endpoint_are_passed_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As given."""
    arguments = ("--pid", "7", "--endpoint", "127.0.0.1:4318", "--protocol", "http/protobuf")
    _, asked = invoke(monkeypatch, tmp_path, *arguments)
    assert asked["pid"] == 7
    assert asked["receiver"].endpoint == "http://127.0.0.1:4318/v1development/profiles"


@pytest.mark.usefixtures("no_endpoint")
@pytest.mark.parametrize(
    "variable", ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_PROFILES_ENDPOINT"]
)
def test_the_environment_names_a_receiver_too(
    variable: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As for every other command that sends."""
    monkeypatch.setenv(variable, "http://127.0.0.1:4317")
    _, asked = invoke(monkeypatch, tmp_path)
    assert isinstance(asked["receiver"], OtlpOptions)
    assert asked["receiver"].endpoint == "127.0.0.1:4317"
