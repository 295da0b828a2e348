"""The state machine that opens and closes windows, against probes that only keep books."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

import pytest

from otel_gpuflame.capture.budget import AIM, STALL_SHARE, UNSEEN
from otel_gpuflame.capture.windows import BudgetOptions, WindowControl
from otel_gpuflame.events.records import SamplingWindow

MS = 1_000_000
SECOND = 1_000 * MS
PPB = 1_000_000_000


@dataclass
class Machine:
    """Probes whose hits follow from the time that they were attached, and the clock that all of this runs by."""

    rate_windowed: float = 20_000.0
    rate_always: float = 100.0
    program_ns: float = 3_000.0
    switch_ns: int = 20 * MS
    record_rate: float = 0.0
    record_ns: float = 1_000.0
    record_switch: int = 0
    record_takes_ns: int = 0
    records: float = 0.0
    ends: list[int | None] = field(default_factory=list)
    recorded: list[int] = field(default_factory=list)
    now_ns: int = 1_000 * SECOND
    is_open: bool = False
    opened: list[int] = field(default_factory=list)
    closed: list[int] = field(default_factory=list)
    hits: float = 0.0
    rate_waits: float = 0.0
    waits_are_windowed: bool = False
    rate_graphs: float = 0.0
    graph_launches_are_windowed: bool = False
    lead_ns: int = 0
    limit_per_s: float = float("inf")
    arranged: list[tuple[int, bool]] = field(default_factory=list)

    @property
    def need_windows(self) -> bool:
        return self.waits_are_windowed or self.graph_launches_are_windowed

    def choose_always_on(self, now_ns: int) -> bool:
        assert not self.is_open
        assert now_ns <= self.now_ns
        wanted = self.rate_waits > self.limit_per_s
        graphs_wanted = self.rate_graphs > self.limit_per_s
        changes = wanted is not self.waits_are_windowed
        if not changes and graphs_wanted is self.graph_launches_are_windowed:
            return False
        self.now_ns += self.switch_ns
        self.waits_are_windowed = wanted
        self.graph_launches_are_windowed = graphs_wanted
        if changes:
            self.arranged.append((self.now_ns, wanted))
        return True

    def clock(self) -> int:
        return self.now_ns

    def advance(self, by_ns: int) -> None:
        rate = self.rate_always + (self.rate_windowed if self.is_open else 0.0)
        rate += self.rate_waits if self.is_open or not self.waits_are_windowed else 0.0
        rate += self.rate_graphs if self.is_open or not self.graph_launches_are_windowed else 0.0
        self.hits += rate * by_ns / SECOND
        self.records += self.record_rate * by_ns / SECOND if self.is_open else 0.0
        self.now_ns += by_ns

    def open_window(self) -> None:
        assert not self.is_open
        self.now_ns += self.switch_ns
        self.is_open = True
        self.opened.append(self.now_ns)

    def record(self, close_ns: int | None) -> None:
        assert self.is_open
        self.recorded.append(self.now_ns)
        self.ends.append(close_ns)
        self.advance(self.record_takes_ns)

    def close_window(self) -> None:
        assert self.is_open
        self.now_ns += self.switch_ns
        self.is_open = False
        self.closed.append(self.now_ns)

    def record_costs(self) -> dict[int, int]:
        return {7: round(self.records * self.record_ns)} if self.record_rate else {}

    def record_switch_ns(self) -> int:
        return self.record_switch

    def costs(self) -> dict[int, tuple[int, int]]:
        return {7: (round(self.hits), round(self.hits * self.program_ns))}


def run(
    machine: Machine, control: WindowControl, seconds: float, step_ns: int = 50 * MS
) -> list[SamplingWindow]:
    """Step until `seconds` have passed; the windows announced."""
    windows = []
    end_ns = machine.now_ns + round(seconds * SECOND)
    while machine.now_ns < end_ns:
        windows += control.step(machine.now_ns, machine.clock)
        edge_ns = control.next_edge_ns
        pause_ns = step_ns if edge_ns is None else min(step_ns, max(edge_ns - machine.now_ns, 1))
        machine.advance(pause_ns)
    return windows


def test_duty_settles_where_the_budget_is_used() -> None:
    """20,000 hits/s of 4 µs take 8 % when attached: of 1 %, what always-on calls and switching leave is spent."""
    machine = Machine()
    control = WindowControl(machine, BudgetOptions(budget=0.01, trap_ns=1_000), Random(3))
    run(machine, control, 400)
    always, windowed = UNSEEN * 100 * 4_000 / SECOND, UNSEEN * 0.08
    switching = STALL_SHARE * 2 * machine.switch_ns / control.state.stratum_ns
    assert switching <= 0.0025
    assert control.state.duty == pytest.approx(
        (AIM * 0.01 - always - switching) / windowed, rel=0.05
    )
    assert control.state.overhead(7) <= 0.01


def test_windows_do_not_overlap_and_lie_in_their_strata() -> None:
    """Strata follow each other; a window is announced once, from when its probes were attached to its planned end."""
    machine = Machine()
    control = WindowControl(machine, BudgetOptions(trap_ns=1_000), Random(5))
    windows = run(machine, control, 300)
    assert len(windows) > 5
    for window in windows:
        assert window.stratum_start_ns <= window.open_ns <= window.close_ns <= window.stratum_end_ns
    for before, after in pairwise(windows):
        assert before.stratum_end_ns <= after.stratum_start_ns
    assert len(machine.opened) - len(machine.closed) in (0, 1)


def test_what_takes_time_to_open_begins_to_be_opened_earlier() -> None:
    """So that a window opens when it was planned to, unless its stratum begins with it."""
    shares = []
    for lead_ns in (0, 20 * MS):
        machine = Machine(switch_ns=20 * MS, lead_ns=lead_ns)
        control = WindowControl(machine, BudgetOptions(duty=0.05, trap_ns=1_000), Random(5))
        windows = run(machine, control, 300)
        whole = [w for w in windows if w.probability_ppb == 50_000_000]
        shares.append(len(whole) / len(windows))
        assert all(w.stratum_start_ns < w.open_ns for w in whole)
    assert shares[0] == 0.0
    assert shares[1] > 0.8


def test_calls_of_an_open_window_are_complete() -> None:
    """Probes were attached before the announced start and detached after the announced end."""
    machine = Machine()
    control = WindowControl(machine, BudgetOptions(trap_ns=1_000), Random(8))
    windows = [w for w in run(machine, control, 300) if w.open_ns < w.close_ns]
    control.stop(machine.clock)
    attached = list(zip(machine.opened, machine.closed, strict=True))
    assert len(windows) > 5
    for window in windows[:-1]:
        assert any(a <= window.open_ns and window.close_ns <= b for a, b in attached)


def test_cheap_targets_are_captured_whole() -> None:
    """Where full capture costs less than the budget nothing is switched, and nothing scaled."""
    machine = Machine(rate_windowed=10.0)
    control = WindowControl(machine, BudgetOptions(trap_ns=1_000), Random(1))
    windows = run(machine, control, 120)
    assert control.state.duty == 1
    assert windows[-1].probability_ppb == PPB
    assert (windows[-1].open_ns, windows[-1].close_ns) == (
        windows[-1].stratum_start_ns,
        windows[-1].stratum_end_ns,
    )
    assert len(machine.opened) <= 4


def test_a_window_that_was_open_all_the_time_is_no_cost_of_what_is_always_on() -> None:
    """A program that was cheap and becomes dear: from then on windows open and close."""
    machine = Machine(rate_windowed=10.0)
    control = WindowControl(machine, BudgetOptions(trap_ns=1_000), Random(1))
    run(machine, control, 120)
    assert control.state.duty == 1
    machine.rate_windowed = 20_000.0
    always = UNSEEN * 100 * 4_000 / SECOND
    for _ in range(200):
        run(machine, control, 1)
        assert control.state.costs[7].always == pytest.approx(always, rel=0.1)
    assert 0 < control.state.duty < 0.1


def test_strata_follow_each_other_without_a_gap() -> None:
    """However late a step comes: a call between two strata would be in none."""
    machine = Machine(rate_windowed=10.0)
    control = WindowControl(machine, BudgetOptions(duty=1.0, trap_ns=1_000), Random(1))
    windows = []
    for _ in range(300):
        windows += control.step(machine.now_ns, machine.clock)
        machine.advance(333 * MS)
    assert len(windows) > 5
    for before, after in pairwise(windows):
        assert after.open_ns == after.stratum_start_ns == before.close_ns == before.stratum_end_ns


def test_a_busy_host_leaves_no_gap_where_all_is_captured() -> None:
    """An agent that does not get to run for 15 s has missed nothing: its probes stay, and the ring is large."""
    machine = Machine(rate_windowed=10.0)
    control = WindowControl(machine, BudgetOptions(duty=1.0, trap_ns=1_000), Random(1))
    before = run(machine, control, 30)[-1]
    machine.advance(15 * SECOND)
    (late,) = control.step(machine.now_ns, machine.clock)
    assert late.open_ns == late.stratum_start_ns == before.stratum_end_ns
    assert late.close_ns == late.stratum_end_ns > machine.now_ns


def test_a_host_that_slept_begins_anew() -> None:
    """No stratum covers the time in which nobody looked."""
    machine = Machine(rate_windowed=10.0)
    control = WindowControl(machine, BudgetOptions(duty=1.0, trap_ns=1_000), Random(1))
    run(machine, control, 30)
    machine.now_ns += 3_600 * SECOND
    (window,) = control.step(machine.now_ns, machine.clock)
    assert window.stratum_start_ns == machine.now_ns


def test_given_duty_overrides_the_budget() -> None:
    """--duty is kept whatever it costs."""
    machine = Machine()
    control = WindowControl(machine, BudgetOptions(budget=0.01, duty=0.5, trap_ns=1_000), Random(1))
    windows = run(machine, control, 200)
    assert control.state.duty == 0.5
    open_ns = sum(w.close_ns - w.open_ns for w in windows)
    total_ns = sum(w.stratum_end_ns - w.stratum_start_ns for w in windows)
    assert 0.2 < open_ns / total_ns < 0.8


def test_nothing_is_opened_when_always_on_calls_use_up_the_budget() -> None:
    """4,000 waits/s of 4 µs cost 1.6 % by themselves: no window, but no kill switch below twice the budget."""
    machine = Machine(rate_always=4_000.0)
    control = WindowControl(machine, BudgetOptions(trap_ns=1_000), Random(1))
    run(machine, control, 30)
    opened = len(machine.opened)
    run(machine, control, 120)
    assert control.state.duty == 0
    assert len(machine.opened) == opened
    assert not control.state.killed


def test_kill_switch_after_three_strata_above_twice_the_budget() -> None:
    """Always-on calls that cost four times the budget end the capture, and it stays ended."""
    machine = Machine(rate_always=10_000.0)
    control = WindowControl(machine, BudgetOptions(trap_ns=1_000), Random(1))
    run(machine, control, 20)
    assert control.state.killed
    assert run(machine, control, 20) == []


def test_stop_detaches() -> None:
    """Stopping inside a window leaves nothing attached."""
    machine = Machine()
    control = WindowControl(machine, BudgetOptions(duty=1.0, trap_ns=1_000), Random(1))
    run(machine, control, 5)
    assert machine.is_open
    control.stop(machine.clock)
    assert not machine.is_open
    assert control.next_edge_ns is None


def test_the_timer_of_samples_is_paid_from_the_budget() -> None:
    """Samples that take 0.4 % of each target leave so much less for windows."""
    machine = Machine()
    options = BudgetOptions(budget=0.01, trap_ns=1_000, sampling=0.004)
    control = WindowControl(machine, options, Random(3))
    run(machine, control, 400)
    always, windowed = 0.004 + UNSEEN * 100 * 4_000 / SECOND, UNSEEN * 0.08
    switching = STALL_SHARE * 2 * machine.switch_ns / control.state.stratum_ns
    assert control.state.duty == pytest.approx(
        (AIM * 0.01 - always - switching) / windowed, rel=0.05
    )


def test_a_duty_rises_four_times_a_stratum_at_most() -> None:
    """A target that hardly launches is captured all the time in the end, but not at once: it may only be warming up."""
    machine = Machine(rate_windowed=1.0)
    control = WindowControl(machine, BudgetOptions(budget=0.01, trap_ns=1_000), Random(3))
    duties: list[float] = []
    for _ in range(600):
        run(machine, control, 0.1)
        if not duties or duties[-1] != control.state.duty:
            duties.append(control.state.duty)
    assert duties == pytest.approx([0.05, 0.2, 0.8, 1.0])


@pytest.mark.parametrize("attach_ms", [80, 120, 400])
def test_a_window_is_measured_however_long_attaching_takes(attach_ms: int) -> None:
    """Many libraries on an old kernel: a window that is over before it is open would teach nothing, for ever."""
    machine = Machine(switch_ns=attach_ms * MS)
    control = WindowControl(machine, BudgetOptions(trap_ns=1_000), Random(2))
    windows = run(machine, control, 600)
    assert control.state.costs[7].windowed == pytest.approx(UNSEEN * 0.08, rel=0.05)
    assert control.state.duty < 0.06
    covered_ns = sum(w.close_ns - w.open_ns for w in windows[2:])
    assert covered_ns > 0.3 * control.state.duty * 600 * SECOND


def test_a_burst_costs_no_more_than_the_one_before_it_allowed() -> None:
    """Ten seconds of work a minute: in the quiet between them all could be captured, and the next burst is dear."""
    machine = Machine(rate_windowed=0.0, rate_always=0.0)
    control = WindowControl(machine, BudgetOptions(budget=0.01, trap_ns=1_000), Random(3))
    run(machine, control, 60)
    lost = []
    for _ in range(10):
        machine.rate_windowed, before = 27_000.0, machine.hits
        run(machine, control, 10)
        lost.append((machine.hits - before) * 4_000 / (10 * SECOND))
        machine.rate_windowed = 0.0
        run(machine, control, 50)
    assert lost[0] > 0.03
    assert sum(lost[1:]) / len(lost[1:]) < 0.01


def test_targets_that_have_gone_are_forgotten() -> None:
    """Costs of a process that ended do not decide any longer."""
    machine = Machine()
    control = WindowControl(machine, BudgetOptions(trap_ns=1_000), Random(1))
    run(machine, control, 60)
    assert 7 in control.state.costs
    machine.costs = lambda: {}  # type: ignore[method-assign]
    run(machine, control, 60)
    assert control.state.costs == {}


def test_records_of_executions_count_against_the_budget() -> None:
    """100,000 records/s of 1,000 ns cost 10 % while a window is open, beside the 8 % of its probes."""
    machine = Machine(record_rate=100_000)
    control = WindowControl(machine, BudgetOptions(budget=0.01, trap_ns=1_000), Random(3))
    run(machine, control, 400)
    always = UNSEEN * 100 * 4_000 / SECOND
    switching = STALL_SHARE * 2 * machine.switch_ns / control.state.stratum_ns
    in_windows = UNSEEN * 0.08 + 0.1
    assert control.state.duty == pytest.approx(
        (AIM * 0.01 - always - switching) / in_windows, rel=0.05
    )
    assert control.state.overhead(7) <= 0.01


def test_records_where_all_is_captured_end_that_where_they_cost_too_much() -> None:
    """Probes alone would allow it; and what records cost never counts as always on, which would be switched off."""
    machine = Machine(rate_windowed=10.0, record_rate=100_000)
    control = WindowControl(machine, BudgetOptions(budget=0.01, trap_ns=1_000), Random(3))
    run(machine, control, 400)
    assert control.state.duty == pytest.approx(AIM * 0.08, abs=0.01)
    assert control.state.costs[7].always < 0.001
    assert not control.state.killed


def test_switching_records_makes_strata_longer() -> None:
    """What it stalls a target to begin and end recording comes on top of what probes take."""
    machine = Machine(switch_ns=10 * MS, record_rate=1_000, record_switch=30 * MS)
    control = WindowControl(machine, BudgetOptions(budget=0.01, trap_ns=1_000), Random(3))
    run(machine, control, 100)
    assert control.state.stratum_ns == pytest.approx(31 * MS / 0.0025, rel=0.01)


def test_whoever_opens_a_window_knows_when_it_will_close() -> None:
    """Libraries close by themselves then, however late we are."""
    machine = Machine()
    control = WindowControl(machine, BudgetOptions(trap_ns=1_000), Random(8))
    windows = [w for w in run(machine, control, 100) if w.open_ns < w.close_ns]
    assert len(windows) > 5
    assert all(w.probability_ppb < PPB for w in windows)
    assert {w.close_ns for w in windows} <= set(machine.ends)
    whole = Machine(rate_windowed=10.0)
    run(whole, WindowControl(whole, BudgetOptions(duty=1.0, trap_ns=1_000), Random(8)), 100)
    assert whole.ends == [None]


def test_windows_that_are_too_short_to_measure_do_not_look_cheap() -> None:
    """A window that was cut off when attaching had barely ended saw nothing: that does not make full capture free."""
    for seed in range(20):
        machine = Machine(record_rate=100_000)
        control = WindowControl(machine, BudgetOptions(budget=0.01, trap_ns=1_000), Random(seed))
        windows = run(machine, control, 200)
        assert all(w.probability_ppb < 0.1 * PPB for w in windows)


def test_nothing_is_recorded_before_the_window_that_is_announced() -> None:
    """A library may begin at once, while we still ask what probes have cost."""
    machine = Machine(record_rate=1_000, record_takes_ns=3 * MS)
    control = WindowControl(machine, BudgetOptions(trap_ns=1_000), Random(8))
    windows = [w for w in run(machine, control, 200) if w.open_ns < w.close_ns]
    begins = set(machine.recorded)
    assert len(windows) > 5
    assert {w.open_ns for w in windows} <= begins


def test_waits_become_windowed_between_two_strata() -> None:
    """2,000 waits/s of 4 µs are as much as the budget: windowed, they leave room for windows; and back.

    A stratum is of one kind: it begins when probes have been attached or detached. What follows is measured first.
    """
    machine = Machine(rate_waits=2_000.0, rate_windowed=5_000.0, limit_per_s=500.0)
    control = WindowControl(machine, BudgetOptions(trap_ns=1_000), Random(2))
    windows = run(machine, control, 120)
    assert [windowed for _, windowed in machine.arranged] == [True]
    assert 0 < control.state.duty < 1
    assert control.state.overhead(7) <= 0.01
    machine.rate_waits = 10.0
    windows += run(machine, control, 120)
    assert [windowed for _, windowed in machine.arranged] == [True, False]
    (began_ns, _), (ended_ns, _) = machine.arranged
    assert any(w.with_waits for w in windows)
    for window in windows:
        assert window.with_waits is (began_ns <= window.stratum_start_ns < ended_ns)
        if window.with_waits:
            assert window.stratum_end_ns <= ended_ns


def test_windowed_waits_have_windows_whatever_else_takes_up_the_budget() -> None:
    """Other probes cost 1.2 %: where nothing is windowed but launches there would be no window."""
    machine = Machine(rate_waits=2_000.0, rate_always=2_400.0, limit_per_s=500.0)
    control = WindowControl(machine, BudgetOptions(trap_ns=1_000), Random(2))
    windows = [window for window in run(machine, control, 120) if window.with_waits]
    assert control.state.duty == 0.005
    assert sum(window.close_ns - window.open_ns for window in windows) > 0


def test_launches_of_graphs_become_windowed_before_they_end_capture() -> None:
    """5,000 a second cost more than twice the budget, as models make that are cut into many graphs.

    Waits, which are few, stay as they are.
    """
    machine = Machine(rate_waits=100.0, limit_per_s=200.0)
    control = WindowControl(machine, BudgetOptions(trap_ns=1_000), Random(2))
    assert not any(window.with_graph_launches for window in run(machine, control, 60))
    machine.rate_graphs = 5_000.0
    windows = run(machine, control, 120)[2:]
    assert not control.state.killed
    assert 0 < control.state.duty < 1
    assert control.state.overhead(7) <= 0.01
    assert sum(window.close_ns - window.open_ns for window in windows) > 0
    assert all(window.with_graph_launches for window in windows)
    assert not any(window.with_waits for window in windows)


def test_a_given_duty_leaves_waits_as_they_are() -> None:
    """Who chooses the duty has not asked for a budget."""
    machine = Machine(rate_waits=2_000.0, limit_per_s=500.0)
    control = WindowControl(machine, BudgetOptions(duty=0.2, trap_ns=1_000), Random(2))
    assert not any(window.with_waits for window in run(machine, control, 60))
    assert machine.arranged == []
