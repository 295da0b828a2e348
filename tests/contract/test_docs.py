"""What the documents say is so: links lead somewhere, and the README shows what the demo prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from otel_gpuflame.capture.bpf.backend import NOT_PERMITTED
from otel_gpuflame.cli.agent import agent
from otel_gpuflame.cli.record import record
from tests.contract.test_deploy_systemd import CAPABILITIES

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("collector-config/**/*.md")]
)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files(document: Path) -> None:
    """Every relative link of a document names a file or directory of the repository."""
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text())
    missing = [
        target
        for target in targets
        if "://" not in target and not (document.parent / target).exists()
    ]
    assert not missing


def without_size(line: str) -> str:
    """Sizes of compressed files differ a little between versions of zlib."""
    return re.sub(r"(?<=: )[\d.]+ [KM]iB", "# KiB", line).rstrip()


def test_readme_shows_what_the_demo_prints(tmp_path: Path) -> None:
    """The first screen of the README is the output of the demo, line by line."""
    done = subprocess.run(
        [sys.executable, "-m", "otel_gpuflame", "demo"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=True,
    )
    printed = [without_size(line) for line in done.stdout.strip().splitlines()]
    readme = [without_size(line) for line in (ROOT / "README.md").read_text().splitlines()]
    shown = [line.removeprefix("    ") for line in readme if line.startswith("    ") or not line]
    start = shown.index(printed[0])
    assert shown[start : start + len(printed)] == printed


def test_commands_of_the_readme_exist() -> None:
    """Each `otel-gpuflame COMMAND` that the README names is one."""
    named = set(re.findall(r"otel-gpuflame ([a-z]+)", (ROOT / "README.md").read_text()))
    done = subprocess.run(
        [sys.executable, "-m", "otel_gpuflame", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    commands = set(re.findall(r"^  ([a-z]+) ", done.stdout, flags=re.MULTILINE))
    assert named <= commands


@pytest.mark.parametrize("command", [record, agent], ids=lambda command: str(command.name))
def test_help_names_the_rights_that_the_unit_gives(command: click.Command) -> None:
    """All of them and no others, as the error does."""
    assert rights_in(command.help or "") == CAPABILITIES
    assert rights_in(NOT_PERMITTED) == CAPABILITIES


@pytest.mark.parametrize(
    ("document", "begin", "end"),
    [
        ("docs/troubleshooting.md", "**`loading BPF programs is not permitted`.**", "\n\n"),
        ("docs/decisions/0006-agent.md", "## Rights", "\n## "),
        ("collector-config/README.md", "## The agent as a service", "\n## "),
    ],
)
def test_documents_name_the_rights_that_the_unit_gives(document: str, begin: str, end: str) -> None:
    """All of them, and CAP_SYS_ADMIN, which hosts without a mounted tracefs need besides."""
    passage = (ROOT / document).read_text().partition(begin)[2].partition(end)[0]
    assert rights_in(passage) == {*CAPABILITIES, "CAP_SYS_ADMIN"}


def rights_in(text: str) -> set[str]:
    """The capabilities that it names."""
    return set(re.findall(r"CAP_[A-Z_]+", text))
