"""Chooses who loads the BPF programs."""

from __future__ import annotations

from collections.abc import Collection

from otel_gpuflame.capture.bpf.backend import CaptureBackend, Loader, RingSizes
from otel_gpuflame.capture.bpf.bcc_backend import BccKernel
from otel_gpuflame.capture.bpf.kernel import CaptureKernel
from otel_gpuflame.capture.bpf.programs import Feature


def load_backend(loader: Loader, rings: RingSizes, features: Collection[Feature]) -> CaptureBackend:
    """Programs in the kernel. Raises SourceUnavailable when this loader cannot capture here."""
    if loader is Loader.BCC:
        return BccKernel(rings, features)
    return CaptureKernel(rings, features)
