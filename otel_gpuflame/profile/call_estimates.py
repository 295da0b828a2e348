"""What calls of a sampling window say of its whole stratum: a bundle for each process."""

from __future__ import annotations

from collections.abc import Iterator

from otel_gpuflame.correlate.groups import Groups
from otel_gpuflame.correlate.sampling import Estimate
from otel_gpuflame.profile.attribution_columns import add_attributions
from otel_gpuflame.profile.call_columns import add_calls
from otel_gpuflame.profile.known import UNKNOWN_TARGET, Known
from otel_gpuflame.profile.model import AttributeSet, Bundle, Window
from otel_gpuflame.profile.sample_types import (
    ESTIMATED_SCOPE,
    PROBABILITY_ATTRIBUTE,
    RELATIVE_ERROR_ATTRIBUTE,
)
from otel_gpuflame.profile.samples import SampleTable


def estimate_attributes(probability: float, estimate: Estimate) -> AttributeSet:
    """How estimates were made: on every profile of a bundle."""
    return (
        (PROBABILITY_ATTRIBUTE, f"{probability:.6g}"),
        (RELATIVE_ERROR_ATTRIBUTE, f"{estimate.relative_error:.3g}"),
    )


def call_bundles(
    groups: Groups,
    waits: Groups | None,
    scale: float,
    estimate: Estimate,
    *,
    window: Window,
    known: Known,
) -> Iterator[Bundle]:
    """Bundles of `groups` of `call_columns` and `waits` of `attribution_columns`, in a stratum that is `window`.

    Each call stands for `scale` calls.
    """
    tables: dict[int, SampleTable] = {}
    for key, sums in zip(groups.keys.tolist(), groups.sums.tolist(), strict=True):
        table = tables.setdefault(key[0] >> 32, SampleTable())
        add_calls(table, key, [round(value * scale) for value in sums], known)
    if waits is not None:
        for key, sums in zip(waits.keys.tolist(), waits.sums.tolist(), strict=True):
            table = tables.setdefault(key[0] >> 32, SampleTable())
            add_attributions(table, key, [round(value * scale) for value in sums], known)
    resources = known.resources()
    attributes = estimate_attributes(1 / scale, estimate)
    for process_id, table in sorted(tables.items()):
        resource = resources.get(process_id, UNKNOWN_TARGET)
        yield table.bundle(resource, window, ESTIMATED_SCOPE, attributes)
