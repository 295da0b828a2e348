"""What `record` says when it saw nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_gpuflame.capture.attachments import LateProbes
from otel_gpuflame.capture.bpf.backend import LoadReport
from otel_gpuflame.cli.record import _why_nothing
from otel_gpuflame.pipeline import RecordResult
from otel_gpuflame.profile.ledger import Ledger

LIBRARY = Path("/venv/pyopencl.libs/libOpenCL-5519dec5.so.1.0.0")


def result(libraries: tuple[Path, ...], late: tuple[LateProbes, ...]) -> RecordResult:
    """A recording without a call."""
    return RecordResult(
        bundles=[],
        ledger=Ledger(),
        report=LoadReport("libbpf v1.3", uprobe_multi=True),
        libraries=libraries,
        attach_errors=(),
        late=late,
        exit_code=0,
        duration_ns=1,
    )


@pytest.mark.parametrize(
    ("libraries", "late", "said"),
    [
        ((), (), "neither libcuda.so.1 nor an OpenCL loader"),
        ((LIBRARY,), (), "links its driver statically"),
        (
            (LIBRARY,),
            (LateProbes(path=LIBRARY, gap_ns=3_000_000),),
            f"not before a program had mapped {LIBRARY}. If it made all its calls at once",
        ),
    ],
)
def test_the_likely_reason_is_named(
    libraries: tuple[Path, ...], late: tuple[LateProbes, ...], said: str
) -> None:
    """No library, one that was there all the time, or one that was seen too late."""
    assert said in _why_nothing(result(libraries, late))
