"""What the target programs share: waiting for the profiler, printing the truth, failing clearly."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping

from tests.fakes import steps
from tests.fakes.cuda_driver import FakeCuda, FakeCudaError, FakeCudaUnavailableError

KERNEL = "_Z5saxpyPfS_fi"
"""Mangled, as the driver sees names: `saxpy(float*, float*, float, int)`."""


def parser(description: str) -> argparse.ArgumentParser:
    """Argument parser with the option that every target program has."""
    result = argparse.ArgumentParser(description=description)
    result.add_argument(
        "--hold",
        action="store_true",
        help='print {"ready": true, "pid": ...} and wait for a line on stdin before the first call',
    )
    return result


def hold(options: argparse.Namespace) -> None:
    """With --hold, let the caller attach a profiler before anything of interest happens."""
    if options.hold:
        steps.hold()


def emit(truth: Mapping[str, object]) -> bool:
    """Print one JSON line, and with STAYS wait until told to go on. Whether all is to be done again."""
    return steps.tell(dict(truth))


def run(main: Callable[[], None]) -> None:
    """Run a program; a driver that is missing or refuses is one line on stderr and status 1."""
    try:
        main()
    except (FakeCudaError, FakeCudaUnavailableError) as error:
        sys.exit(f"{os.path.basename(sys.argv[0])}: {error}")


def counter_dict(cuda: FakeCuda) -> dict[str, int]:
    """The fake driver's own counters, for the truth line."""
    counters = cuda.counters()
    return {name: getattr(counters, name) for name in counters.__slots__}


def install_instrumentation() -> bool:
    """Publish the active span to profilers, where the product is installed."""
    try:
        from otel_gpuflame.instrument import install  # noqa: PLC0415 - the product is optional here
    except ImportError:
        return False
    return bool(install())
