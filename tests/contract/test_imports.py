"""The walls of the architecture hold, and a hole in any of them would be noticed."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "otel_gpuflame"


def lint(directory: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter on the package in `directory`."""
    program = (
        "import sys; from importlinter.cli import lint_imports_command; lint_imports_command()"
    )
    # -P: the directory comes from PYTHONPATH alone; an installed package must not be checked instead.
    return subprocess.run(
        [sys.executable, "-P", "-c", program, "--no-cache"],
        cwd=directory,
        env={"PYTHONPATH": str(directory), "PATH": "", "COLUMNS": "200", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the package and its contracts, to plant violations in."""
    ignore = shutil.ignore_patterns("__pycache__", "_artifacts")
    shutil.copytree(PACKAGE, tmp_path / "otel_gpuflame", ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_all_contracts_are_kept() -> None:
    """The package of this checkout keeps every contract of pyproject.toml."""
    result = lint(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"Contracts: [1-9]\d* kept, 0 broken", result.stdout)


@pytest.mark.parametrize(
    ("module", "statement", "contract"),
    [
        ("events/apis.py", "from otel_gpuflame.correlate import waits", "A stage imports only"),
        ("correlate/waits.py", "from otel_gpuflame.profile import model", "A stage imports only"),
        ("profile/model.py", "from otel_gpuflame.encode import rows", "A stage imports only"),
        ("encode/rows.py", "from otel_gpuflame.export import files", "A stage imports only"),
        ("encode/rows.py", "from otel_gpuflame.symbolize import raw", "A stage imports only"),
        ("export/files.py", "from otel_gpuflame.capture import names", "A stage imports only"),
        ("export/files.py", "import otel_gpuflame.pipeline", "A stage imports only"),
        ("pipeline/__init__.py", "import otel_gpuflame.cli.tables", "A stage imports only"),
        ("errors.py", "from otel_gpuflame.events import frames", "A stage imports only"),
        ("capture/names.py", "from otel_gpuflame.profile import model", "Capture knows events"),
        ("capture/names.py", "from otel_gpuflame.encode import rows", "Capture knows events"),
        ("capture/names.py", "from otel_gpuflame.export import files", "Capture knows events"),
        ("symbolize/raw.py", "from otel_gpuflame.correlate import waits", "Symbolisation knows"),
        ("export/files.py", "from otel_gpuflame.correlate import waits", "Only the pipeline"),
        ("events/apis.py", "import threading", "The core is pure"),
        ("events/apis.py", "import os.path", "The core is pure"),
        ("correlate/waits.py", "import time", "The core is pure"),
        ("correlate/waits.py", "import ctypes", "The core is pure"),
        ("profile/model.py", "import socket", "The core is pure"),
        ("profile/model.py", "from google.protobuf import message", "The core is pure"),
        ("profile/model.py", "import subprocess", "The core is pure"),
        ("encode/rows.py", "import subprocess", "Encoders are pure"),
        ("encode/rows.py", "from threading import Lock", "Encoders are pure"),
        ("encode/rows.py", "import grpc", "Encoders are pure"),
        ("instrument/hook.py", "from otel_gpuflame.events import wire", "Instrument is an island"),
        ("instrument/hook.py", "import numpy", "Instrument is an island"),
        ("capture/names.py", "import otel_gpuflame.instrument", "Nobody imports instrument"),
    ],
)
def test_a_hole_in_a_wall_is_found(
    checkout: Path, module: str, statement: str, contract: str
) -> None:
    """An import that the architecture forbids breaks the contract that forbids it."""
    path = checkout / "otel_gpuflame" / module
    path.write_text(f"{path.read_text()}\n{statement}\n")
    result = lint(checkout)
    assert result.returncode == 1, result.stdout + result.stderr
    assert re.search(rf"^{contract}.* BROKEN$", result.stdout, re.MULTILINE), result.stdout


def test_a_new_stage_needs_a_place_in_the_layers(checkout: Path) -> None:
    """A package that no layer mentions breaks the contract, so that nothing grows outside the walls."""
    stage = checkout / "otel_gpuflame" / "newstage"
    stage.mkdir()
    (stage / "__init__.py").write_text('"""New."""\n')
    result = lint(checkout)
    assert result.returncode == 1
    assert "newstage" in result.stdout + result.stderr


def imported(directory: Path) -> set[str]:
    """Full names of all modules imported from outside the package, at whatever place in the code."""
    found = set()
    for path in directory.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module)
    return {name for name in found if not name.startswith("otel_gpuflame")}


@pytest.mark.parametrize(
    ("package", "allowed"),
    [
        ("encode", r"opentelemetry\.proto\."),
        ("instrument", r"opentelemetry(\.(context|trace|util)(\..*)?)?$"),
    ],
)
def test_opentelemetry_is_used_only_in_part(package: str, allowed: str) -> None:
    """Encoders use its messages only, instrument its API only: no SDK, no exporter.

    import-linter sees the packages called opentelemetry as one.
    """
    used = {name for name in imported(PACKAGE / package) if name.split(".")[0] == "opentelemetry"}
    assert used
    assert {name for name in used if not re.match(allowed, name)} == set()


def test_the_package_itself_imports_nothing() -> None:
    """`import otel_gpuflame` loads no module but itself, since applications do it."""
    program = (
        "import sys; before = set(sys.modules); import otel_gpuflame; "
        "print(*sorted(set(sys.modules) - before))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == ["otel_gpuflame"]
