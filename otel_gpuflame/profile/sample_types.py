"""The registry of sample types: nothing else spells their names. Order is display order, the headline first."""

from __future__ import annotations

from typing import Final

from otel_gpuflame.profile.model import ValueType

GPU_WAIT: Final = ValueType("gpu_wait", "nanoseconds")
"""CPU time inside driver calls that block on the GPU."""

GPU_LAUNCH: Final = ValueType("gpu_launch", "count")
"""Submissions: kernels, graphs, copies, sets."""

GPU_COPY: Final = ValueType("gpu_copy", "bytes")
"""Bytes that the program asked the GPU to copy."""

PERIOD_TYPE: Final = ValueType("gpu", "nanoseconds")
"""Period type of every profile; Pyroscope derives the profile name from it and refuses a period of 0."""

PERIOD: Final = 1

SCOPE: Final = "otel_gpuflame"
"""Scope of exact values; scaled ones get a scope of their own and never share a profile with these."""

ESTIMATED_SCOPE: Final = "otel_gpuflame/estimated"
PROBABILITY_ATTRIBUTE: Final = "otel_gpuflame.sampling.probability"
"""Profile attribute of estimates: with which chance any instant was covered."""
RELATIVE_ERROR_ATTRIBUTE: Final = "otel_gpuflame.sampling.relative_standard_error"
"""Profile attribute of estimates: standard error of the total over the last strata, as a share of it; inf at first."""

ALL: Final = (GPU_WAIT, GPU_LAUNCH, GPU_COPY)
HEADLINE: Final = GPU_WAIT


def by_name(name: str) -> ValueType:
    """The sample type called `name`; raises KeyError naming those that exist."""
    for sample_type in ALL:
        if sample_type.type == name:
            return sample_type
    raise KeyError(f"no sample type {name!r}; there are: {', '.join(t.type for t in ALL)}")
