"""What executions of sampling windows say of whole strata: a bundle for each process."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from otel_gpuflame.correlate.groups import Groups
from otel_gpuflame.correlate.sampling import Estimate, estimate_total
from otel_gpuflame.events.attributions import Measure
from otel_gpuflame.profile.attribution_columns import add_attributions, measure_of
from otel_gpuflame.profile.call_columns import submission_of
from otel_gpuflame.profile.call_estimates import estimate_attributes
from otel_gpuflame.profile.execution_strata import ExecutionStratum, Interval, covered_share
from otel_gpuflame.profile.kernels import kernel_uses
from otel_gpuflame.profile.known import NOBODY, UNKNOWN_TARGET, Known
from otel_gpuflame.profile.model import Bundle, Window
from otel_gpuflame.profile.sample_types import ESTIMATED_SCOPE
from otel_gpuflame.profile.samples import SampleTable
from otel_gpuflame.profile.strata import HISTORY, PPB


@dataclass(slots=True)
class _Process:
    """What the complete intervals of one process add up to, scaled."""

    table: SampleTable
    probability: float


class ExecutionEstimates:
    """Scales strata, and remembers how far the totals of the last ones differed."""

    def __init__(self, known: Known) -> None:
        self._known: Final = known
        self._seen: deque[float] = deque(maxlen=HISTORY)
        self._probabilities: deque[float] = deque(maxlen=HISTORY)

    def bundles(self, stratum: ExecutionStratum, window: Window, until_ns: int) -> Iterator[Bundle]:
        """Bundles of a stratum of which all has been told, whose bounds in unix time are `window`.

        `until_ns`: the end of the capture, which may have cut the stratum off.
        """
        probability = stratum.window.probability_ppb / PPB
        processes: dict[int, _Process] = {}
        total_ns = 0.0
        shares = []
        for intervals in stratum.complete().values():
            share = covered_share(stratum.window, intervals, until_ns)
            if not share:
                continue
            shares.append(share)
            for each in intervals:
                if each.is_complete:
                    total_ns += self._add(processes, each, probability * share) / share
        estimate = self._note(total_ns, probability)
        self._add_nobodys(processes, stratum, probability * max(shares, default=1.0))
        if stratum.launches is not None:
            self._add_launches(processes, stratum.launches, probability)
        resources = self._known.resources()
        for process_id, process in sorted(processes.items()):
            yield process.table.bundle(
                resources.get(process_id, UNKNOWN_TARGET),
                window,
                ESTIMATED_SCOPE,
                estimate_attributes(process.probability, estimate),
            )

    def _add(self, processes: dict[int, _Process], interval: Interval, probability: float) -> int:
        """Add an interval to its process; returns the time of its executions, as seen."""
        scale, gpu_time_ns = 1 / probability, 0
        for key, sums in interval.attributions.items():
            if measure_of(key) == Measure.GPU_TIME:
                gpu_time_ns += sums[0]
            table = _table(processes, key[0] >> 32, probability)
            add_attributions(table, key, _scaled(sums, scale), self._known)
        kernels = ((key, _scaled(sums, scale)) for key, sums in interval.kernels.items())
        for process_id, uses in kernel_uses(kernels, self._known).items():
            _table(processes, process_id, probability).note_kernels(*uses)
        return gpu_time_ns

    def _add_nobodys(
        self, processes: dict[int, _Process], stratum: ExecutionStratum, probability: float
    ) -> None:
        """As with exact values: what is nobody's goes to the only process there is."""
        owner = next(iter(processes)) if len(processes) == 1 else NOBODY
        for key, sums in stratum.nobodys.items():
            table = _table(processes, owner, probability)
            add_attributions(table, key, _scaled(sums, 1 / probability), self._known)

    def _add_launches(
        self, processes: dict[int, _Process], launches: Groups, probability: float
    ) -> None:
        for key, sums in zip(launches.keys.tolist(), launches.sums.tolist(), strict=True):
            process = processes.get(key[0] >> 32)
            if process is None:
                continue
            stack = submission_of(process.table, key, self._known)
            if stack is not None:
                process.table.note_launches(stack, round(sums[0] / probability))

    def _note(self, total_ns: float, probability: float) -> Estimate:
        self._seen.append(total_ns)
        self._probabilities.append(probability)
        return estimate_total(self._seen, self._probabilities)


def _table(processes: dict[int, _Process], process_id: int, probability: float) -> SampleTable:
    return processes.setdefault(process_id, _Process(SampleTable(), probability)).table


def _scaled(sums: list[int], scale: float) -> list[int]:
    return [round(value * scale) for value in sums]
