"""A thread that waits for the device again and again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from otel_gpuflame.findings.copies import waiting_places
from otel_gpuflame.findings.facts import Facts
from otel_gpuflame.findings.idle import idle_beside_launches, idle_of_devices
from otel_gpuflame.findings.model import Confidence, Loss, Rule

_MIN_WAITS: Final = 10
_MIN_PER_SECOND: Final = 1
_MIN_PER_SECOND_ALONE: Final = 10
"""Where launches are not known: the agent captures them in windows. So often a queue cannot have become long."""
_MIN_SHARE: Final = 0.05
_MAX_LAUNCHES_BETWEEN: Final = 1_024
"""So many launches the driver takes before it holds back the thread. Who waits less often loses little."""
_IDLE_SHARE: Final = 0.05


def _find(facts: Facts) -> Iterator[Loss]:
    launches = facts.launches() if facts.knows_launches() else 0
    seconds = facts.window_ns / 1e9
    # One thread waits, while several devices may idle at once.
    other_idle_ns = idle_beside_launches(facts) / facts.devices
    rate = _MIN_PER_SECOND if launches else _MIN_PER_SECOND_ALONE
    for waiting in waiting_places(facts):
        waits = max(waiting.synchronises, waiting.copy_waits)
        if waiting.is_copy or facts.seen(waits) < _MIN_WAITS or waits < rate * seconds:
            continue
        if waiting.wait_ns < _MIN_SHARE * facts.window_ns:
            continue
        if launches > _MAX_LAUNCHES_BETWEEN * waits or waiting.wait_ns < other_idle_ns:
            continue
        yield Loss(
            place=waiting.place,
            lost_ns=waiting.wait_ns,
            evidence=(
                ("waits", waits),
                ("mean_wait_ns", round(waiting.wait_ns / waits)),
                ("launches_between", round(launches / waits)),
                ("values_read", waiting.copies),
                ("call", waiting.longest_call),
                *_idle(facts),
            ),
            confidence=_confidence(facts),
        )


def _idle(facts: Facts) -> tuple[tuple[str, float], ...]:
    if not facts.gpu_time_ns:
        return ()
    return (("idle_share_of_devices", round(idle_of_devices(facts) / facts.device_ns, 4)),)


def _confidence(facts: Facts) -> Confidence:
    """While the device stays busy all the same, the thread's time is lost, and not the device's."""
    if not facts.gpu_time_ns:
        return Confidence.MEDIUM
    idles = idle_of_devices(facts) >= _IDLE_SHARE * facts.device_ns
    return Confidence.HIGH if idles else Confidence.LOW


SYNCHRONISE_IN_LOOP: Final = Rule(
    id="synchronise-in-loop",
    title="Synchronise in a loop",
    remedy="Read results of the device (.item(), .cpu(), print, a branch on a tensor) less often, or a step later: "
    "each read waits until all work before it is done, and nothing is queued meanwhile.",
    find=_find,
)
