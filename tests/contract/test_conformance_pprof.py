"""`go tool pprof` reads our files right; it is what every other pprof reader is measured by."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from otel_gpuflame.encode.pprof import encode_pprof
from otel_gpuflame.profile import sample_types
from otel_gpuflame.profile.model import Bundle
from tests.unit.encode.bundles import ADD, MODULE, SPAN, bundle, waits_and_launches

GO = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")

pytestmark = pytest.mark.skipif(GO is None, reason="needs the Go toolchain")

# The first call builds the tool from GOROOT, which took 25 s on a loaded machine of two cores.
TIMEOUT_S = 900


@pytest.fixture(scope="module")
def waits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with two sample types, a span and an attribute."""
    return written(tmp_path_factory.mktemp("pprof") / "waits.pb.gz", waits_and_launches())


def written(path: Path, *given_bundles: Bundle) -> Path:
    """`given_bundles` as a file."""
    path.write_bytes(encode_pprof(given_bundles))
    return path


def pprof(*arguments: str | Path) -> str:
    """Output of `go tool pprof`; fails if it does."""
    assert GO is not None
    result = subprocess.run(
        [GO, "tool", "pprof", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def flat_values(top: str) -> dict[str, str]:
    """Flat value by name from the output of -top."""
    rows = re.findall(r"^ *(\d\S*) +\S+% +\S+% +\S+ +\S+% +(.+)$", top, re.MULTILINE)
    return {name: value for value, name in rows}


def test_headline_is_the_default_type(waits: Path) -> None:
    """Without a choice -top shows the waits, of the main binary, over the window."""
    top = pprof("-symbolize=none", "-top", waits)

    assert "File: python3.11" in top
    assert "Type: gpu_wait" in top
    assert "Duration: 10s, Total samples = 12ms" in top
    assert flat_values(top)["[spin]"] == "5ms"
    assert flat_values(top)["saxpy<float>(int, float*)"] == "7ms"


def test_headline_is_the_default_type_in_any_position(tmp_path: Path) -> None:
    """The default is named in the file, not taken from the order of types."""
    path = written(
        tmp_path / "a.pb.gz",
        bundle(
            {
                sample_types.GPU_COPY: [(0, -1, 0, 4096)],
                sample_types.GPU_WAIT: [(0, -1, 0, 3)],
                sample_types.GPU_LAUNCH: [(0, -1, 0, 1)],
            }
        ),
    )

    assert "Type: gpu_wait" in pprof("-symbolize=none", "-top", path)


@pytest.mark.parametrize(
    ("sample_type", "total"), [("gpu_wait", "12ms"), ("gpu_launch", "25"), ("gpu_copy", "4kB")]
)
def test_every_type_can_be_chosen(tmp_path: Path, sample_type: str, total: str) -> None:
    """-sample_index selects a type by name, with its own unit."""
    path = written(
        tmp_path / "a.pb.gz",
        bundle(
            {
                sample_types.GPU_WAIT: [(0, 0, 0, 5_000_000), (2, -1, 1, 7_000_000)],
                sample_types.GPU_LAUNCH: [(1, 0, 0, 23), (2, -1, 0, 2)],
                sample_types.GPU_COPY: [(0, -1, 0, 4096)],
            }
        ),
    )

    top = pprof("-symbolize=none", "-top", f"-sample_index={sample_type}", path)

    assert f"Type: {sample_type}" in top
    assert f"accounting for {total}, 100% of {total} total" in top


def test_cpu_samples_are_the_usual_cpu_profile(tmp_path: Path) -> None:
    """A file of CPU samples alone opens as `cpu`, in time."""
    path = written(
        tmp_path / "a.pb.gz", bundle({sample_types.CPU_SAMPLES: [(0, -1, 0, 99), (2, -1, 0, 99)]})
    )

    top = pprof("-symbolize=none", "-top", path)

    assert "Type: cpu" in top
    assert "accounting for 2000ms, 100% of 2000ms total" in top


@pytest.mark.parametrize("symbolize", ["-symbolize=none", "-symbolize=local"])
def test_names_arrive_whole(waits: Path, symbolize: str) -> None:
    """Neither `<module>` nor template arguments are cut, also where pprof demangles by itself."""
    top = pprof(symbolize, "-top", waits)

    assert {"<module>", ADD.name, "Trainer.step.<locals>.inner"} <= flat_values(top).keys()


def test_raw_shows_all_fields(waits: Path) -> None:
    """Types, period, labels, places, system names, mappings and build ids are where they belong."""
    raw = pprof("-symbolize=none", "-raw", waits)

    assert "PeriodType: gpu nanoseconds\nPeriod: 1\n" in raw
    assert "gpu_wait/nanoseconds[dflt] gpu_launch/count" in raw
    assert f"span_id:[{SPAN.span_id.hex()}] trace_id:[{SPAN.trace_id.hex()}]" in raw
    assert "hw.id:[GPU-1]" in raw
    # Go from 1.20 on also prints the column.
    assert re.search(rf"{re.escape(MODULE.name)} {re.escape(MODULE.file)}:88(:0)? s=0\b", raw)
    assert f"0x1234 M=2 {ADD.name} :0:0 s=0({ADD.system_name})" in raw
    assert "2: 0x0/0x0/0x0 /usr/lib/libtorch_cuda.so 5f0c2ab1 [FN]" in raw
    assert "Comment: service.name=checkout" in raw


def test_traces_are_leaf_first(waits: Path) -> None:
    """-traces lists each stack from the leaf to the root, with the labels of its sample."""
    traces = pprof("-symbolize=none", "-traces", waits)

    lines = [line.strip() for line in traces.splitlines()]
    start = lines.index("5ms   [spin]")
    assert lines[start + 1 : start + 5] == [
        "cuStreamSynchronize",
        ADD.name,
        "Trainer.step.<locals>.inner",
        "<module>",
    ]
    assert f"span_id:  {SPAN.span_id.hex()}" in lines


def test_spans_can_be_focused(waits: Path) -> None:
    """-tagfocus finds the samples of one span by its id."""
    top = pprof("-symbolize=none", "-top", f"-tagfocus=span_id={SPAN.span_id.hex()}", waits)

    assert flat_values(top)["[spin]"] == "5ms"
    assert "saxpy<float>(int, float*)" not in flat_values(top)


def test_empty_file_opens(tmp_path: Path) -> None:
    """A recording without samples is a file that pprof opens and calls empty."""
    path = written(tmp_path / "a.pb.gz", bundle({sample_types.GPU_WAIT: []}))

    assert "Showing nodes accounting for 0" in pprof("-symbolize=none", "-top", path)
