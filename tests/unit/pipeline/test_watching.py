"""Views of the host from a capture that the test plays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from otel_gpuflame.capture.budget import TargetCost
from otel_gpuflame.capture.live import LiveOptions
from otel_gpuflame.capture.windows import BudgetState
from otel_gpuflame.errors import TargetError
from otel_gpuflame.events.records import CaptureStart, Event, Watermark
from otel_gpuflame.pipeline import HostView, WatchOptions, watch, watching
from tests.unit.profile.builders import PROCESS, START, UNIX_OFFSET_NS, batch, call, counters, usual
from tests.unit.profile.test_rates import SECOND_NS, at, sampling

INTERVAL_NS = 2 * SECOND_NS
Step = Sequence[Event]


@dataclass
class FakeLive:
    """A live capture that hands out prepared rounds. Everything that `watch` reads of one is here."""

    rounds: list[Step]
    budget_state: BudgetState = field(default_factory=BudgetState)
    libraries: tuple[str, ...] = ("libcuda.so.1",)
    services: dict[int, str] = field(default_factory=lambda: {PROCESS.tgid: "train"})
    options: LiveOptions | None = None

    def __enter__(self) -> FakeLive:
        return self

    def __exit__(self, *_error: object) -> None:
        self.closed = True

    @property
    def attachments(self) -> FakeLive:
        return self

    @property
    def targets(self) -> FakeLive:
        return self

    @property
    def report(self) -> SimpleNamespace:
        """Nothing is missing on this host."""
        return SimpleNamespace(missing={})

    def pids(self) -> list[int]:
        return list(self.services)

    def service_name(self, pid: int) -> str:
        return self.services[pid]

    def start_event(self) -> CaptureStart:
        return START

    def step(self, _timeout_ns: int) -> Step:
        return self.rounds.pop(0)


class Watching:
    """`watch` over a fake capture."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rounds: Sequence[Step]) -> None:
        self.live = FakeLive([usual()[1:], *rounds])
        monkeypatch.setattr(watching, "trap_cost_ns", lambda: 1_000.0)
        monkeypatch.setattr(watching, "LiveCapture", self._open)

    def views(self, *, settle: bool = False) -> list[HostView]:
        """All of them, to the end of the rounds."""
        options = WatchOptions(interval_ns=INTERVAL_NS, settle=settle)
        return list(watch(options, lambda: not self.live.rounds))

    def _open(self, options: LiveOptions) -> FakeLive:
        self.live.options = options
        return self.live


def reach(seconds: float) -> Step:
    """A round in which everything up to then is complete."""
    return [Watermark(at(seconds))]


def wait(seconds: float, duration_ns: int) -> Event:
    """A call that waits."""
    return batch(call("cuStreamSynchronize", start_ns=at(seconds), duration_ns=duration_ns))


def test_each_interval_gives_a_view(monkeypatch: pytest.MonkeyPatch) -> None:
    """A view comes when its interval is complete, in the steps of the capture, with its end in unix time."""
    rounds = [
        [sampling(0, 2), wait(1, SECOND_NS // 2)],
        reach(1.9),
        reach(2.1),
        reach(3.9),
        reach(4),
    ]

    first, second = Watching(monkeypatch, rounds).views()

    assert first.end_unix_ns == at(2) + UNIX_OFFSET_NS
    assert second.end_unix_ns == at(4) + UNIX_OFFSET_NS
    assert [row.wait for row in first.rows] == [0.25]
    assert [row.wait for row in second.rows] == [0]


def test_it_captures_the_host_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the agent does; and lets go at the end."""
    setup = Watching(monkeypatch, [reach(2)])
    setup.views()

    assert setup.live.options is not None
    assert setup.live.options.host_wide
    assert setup.live.options.budget is not None
    assert setup.live.options.budget.budget == 0.01
    assert setup.live.closed


def test_a_view_shows_the_state_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Duty, targets, overhead by pid, and what was lost since the view before."""
    lost = [
        counters(launch={"seen": 9, "ring_full": 3}),
        counters(launch={"seen": 9, "ring_full": 4}),
    ]
    setup = Watching(monkeypatch, [[lost[0]], reach(2), [lost[1]], reach(4), reach(6)])
    setup.live.budget_state = BudgetState(duty=0.5, costs={PROCESS.tgid: TargetCost(0.001, 0.01)})
    setup.live.services[7] = "idle"

    views = setup.views()

    assert [view.lost for view in views] == [3, 1, 0]
    assert (views[0].duty, views[0].targets) == (0.5, 2)
    assert views[0].overheads == {PROCESS.tgid: pytest.approx(0.006)}
    assert [row.service for row in views[0].rows] == ["train", "idle"] or len(views[0].rows) == 2


def test_a_round_that_took_long_gives_one_view_of_the_last_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where several intervals end at once, the newest is shown."""
    rounds = [[sampling(0, 10), wait(1, 5), wait(5, SECOND_NS)], reach(6.5), reach(8)]

    views = Watching(monkeypatch, rounds).views()

    assert [view.end_unix_ns - UNIX_OFFSET_NS for view in views] == [at(6), at(8)]


def test_the_first_view_can_wait_for_the_first_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `settle`, nothing is shown before a stratum is complete; then the interval that ended last."""
    rounds = [
        [sampling(0.2, 2.2, share=0.5), batch(call("cuLaunchKernel", start_ns=at(0.3)))],
        reach(2),
        reach(2.1),
        reach(2.3),
    ]
    unsettled = Watching(monkeypatch, rounds).views()
    settled = Watching(monkeypatch, rounds).views(settle=True)

    assert [view.is_settled for view in unsettled] == [False]
    assert [view.is_settled for view in settled] == [True]
    assert [row.launches for row in settled[0].rows] == [1]


def test_a_host_without_targets_has_nothing_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no library is in use there will be no sampling: the empty table is complete."""
    setup = Watching(monkeypatch, [reach(2)])
    setup.live.libraries, setup.live.services = (), {}

    (view,) = setup.views(settle=True)

    assert (view.is_settled, view.rows) == (True, ())


def test_the_kill_switch_ends_it_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Capture that costs too much must not go on for the sake of a table."""
    setup = Watching(monkeypatch, [reach(1)])
    setup.live.budget_state = BudgetState(killed=True)

    with pytest.raises(TargetError, match="--budget"):
        setup.views()
    assert setup.live.closed
