"""How long the devices worked, under the stacks that asked for it."""

from __future__ import annotations

from otel_gpuflame.correlate.gpu.attribute import (
    asked_ns,
    attributions,
    kernel_names,
    leaf_apis,
    part,
)
from otel_gpuflame.correlate.gpu.rows import JoinedArray
from otel_gpuflame.events.attributions import AttributionArray, Leaf, Measure


def explain_time(executions: JoinedArray) -> AttributionArray:
    """`gpu_time`: a row for each execution. Σ of the values is Σ of the durations, exactly."""
    told = part(
        executions,
        time_ns=executions["end_ns"],
        sampled_ns=asked_ns(executions),
        value_ns=executions["end_ns"] - executions["start_ns"],
        measure=Measure.GPU_TIME,
        leaf=Leaf.KERNEL,
        name=kernel_names(executions),
        leaf_api=leaf_apis(executions),
        device=executions["device"],
        no_launch=executions["no_launch"],
    )
    return attributions([told])
