"""`docs/findings.md` says what rules do and what the JSON holds."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from otel_gpuflame.events.frames import Frame, FrameKind
from otel_gpuflame.findings import back_pressure, copies, idle, low_occupancy, synchronise
from otel_gpuflame.findings.as_json import SCHEMA_VERSION, document
from otel_gpuflame.findings.find import RULES
from otel_gpuflame.findings.model import Confidence, Finding, Rule
from otel_gpuflame.profile.model import Window
from tests.unit.findings import programs

DOCUMENT = (Path(__file__).parents[3] / "docs" / "findings.md").read_text("utf-8")
SECTIONS = dict(re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", DOCUMENT, re.MULTILINE | re.DOTALL))
PROGRAMS = (
    programs.item_a_step,
    programs.unpinned_copy,
    programs.launch_bound,
    programs.sleeping,
    programs.back_pressure,
    programs.low_occupancy,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_every_rule_has_a_section_and_a_row(rule: Rule) -> None:
    """In the order in which rules are asked, under their names."""
    assert f"| [`{rule.id}`](#{rule.id}) | {rule.title} |" in DOCUMENT
    for what in ("When", "Lost", "Evidence", "Confidence"):
        assert f"* **{what}.**" in SECTIONS[rule.id]
    assert list(SECTIONS)[: len(RULES)] == [each.id for each in RULES]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_all_evidence_is_described(program: programs.Scenario) -> None:
    """Whoever reads a number finds what it is."""
    (finding,) = program().findings()
    for name, _ in finding.evidence:
        assert f"`{name}`" in SECTIONS[finding.rule]


@pytest.mark.parametrize(
    ("rule", "texts"),
    [
        (
            "synchronise-in-loop",
            (
                f"At least {synchronise._MIN_WAITS} waits",
                f"{100 * synchronise._MIN_SHARE:g} % of the window",
                f"at least {synchronise._MIN_PER_SECOND} a second",
                f"at least {synchronise._MIN_PER_SECOND_ALONE} a second",
                f"{synchronise._MAX_LAUNCHES_BETWEEN:,} launches",
                f"{copies.SCALAR_BYTES:,} bytes",
                f"idle {100 * synchronise._IDLE_SHARE:g} % of their time",
            ),
        ),
        (
            "unpinned-copy",
            (
                f"At least {copies._MIN_COPIES} copies",
                f"{100 * copies._MIN_SHARE:g} % of the window",
                f"{copies.SCALAR_BYTES:,} bytes",
            ),
        ),
        (
            "launch-bound",
            (
                f"At least {idle._MIN_LAUNCHES:,} launches",
                f"{idle._MAX_MEAN_EXECUTION_NS // 1000} µs",
                f"idle {100 * idle._MIN_LAUNCHING_SHARE:g} % of their time",
            ),
        ),
        ("input-bound", (f"idle {100 * idle._MIN_INPUT_SHARE:g} % of their time",)),
        ("back-pressure-bound", (f"{100 * back_pressure._MIN_SHARE:g} % of the window",)),
        (
            "low-occupancy",
            (
                f"{100 * low_occupancy._MIN_SHARE:g} % of all execution time",
                f"less than 1/{1 / low_occupancy._SMALL_GRID:g} of",
                f"less than 1/{1 / low_occupancy._FEW_WARPS:g} for",
            ),
        ),
    ],
)
def test_documented_limits_are_those_of_the_code(rule: str, texts: tuple[str, ...]) -> None:
    """Numbers do not drift apart."""
    for text in texts:
        assert text in " ".join(SECTIONS[rule].split()), text


def test_documented_keys_are_those_of_the_json() -> None:
    """The table of keys has each key that is written, and no other; so has the example."""
    finding = document(programs.item_a_step().findings())["findings"][0]
    rows = re.findall(r"^\| (`.*?) \|", SECTIONS["JSON"], re.MULTILINE)
    documented = {key for row in rows for key in re.findall(r"`(\w+)`", row)}
    assert documented == {"version", *finding}
    example = re.search(r"^    (\{.*?\]\})$", SECTIONS["JSON"], re.MULTILINE | re.DOTALL)
    assert example is not None
    shown = json.loads(example[1].replace("\n", " "))
    assert shown["version"] == SCHEMA_VERSION
    assert set(shown["findings"][0]) == set(finding)


def test_json_is_exact_and_serialisable() -> None:
    """Nanoseconds are integers; the target is named by what identifies it."""
    finding = Finding(
        rule="r",
        title="t",
        place=Frame(FrameKind.MARK, "[no Python frame]"),
        lost_ns=2**53 + 1,
        share=1 / 3,
        evidence=(("waits", 3), ("call", "cuX")),
        confidence=Confidence.LOW,
        remedy="m",
        resource=(("host.name", "h"), ("process.pid", 7), ("service.name", "s")),
        window=Window(10, 20),
    )
    assert finding.where == "[no Python frame]"
    assert json.loads(json.dumps(document([finding]))) == {
        "version": 1,
        "findings": [
            {
                "rule": "r",
                "title": "t",
                "function": "[no Python frame]",
                "file": "",
                "line": 0,
                "lost_ns": 2**53 + 1,
                "share_of_window": 0.333333,
                "confidence": "low",
                "evidence": {"waits": 3, "call": "cuX"},
                "remedy": "m",
                "target": {"service.name": "s", "process.pid": 7},
                "window": {"start_unix_ns": 10, "end_unix_ns": 20},
            }
        ],
    }
