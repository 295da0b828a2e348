"""The tables of the command line show the numbers that `go tool pprof` shows for the file it wrote."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from pathlib import Path

import pytest

from otel_gpuflame.events.frames import FrameKind
from otel_gpuflame.pipeline import replay
from otel_gpuflame.profile import sample_types
from otel_gpuflame.profile.aggregate import AggregateOptions
from otel_gpuflame.profile.model import Bundle, ValueType
from otel_gpuflame.profile.top import LIBRARY_CODE, top_leaves, top_python_lines, total
from tests.tiers import require
from tests.unit.cli.captures import ROOT, run, write_capture
from tests.unit.cli.pprof_tool import pprof_top

CAPTURES = ["hand-made", *sorted(p.name for p in (ROOT / "examples" / "captures").glob("*.ogfcap"))]


@pytest.fixture(scope="module", params=CAPTURES)
def written(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[Bundle]]:
    """A pprof file that `replay` wrote, and the bundles that the tables are made of."""
    require("collector", shutil.which("go") is not None, "go is not installed")
    directory = tmp_path_factory.mktemp("pprof")
    capture = ROOT / "examples" / "captures" / request.param
    if request.param == "hand-made":
        capture = write_capture(directory / "train.ogfcap")
    path = directory / "train.pb.gz"
    assert run("replay", capture, "--pprof", path).exit_code == 0
    return path, replay(capture, AggregateOptions(window_ns=None)).bundles


@pytest.mark.parametrize(
    "sample_type",
    [sample_types.GPU_WAIT, sample_types.GPU_LAUNCH, sample_types.GPU_COPY],
    ids=lambda t: t.type,
)
def test_leaf_tables_are_the_flat_column(
    written: tuple[Path, list[Bundle]], sample_type: ValueType
) -> None:
    """`-top` shows for each leaf the value that our table shows, and no other leaf."""
    path, bundles = written
    ours: Counter[str] = Counter()
    for row in top_leaves(bundles, sample_type):
        ours[row.frame.name] += row.value
    assert ours == pprof_top(path, sample_type)
    assert ours.total() == total(bundles, sample_type) > 0


def test_python_lines_are_those_of_show_and_hide(written: tuple[Path, list[Bundle]]) -> None:
    """`-lines`, showing Python files and hiding LIBRARY_CODE, has the lines of the program with our values."""
    path, bundles = written
    theirs = pprof_top(
        path, sample_types.GPU_WAIT, "-lines", r"-show=\.py$", f"-hide={LIBRARY_CODE}"
    )
    own = {
        f"{row.frame.name} {row.frame.file}:{row.frame.line}": row.value
        for row in top_python_lines(bundles, sample_types.GPU_WAIT)
        if row.frame.kind is FrameKind.PYTHON and not re.search(LIBRARY_CODE, row.frame.file)
    }
    assert own == dict(theirs)
    assert own
