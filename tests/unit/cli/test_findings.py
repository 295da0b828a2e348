"""Findings on the command line: for people, and for machines."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from otel_gpuflame.cli.findings import print_findings
from otel_gpuflame.events.capture_writer import CaptureWriter
from tests.unit.cli.captures import run, run_program, write_capture
from tests.unit.findings import programs
from tests.unit.findings.test_correlated import sleeping

TRAIN = Path(__file__).parents[3] / "examples" / "captures" / "h200_train.ogfcap"
STEADY = TRAIN.with_name("h200_steady.ogfcap")


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hand-made recording."""
    return write_capture(tmp_path_factory.mktemp("capture") / "train.ogfcap")


def test_the_recorded_training_run_synchronises_in_its_loop() -> None:
    """What probes alone see is enough: the line that reads the loss after each step, and nothing else."""
    result = run_program("replay", TRAIN, "--findings", "--json")
    assert result.returncode == 0
    (finding,) = json.loads(result.stdout)["findings"]
    assert (finding["rule"], finding["line"]) == ("synchronise-in-loop", 117)
    assert (finding["evidence"]["waits"], finding["evidence"]["values_read"]) == (28, 28)
    assert finding["lost_ns"] == 1_492_211_493
    assert b"GPU waits by Python line" in result.stderr


def test_a_thread_that_hardly_waits_gives_no_finding() -> None:
    """The steady part of the same program reads its loss as often, and waits 0.5 % of the time."""
    result = run("replay", STEADY, "--findings")
    assert result.exit_code == 0
    assert result.stdout.endswith("Findings: none\n")


def test_executions_of_a_capture_are_shown(tmp_path: Path) -> None:
    """Tables, findings and the combined view of a file that holds both sides."""
    path = tmp_path / "sleeping.ogfcap"
    with path.open("wb") as file:
        writer = CaptureWriter(file, created={})
        for event in sleeping().events():
            writer.write(event)
        writer.close()
    result = run(
        "replay", path, "--findings", "--folded", tmp_path / "view", "--sample-type", "gpu"
    )
    assert result.exit_code == 0
    for text in (
        "GPU time by Python line",
        "gemm",
        "Why the GPU idled",
        "[off CPU]",
        "Input-bound",
    ):
        assert text in result.stdout, text
    stacks = (tmp_path / "view").read_text().splitlines()
    assert any(line.startswith("f10;cuLaunchKernel;[executing];gemm ") for line in stacks)
    assert any(line.startswith("f40;[idle];[off CPU] ") for line in stacks)
    assert (tmp_path / "view").read_text() == run(
        "replay", path, "--folded", "-", "--sample-type", "gpu"
    ).stdout


def test_findings_come_after_the_tables() -> None:
    """Where, how much, why, and what helps; only if asked for."""
    lines = run("replay", TRAIN, "--findings", "-n", "1").stdout.splitlines()
    begin = lines.index("Findings")
    assert begin > next(n for n, line in enumerate(lines) if "calls seen" in line)
    text = " ".join(" ".join(lines[begin:]).split())
    assert "% of the window, confidence" in text
    assert "log_loss /srv/train/train_step.py:117 waits 28, mean wait 53.3 ms" in text
    assert "Read results of the device" in text
    assert "Findings" not in run("replay", TRAIN).stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--json"], "--json is about findings: give --findings too"),
        (["--findings", "--json", "--folded", "-"], "both write to standard output"),
        (["--findings", "--span-id", "3132333435363738"], "are about whole programs"),
    ],
)
def test_contradictions_are_told(capture: Path, arguments: list[str], message: str) -> None:
    """Before anything is read."""
    result = run("replay", capture, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_numbers_are_readable() -> None:
    """Units come from the names of the evidence; no number and no name is lost."""
    text = io.StringIO()
    console = Console(file=text, width=400, highlight=False)
    print_findings(console, programs.unpinned_copy().findings())
    lines = [line.strip() for line in text.getvalue().splitlines()]
    assert lines[2] == (
        "Unpinned or synchronous copy: 2.02 s, 20.2% of the window, confidence high"
    )
    assert lines[3] == "f30  /srv/app/train.py:30"
    assert lines[4] == (
        "copies 1,000, mean copy 8.00 MiB, copies that waited 1,000, synchronises 1,000, "
        "bytes per second waited 4,152,776,238, memory pageable"
    )


def test_a_number_by_something_has_its_unit_too() -> None:
    """`mean_idle_ns_per_launch` is a time, whatever it is counted by."""
    text = io.StringIO()
    console = Console(file=text, width=400, highlight=False)
    print_findings(console, programs.launch_bound().findings())
    assert re.search(r"mean idle per launch [\d.]+ [µm]s,", text.getvalue())
