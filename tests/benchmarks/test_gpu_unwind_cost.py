"""Figures of programs are of the time in between, and said in words."""

from __future__ import annotations

from tests.benchmarks.gpu_unwind_cost import in_words, since


def test_programs_that_did_not_run_are_left_out() -> None:
    """Runs a second and nanoseconds a run of what ran in between."""
    first = {"on_call": (100, 1_000), "on_exec": (3, 90)}
    last = {"on_call": (1_100, 2_001_000), "on_exec": (3, 90)}
    assert since(first, last, 2.0) == {"on_call": {"per_s": 500.0, "ns": 2_000.0}}


def test_what_was_found_is_told() -> None:
    """Tables, walks and programs of a recorder; memory and CPU of an agent."""
    recorder = {
        "mode": "remembered",
        "tables": 3,
        "tables_mb": 69.04,
        "tables_cpu_s": 0.47,
        "recorder_before_mb": 30.0,
        "recorder_mb": 90.0,
        "walks_per_s": {"remembered": 27_000.0},
        "programs": {"on_call": {"per_s": 27_000.0, "ns": 2_345.0}},
    }
    text = in_words(recorder)
    assert "3 tables, 69.0 MB in 0.47 s of CPU" in text
    assert "walks: remembered 27,000/s" in text
    assert "on_call: 27,000/s of 2,345 ns" in text
    told = {"mode": "agent", "agent_mb": 200.0, "children_mb": 50.0, "cpu_s": 8.0, "seconds": 20.0}
    assert in_words(told) == "agent: 200 MB, children 50 MB, 0.40 cores in 20 s"
