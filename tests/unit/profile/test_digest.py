"""A digest of bundles shows the same tables as all of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from otel_gpuflame.events.frames import Frame, FrameKind, Stack
from otel_gpuflame.events.records import Stacks
from otel_gpuflame.pipeline import replay
from otel_gpuflame.profile import sample_types
from otel_gpuflame.profile.aggregate import AggregateOptions
from otel_gpuflame.profile.digest import Digest
from otel_gpuflame.profile.model import Bundle
from otel_gpuflame.profile.top import top_leaves, top_python_lines, total
from otel_gpuflame.profile.view import has_device_times
from tests.fakes.build import ROOT
from tests.unit.profile.builders import KEY, PROCESS, START, batch, call, run

CAPTURES = sorted((ROOT / "examples" / "captures").glob("*.ogfcap"))
OWN = Frame(FrameKind.PYTHON, "step", file="/srv/app/train.py", line=88)
LIBRARY = Frame(FrameKind.PYTHON, "call", file="/usr/lib/python3.12/threading.py", line=5)
NATIVE = Frame(FrameKind.NATIVE, "poll", file="libc.so.6")


def assert_same_tables(digest: Sequence[Bundle], bundles: Sequence[Bundle]) -> None:
    """Row by row, in the same order."""
    for sample_type in sample_types.ALL:
        assert total(digest, sample_type) == total(bundles, sample_type)
        assert top_leaves(digest, sample_type) == top_leaves(bundles, sample_type)
        assert top_python_lines(digest, sample_type) == top_python_lines(bundles, sample_type)
    assert any(map(has_device_times, digest)) == any(map(has_device_times, bundles))


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda path: path.stem)
def test_tables_of_recordings_are_the_same(capture: Path) -> None:
    """Windows of ten seconds and of the whole give them to the nanosecond, in far fewer stacks."""
    digest = Digest()
    windows = replay(capture, AggregateOptions(window_ns=10_000_000_000)).bundles
    for bundle in windows:
        digest.add([bundle])
    whole = replay(capture, AggregateOptions(window_ns=None)).bundles
    assert total(whole, sample_types.GPU_WAIT) > 0
    assert_same_tables(digest.bundles(), whole)
    (made,) = digest.bundles()
    assert len(made.stacks) < sum(len(each.stacks) for each in whole)
    assert made.window.start_unix_ns == windows[0].window.start_unix_ns
    assert made.window.end_unix_ns == windows[-1].window.end_unix_ns


@pytest.mark.parametrize(
    "frames",
    [
        (OWN,),
        (OWN, NATIVE),
        (OWN, LIBRARY),
        (LIBRARY, OWN),
        (LIBRARY, LIBRARY._replace(line=6)),
        (OWN, LIBRARY, OWN._replace(line=90)),
        (NATIVE,),
        (OWN, OWN),
    ],
)
def test_every_shape_of_stack_keeps_its_line_and_its_leaf(frames: tuple[Frame, ...]) -> None:
    """Own lines below library lines, leaves that are Python, stacks without any."""
    stack = Stacks((Stack(KEY, PROCESS, frames),))
    waited = batch(call("cuStreamSynchronize", duration_ns=1_000))
    bundles, _ = run([START, stack, waited])
    assert total(bundles, sample_types.GPU_WAIT) == 1_000
    digest = Digest()
    digest.add(bundles)
    assert_same_tables(digest.bundles(), bundles)


def test_nothing_is_no_bundle() -> None:
    """Tables then say that there is none."""
    assert Digest().bundles() == []
