"""What was counted at the source and did not arrive, as samples of its own."""

from __future__ import annotations

from collections import Counter
from typing import Final

from otel_gpuflame.events import apis
from otel_gpuflame.events.wire import Kind
from otel_gpuflame.profile import labels
from otel_gpuflame.profile.known import NOBODY
from otel_gpuflame.profile.ledger import LOSSES, Ledger
from otel_gpuflame.profile.model import ValueType
from otel_gpuflame.profile.sample_types import CPU_SAMPLES, GPU_LAUNCH
from otel_gpuflame.profile.samples import SampleTable

_COUNTED_KINDS: Final = {
    GPU_LAUNCH: [kind.name.lower() for kind in apis.SUBMISSIONS],
    CPU_SAMPLES: [Kind.CPU_SAMPLE.name.lower()],
}
"""Kinds of which each lost one has a known value: 1."""


class Losses:
    """Submissions and CPU samples that were lost, each counted once, in the window in which that became known."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._exported: Counter[tuple[ValueType, str]] = Counter()

    def new(self) -> Counter[tuple[ValueType, str]]:
        """By sample type and reason, since the last window."""
        known = Counter(
            {
                (sample_type, reason): sum(self._ledger.source_count(k, reason) for k in kinds)
                for sample_type, kinds in _COUNTED_KINDS.items()
                for reason in LOSSES
            }
        )
        return known - self._exported

    def add(self, tables: dict[int, SampleTable]) -> None:
        """Put what is new into the table of the only process, or of none where there are several."""
        new = self.new()
        if not new:
            return
        self._exported += new
        owner = next(iter(tables)) if len(tables) == 1 else NOBODY
        table = tables.setdefault(owner, SampleTable())
        for (sample_type, reason), count in sorted(new.items()):
            table.add(sample_type, table.indexes((labels.lost_frame(reason),)), None, count)
