"""Edges and steps of a made-up program, of which everything is known, give the report that is true of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from otel_gpuflame.capture.budget import MIN_STRATUM_NS, STALL_SHARE
from otel_gpuflame.capture.cupti.cost import SWITCH_NS as RECORD_SWITCH_NS
from tests.benchmarks.overhead_edges import parse, samples_of
from tests.benchmarks.overhead_report import Run, evaluate, in_words
from tests.benchmarks.step_log import Steps, StepWriter, read_steps

MS = 1_000_000
NS = 1_000_000_000
PID = 77
STEP_NS = 100_000.0
Truth = dict[str, float]
TRUTH: Truth = {"rare": 0.003, "window": 0.2, "record": 0.3}
SYSTEM_CALLS = 0.0003
SWITCH_NS = 40 * MS
STALL_NS = 12 * MS


class MadeUp:
    """A program that makes even steps, slower by what a state costs and by a stall after each switch."""

    def __init__(self) -> None:
        self.now_ns = 1_000 * NS
        self.times_ns = [float(self.now_ns)]
        self.edges: list[dict[str, Any]] = [{"kind": "options", "pid": PID}]
        self.hits = 0

    def run(self, length_ns: int, share: float = 0.0, stall_ns: int = 0) -> tuple[int, int]:
        """A stretch of time that begins with a stall."""
        start_ns, self.now_ns = self.now_ns, self.now_ns + length_ns
        step_ns = STEP_NS / (1 - share)
        first = max(self.times_ns[-1], start_ns + stall_ns) + step_ns
        self.times_ns += np.arange(first, self.now_ns, step_ns).tolist()
        return start_ns, self.now_ns

    def block(self, part: str, unit: int, role: str, length_ns: int, share: float) -> None:
        """A block, told."""
        before, self.hits = self.hits, self.hits + (length_ns // 1000 if role == "on" else 0)
        start_ns, end_ns = self.run(length_ns, share)
        costs = {
            "costs_before": {PID: (before, 2 * before)},
            "costs": {PID: (self.hits, 2 * self.hits)},
        }
        self._tell("block", (part, unit, role), (start_ns, end_ns), **costs)

    def switch(self, part: str, unit: int, role: str, share: float) -> None:
        """A switch that stalls the program, told."""
        start_ns, end_ns = self.run(SWITCH_NS, stall_ns=STALL_NS)
        _, guard_end_ns = self.run(20 * MS, share)
        self._tell("switch", (part, unit, role), (start_ns, end_ns), guard_end_ns=guard_end_ns)

    def direct(self, share: float) -> None:
        """Two cycles of the agent, which chooses a duty of 2 %."""
        for role in ("off_before", "on", "off_after", "on", "off_after"):
            start_ns, end_ns = self.run(8 * NS, share if role == "on" else 0.0)
            if role == "on":
                last = {"duty": 0.02, "switch_ns": 2.0 * SWITCH_NS, "overhead": 0.009}
                first = {**last, "duty": 0.05}
                never = {**first, "switch_ns": 0.0}
                for cycle, since, choice in (
                    *((0, since, first) for since in (1, 5, 6)),
                    (0, 7, last),
                    *((1, since, never) for since in (5, 9)),
                ):
                    place = {"kind": "choice", "cycle": cycle, "since_ns": since * NS}
                    self.edges.append({**place, **choice})
            self._tell("block", ("direct", 0, role), (start_ns, end_ns), cpu_s=0.4)

    def _tell(
        self, kind: str, place: tuple[str, int, str], times: tuple[int, int], **more: Any
    ) -> None:
        part, unit, role = place
        facts = {"kind": kind, "part": part, "unit": unit, "role": role}
        self.edges.append({**facts, "start_ns": times[0], "end_ns": times[1], **more})

    @property
    def lines(self) -> list[str]:
        """As the host writes them."""
        return [json.dumps(edge) for edge in self.edges]

    def run_of(self) -> Run:
        """All of it."""
        return Run(parse(self.lines), self.steps)

    @property
    def steps(self) -> Steps:
        """As the program logs them."""
        return Steps(np.array(self.times_ns).astype(np.int64))


def measured(truth: Truth, units: int = 8) -> MadeUp:
    """All parts of a measurement."""
    program = MadeUp()
    program.direct(0.01)
    added_ns = [SYSTEM_CALLS * NS / 1_000 + each for each in (-20, -10, 0, 10, 20)]
    program.edges.append({"kind": "system_calls", "per_s": 1_000.0, "added_ns": added_ns})
    for part, share in truth.items():
        for unit in range(units):
            program.block(part, unit, "off_before", 250 * MS, 0.0)
            program.switch(part, unit, "on", share)
            program.block(part, unit, "on", 500 * MS, share)
            program.switch(part, unit, "off", 0.0)
            program.block(part, unit, "off_after", 250 * MS, 0.0)
    program.run(NS)
    return program


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    """Of the made-up program."""
    program = measured(TRUTH)
    return evaluate("made up", [program.run_of()])


@pytest.mark.parametrize("part", TRUTH)
def test_each_part_is_found(report: dict[str, Any], part: str) -> None:
    """Throughput of a part is what it was made to be, and equal states show no difference."""
    assert report["parts"][part]["value"] == pytest.approx(1 - TRUTH[part], abs=5e-4)
    assert report["parts"][part]["null"]["value"] == pytest.approx(1, abs=5e-4)


def test_switching_is_the_stall_and_not_what_the_window_costs(report: dict[str, Any]) -> None:
    """Two stalls of 12 ms a window are found, whatever the program loses in the window."""
    assert report["parts"]["switching_ms"]["value"] == pytest.approx(2 * STALL_NS / MS, abs=0.3)


def test_choice_is_the_last_one_of_a_cycle(report: dict[str, Any]) -> None:
    """Duties of strata that only measure are left out, and a cycle in which none was chosen."""
    assert report["choice"] == {"duty": 0.02, "switch_ns": 2.0 * SWITCH_NS, "estimate": 0.009}
    assert report["agent_cpu_cores"] == pytest.approx(0.05)


def test_steady_state_is_the_sum_of_its_parts(report: dict[str, Any]) -> None:
    """1 - (rare + system calls + duty × window + stall ÷ stratum); what is above the budget does not pass."""
    stratum_ns = max(STALL_SHARE * 2 * SWITCH_NS / (0.25 * 0.01), MIN_STRATUM_NS)
    loss = TRUTH["rare"] + SYSTEM_CALLS + 0.02 * TRUTH["window"] + 2 * STALL_NS / stratum_ns
    assert report["steady"]["stratum_s"] == pytest.approx(stratum_ns / NS)
    for name in ("rate", "typical"):
        assert report["steady"][name]["value"] == pytest.approx(1 - loss, abs=6e-4)
        assert report["steady"][name]["passes"]
    dear = measured({**TRUTH, "rare": 0.02})
    steady = evaluate("dear", [dear.run_of()])["steady"]
    assert not steady["rate"]["passes"]
    assert not steady["typical"]["passes"]


def test_cycles_of_the_agent_itself_are_compared_with_their_neighbours(
    report: dict[str, Any],
) -> None:
    """Two cycles in which 1 % is lost are two units of 0.99."""
    assert report["parts"]["direct_settled"]["ratios"] == pytest.approx([0.99, 0.99], abs=5e-4)


def test_hits_of_the_program_are_told_by_state(report: dict[str, Any]) -> None:
    """A hit each microsecond while on, with programs of 2 ns, and none while off."""
    hits = report["parts"]["window"]["hits"]
    assert hits == {"on": {"per_s": pytest.approx(1e6), "program_ns": pytest.approx(2)}}


def test_report_is_told_in_words(report: dict[str, Any]) -> None:
    """The verdict and the duty are in the text."""
    text = in_words(report)
    assert "at duty 0.0200" in text
    assert "passes at 0.99" in text


def test_measurement_cut_short_says_what_it_has() -> None:
    """Without windows there is no steady state, but the part that was measured is reported."""
    program = measured({"rare": 0.003})
    edges = parse([*program.lines, '{"kind": "bl'])
    report = evaluate("cut", [Run(edges, program.steps)])
    assert report["steady"] is None
    assert report["parts"]["rare"]["units"] == 8
    assert "too little was measured" in in_words(report)


def test_runs_of_one_program_are_put_together() -> None:
    """Two runs of other processes give their units together."""
    runs = [measured(TRUTH).run_of() for _ in range(2)]
    report = evaluate("twice", runs)
    assert report["parts"]["rare"]["units"] == 16
    assert report["parts"]["direct_whole"]["units"] == 4
    assert report["parts"]["window"]["hits"]["on"]["per_s"] == pytest.approx(1e6)


def test_windows_with_executions_are_added_to_what_is_always_on_of_all_runs() -> None:
    """A long run without executions, and a short one with them, whose windows cost more and whose strata are longer."""
    without = measured(TRUTH, units=16).run_of()
    program = measured({**TRUTH, "window": 0.4})
    program.edges[0]["gpu"] = True
    report = evaluate("both", [without, program.run_of()])
    assert report["executions"]
    assert report["parts"]["rare"]["units"] == 24
    assert report["parts"]["window"]["units"] == 8
    assert report["parts"]["window"]["value"] == pytest.approx(0.6, abs=5e-4)
    assert report["parts"]["direct_whole"]["units"] == 2
    stratum_ns = (STALL_SHARE * 2 * SWITCH_NS + RECORD_SWITCH_NS) / (0.25 * 0.01)
    assert report["steady"]["stratum_s"] == pytest.approx(max(stratum_ns, MIN_STRATUM_NS) / NS)
    assert "with executions at duty" in in_words(report)
    assert not evaluate("without", [without])["executions"]


def test_host_that_measured_nothing_is_an_error_in_words() -> None:
    """No edges: the report says so instead of failing."""
    report = evaluate("none", [Run([], Steps(np.array([1, 2], np.int64)))])
    assert in_words(report) == "none: the host has measured nothing"


def test_units_outside_of_the_log_are_left_out() -> None:
    """A program that ended during the measurement gives the units before its end."""
    program = measured({"rare": 0.003})
    cut = Steps(program.steps.times_ns[: len(program.times_ns) * 5 // 6])
    assert 0 < len(samples_of("rare", parse(program.lines), cut).losses) < 8


def test_log_holds_one_time_a_step(tmp_path: Path) -> None:
    """What a program writes is read back while it still has the file open."""
    writer = StepWriter(tmp_path / "log")
    for _ in range(3):
        writer.done()
    times_ns = read_steps(tmp_path / "log").times_ns
    assert len(times_ns) == 3
    assert (np.diff(times_ns) >= 0).all()


def test_steps_at_the_edges_count_in_part() -> None:
    """Half a step is half a step, and outside of the log nothing is known."""
    steps = Steps(np.array([0, 100, 200], np.int64))
    assert steps.between(50, 175) == pytest.approx(1.25)
    with pytest.raises(ValueError, match="no steps then"):
        steps.between(50, 201)


def test_yardsticks_of_a_program_are_read_and_compared(tmp_path: Path) -> None:
    """A yardstick that takes a tenth longer in the on block is a loss of speed of a tenth, in the file and after it."""
    writer = StepWriter(tmp_path / "steps")
    for _ in range(3):
        writer.measured(4_000)
        writer.measured(6_000)
        writer.done()
    logged = read_steps(tmp_path / "steps")
    assert logged.yardsticks_ns.tolist() == [10_000] * 3
    program = measured({"rare": 0.01})
    times_ns = program.steps.times_ns
    on = [edge for edge in program.edges if edge["kind"] == "block" and edge["role"] == "on"]
    yardsticks_ns = np.full_like(times_ns, 10_000)
    for edge in on:
        inside = (times_ns >= edge["start_ns"]) & (times_ns < edge["end_ns"])
        yardsticks_ns[inside] = 11_000
    found = samples_of("rare", program.edges, Steps(times_ns, yardsticks_ns))
    assert np.exp(found.yardstick) == pytest.approx(1.1, abs=1e-6)
    assert len(found.yardstick) == len(found.losses)
    without = samples_of("rare", program.edges, program.steps)
    assert not without.yardstick
    # Of a step of 100 µs the yardstick takes 10 that no probe touches: the others lose a ninth more.
    assert found.losses == pytest.approx(np.array(without.losses) / 0.9, rel=0.01)
