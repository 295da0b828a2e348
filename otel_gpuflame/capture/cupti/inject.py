"""Where the injected library is, and how a program gets it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from otel_gpuflame.errors import SourceUnavailable

VARIABLE: Final = "CUDA_INJECTION64_PATH"
"""The CUDA driver loads the library that this names, in cuInit."""
START_VARIABLE: Final = "OTEL_GPUFLAME_INJECT_START"
"""1: the library records from its beginning, before cuInit ends, for as long as a lease; an exporter carries that on.
A program that launches at once is then seen whole. It costs what recording costs, also where no exporter comes."""
LAYERS_VARIABLE: Final = "OPENCL_LAYERS"
"""The OpenCL loader stands these libraries before the driver, separated by colons."""
LAYER: Final = Path(__file__).resolve().parents[2] / "_artifacts" / "libogf_opencl.so"
LIBRARY: Final = Path(__file__).resolve().parents[2] / "_artifacts" / "libogf_inject.so"


def library_path() -> Path:
    """Absolute path of the packaged library. Raises SourceUnavailable where it was not built."""
    return _built(LIBRARY)


def layer_path() -> Path:
    """The same, of the OpenCL layer."""
    return _built(LAYER)


def _built(path: Path) -> Path:
    if not path.is_file():
        raise SourceUnavailable(
            f"{path} is missing: run `make native`, or reinstall the package where a C compiler is"
        )
    return path


def injecting(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` with our library in it.

    Raises SourceUnavailable where it was not built, or where another one is in its place: the driver loads only one.
    """
    present = environment.get(VARIABLE, "")
    if os.path.basename(present) == LIBRARY.name:
        return dict(environment)
    if present:
        raise SourceUnavailable(f"{VARIABLE} is already set to {present}: unset it")
    return {**environment, VARIABLE: str(library_path())}


def layering(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` with our OpenCL layer before others; without it where it was not built."""
    layers = [layer for layer in environment.get(LAYERS_VARIABLE, "").split(":") if layer]
    if not LAYER.is_file() or any(os.path.basename(layer) == LAYER.name for layer in layers):
        return dict(environment)
    return {**environment, LAYERS_VARIABLE: ":".join([str(LAYER), *layers])}


def injecting_from_start(environment: Mapping[str, str]) -> dict[str, str]:
    """`injecting`, for programs that an exporter waits for. Who has set the variable to something else, means it."""
    return {START_VARIABLE: "1", **injecting(environment)}
