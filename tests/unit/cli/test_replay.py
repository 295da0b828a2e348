"""`replay` on a hand-made recording: what it writes, and what it says."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from otel_gpuflame.encode._vendor import profile_pb2
from otel_gpuflame.encode.otlp import encode_otlp
from otel_gpuflame.pipeline import replay
from otel_gpuflame.profile import sample_types
from otel_gpuflame.profile.aggregate import AggregateOptions
from otel_gpuflame.profile.top import total
from tests.unit.cli.captures import LINKED, ROOT, run, run_program, write_capture
from tests.unit.profile.builders import ROOT_ID, SPAN_ID, START

WAITED_NS = sum(1_000_003 * (n + 1) + 7_001 + n for n in range(60))
COPIED_BYTES = sum(1_000 + n for n in range(60))
# 60 launches, 60 copies, and 3 launches that were lost.
SUBMISSIONS = 123
TOTALS = {"gpu_wait": WAITED_NS, "gpu_launch": SUBMISSIONS, "gpu_copy": COPIED_BYTES}


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recording."""
    return write_capture(tmp_path_factory.mktemp("capture") / "train.ogfcap")


def read_pprof(path: Path) -> profile_pb2.Profile:
    """A pprof file."""
    return profile_pb2.Profile.FromString(gzip.decompress(path.read_bytes()))


def pprof_totals(profile: profile_pb2.Profile) -> dict[str, int]:
    """Sum of each sample type."""
    names = [profile.string_table[t.type] for t in profile.sample_type]
    sums = [sum(column) for column in zip(*(s.value for s in profile.sample), strict=True)]
    return dict(zip(names, sums, strict=True))


def folded(text: str) -> Counter[str]:
    """Values of folded stacks."""
    return Counter({s: int(v) for s, v in (line.rsplit(" ", 1) for line in text.splitlines())})


def test_without_options_there_are_tables(capture: Path) -> None:
    """Where it waited, how, what was launched, totals and the ledger, on standard output."""
    result = run("replay", capture)
    assert result.exit_code == 0
    assert not result.stderr
    for text in (
        "GPU waits by Python line",
        "Trainer.step  train.py:88",
        "Trainer.step  train.py:90",
        "[no Python frame]",
        "How the CPU waited",
        "[spin]",
        "[blocked]",
        "What the GPU was given",
        "gemm",
        "[copy DtoH]",
        "[lost: ring full]",
        f"gpu_wait {WAITED_NS / 1e9:.2f} s, gpu_launch {SUBMISSIONS}",
        "183 calls seen, 180 profiled, 3 lost",
        "launch: ring full 3",
    ):
        assert text in result.stdout, text


def test_the_number_of_rows_is_limited(capture: Path) -> None:
    """With --top the rest of each table is one row, so that the shares still add up."""
    lines = [line.rstrip() for line in run("replay", capture, "--top", "1").stdout.splitlines()]
    assert [line.split("… ")[1] for line in lines if "… " in line] == ["2 more", "1 more", "4 more"]
    assert "more" not in run("replay", capture, "--top", "100").stdout


@pytest.mark.parametrize("sample_type", ["gpu_wait", "gpu_launch", "gpu_copy"])
def test_folded_stacks_go_to_a_file(capture: Path, tmp_path: Path, sample_type: str) -> None:
    """Values of the file add up to the total of the sample type."""
    path = tmp_path / "out.folded"
    result = run("replay", capture, "--folded", path, "--sample-type", sample_type)
    assert result.exit_code == 0
    assert folded(path.read_text()).total() == TOTALS[sample_type]


def test_folded_stacks_alone_go_to_standard_output(capture: Path, tmp_path: Path) -> None:
    """With `-` standard output has nothing but stacks, tables go to standard error, no file appears."""
    path = tmp_path / "out.folded"
    run("replay", capture, "--folded", path)
    result = run_program("replay", capture, "--folded", "-", "--pprof", tmp_path / "p")
    assert result.returncode == 0
    assert result.stdout.decode() == path.read_text()
    assert b"GPU waits by Python line" in result.stderr
    assert not (ROOT / "-").exists()


def test_a_full_disk_is_named(capture: Path) -> None:
    """What cannot be written is an error with the reason, not a traceback."""
    result = run_program("replay", capture, "--folded", "/dev/full")
    assert result.returncode == 1
    assert result.stderr.endswith(b"error: cannot write /dev/full: No space left on device\n")


def test_a_reader_that_stops_early_is_no_crash(capture: Path) -> None:
    """`| head` may close the pipe before anything was written: there is no traceback."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "otel_gpuflame", "replay", str(capture), "--folded", "-"]
    try:
        result = subprocess.run(
            command, cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(writer)
    assert result.returncode == 1
    assert b"Traceback" not in result.stderr


def test_pprof_has_all_sample_types(capture: Path, tmp_path: Path) -> None:
    """One file, with the headline as default, sums that are exact, and time and length of the recording."""
    path = tmp_path / "train.pb.gz"
    result = run("replay", capture, "--pprof", path)
    assert result.exit_code == 0
    profile = read_pprof(path)
    assert pprof_totals(profile) == TOTALS
    assert profile.string_table[profile.default_sample_type] == "gpu_wait"
    assert profile.time_nanos == START.time_ns + START.unix_offset_ns
    assert profile.duration_nanos == 61_000_000_000
    assert str(path) in result.stdout


def test_html_holds_the_page_and_the_spans(capture: Path, tmp_path: Path) -> None:
    """The page is whole, titled by the capture, and lists the spans."""
    path = tmp_path / "train.html"
    assert run("replay", capture, "--html", path).exit_code == 0
    page = path.read_text()
    assert page.rstrip().endswith("</html>")
    assert "train.ogfcap" in page


def test_only_a_span(capture: Path, tmp_path: Path) -> None:
    """With --span-id files and tables hold what belongs to the span, and nothing else."""
    path, out = tmp_path / "span.pb.gz", tmp_path / "span.folded"
    arguments = ("--pprof", path, "--folded", out, "--span-id", ROOT_ID.hex())
    result = run("replay", capture, *arguments)
    assert result.exit_code == 0
    expected = sum(1_000_003 * (n + 1) + 7_001 + n for n in range(0, 60, 3))
    assert pprof_totals(read_pprof(path))["gpu_wait"] == expected
    assert folded(out.read_text()).total() == expected
    profile = read_pprof(path)
    spans = {
        profile.string_table[label.str]
        for sample in profile.sample
        for label in sample.label
        if profile.string_table[label.key] == "span_id"
    }
    assert spans == {ROOT_ID.hex()}


def test_the_link_decides_which_span_it_is(capture: Path) -> None:
    """The innermost span is found with --span-link active only, the local root only without."""
    active = ("--span-link", "active")
    assert run("replay", capture, "--span-id", SPAN_ID.hex(), *active).exit_code == 0
    for arguments in ((SPAN_ID.hex(),), (ROOT_ID.hex(), *active)):
        result = run("replay", capture, "--span-id", *arguments)
        assert result.exit_code == 1
        assert f"no sample belongs to span {arguments[0]}" in result.stderr
    assert LINKED["span_id"] == SPAN_ID


def test_spans_may_be_written_in_capitals(capture: Path) -> None:
    """Hexadecimal digits have no case."""
    assert run("replay", capture, "--span-id", ROOT_ID.hex().upper()).exit_code == 0


def test_two_replays_give_the_same_bytes(capture: Path, tmp_path: Path) -> None:
    """pprof, OTLP, folded and HTML are byte-identical, also from processes that hash differently."""
    outputs = []
    for seed in ("1", "2"):
        paths = [tmp_path / f"{seed}.{kind}" for kind in ("pb.gz", "folded", "html")]
        options = zip(("--pprof", "--folded", "--html"), paths, strict=True)
        arguments = [item for pair in options for item in pair]
        result = run_program("replay", capture, *arguments, PYTHONHASHSEED=seed)
        assert result.returncode == 0, result.stderr
        outputs.append([path.read_bytes() for path in paths])
    assert outputs[0] == outputs[1]
    windows = AggregateOptions(window_ns=10_000_000_000)
    requests = [
        [request.SerializeToString(deterministic=True) for request in encode_otlp(bundles)]
        for bundles in (replay(capture, windows).bundles for _ in range(2))
    ]
    assert requests[0] == requests[1] != []


def test_windows_add_up_to_the_whole(capture: Path) -> None:
    """What is sent in windows of ten seconds is what the tables show for the whole."""
    windows = replay(capture, AggregateOptions(window_ns=10_000_000_000)).bundles
    assert len({bundle.window for bundle in windows}) > 5
    assert {name: total(windows, sample_types.by_name(name)) for name in TOTALS} == TOTALS


def test_paths_with_brackets_and_long_paths_are_shown_as_they_are(
    capture: Path, tmp_path: Path
) -> None:
    """A path is no markup, and is not broken over lines: it can be copied from the terminal."""
    directory = tmp_path / ("d" * 100) / "[bold]x[/nothing]"
    directory.mkdir(parents=True)
    path = directory / "out[1].pb.gz"
    result = run("replay", capture, "--pprof", path)
    assert result.exit_code == 0
    assert f"{path}: " in result.stdout


def test_a_path_that_cannot_be_written_is_an_error(capture: Path, tmp_path: Path) -> None:
    """The message names path and reason; this is a failure, not a host that cannot capture."""
    path = tmp_path / "missing" / "out.pb.gz"
    result = run("replay", capture, "--pprof", path)
    assert result.exit_code == 1
    assert f"error: cannot write {path}: No such file or directory" in result.stderr


def test_a_capture_without_calls_is_no_error(tmp_path: Path) -> None:
    """Nothing was recorded: the tables say so, and the files are valid and empty."""
    empty = write_capture(tmp_path / "empty.ogfcap", [START])
    out = [tmp_path / name for name in ("e.pb.gz", "e.html", "e.folded")]
    result = run("replay", empty, "--pprof", out[0], "--html", out[1], "--folded", out[2])
    assert result.exit_code == 0
    assert "GPU waits by Python line: none" in result.stdout
    assert "0 calls seen, 0 profiled, 0 lost" in result.stdout
    assert not read_pprof(out[0]).sample
    assert out[1].read_text().rstrip().endswith("</html>")
    assert out[2].read_text() == ""


def test_a_cut_capture_gives_what_was_whole(capture: Path, tmp_path: Path) -> None:
    """The rest is named on standard error, with the place; the exit code is 0 since there is a profile."""
    data = capture.read_bytes()
    path = tmp_path / "cut.ogfcap"
    path.write_bytes(data[: len(data) * 2 // 3])
    out = tmp_path / "cut.pb.gz"
    result = run("replay", path, "--pprof", out)
    assert result.exit_code == 0
    assert f"warning: {path}: at offset " in result.stderr
    assert "what came before it was used" in result.stderr
    waited_ns = pprof_totals(read_pprof(out))["gpu_wait"]
    assert 0 < waited_ns < WAITED_NS
    assert "still in the driver" not in result.stdout


def test_a_cut_capture_keeps_standard_output_clean(capture: Path, tmp_path: Path) -> None:
    """The warning does not get into the stacks."""
    path = tmp_path / "cut.ogfcap"
    path.write_bytes(capture.read_bytes()[:-40])
    result = run_program("replay", path, "--folded", "-")
    assert result.returncode == 0
    assert folded(result.stdout.decode())
    assert b"warning: " in result.stderr


def test_every_cut_is_survived(capture: Path, tmp_path: Path) -> None:
    """Wherever a file ends, it is an error before the first whole header, and a warning after it."""
    data = capture.read_bytes()
    path = tmp_path / "cut.ogfcap"
    for length in (*range(0, 60, 7), *range(60, len(data), max(1, len(data) // 40))):
        path.write_bytes(data[:length])
        result = run("replay", path)
        assert result.exit_code in (0, 1)
        assert ("error: " if result.exit_code else "warning: ") in result.stderr


@pytest.mark.parametrize(
    "content", [b"", b"x", b"not a capture file\n" * 100, b"\x1f\x8b\x08" + bytes(500)]
)
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    """A file that is no capture is one line and exit code 1."""
    path = tmp_path / "other.bin"
    path.write_bytes(content)
    result = run("replay", path)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: {path}: ")
    assert result.stderr.count("\n") == 1
    assert not result.stdout


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """Path and reason, and exit code 1."""
    path = tmp_path / "none.ogfcap"
    result = run("replay", path)
    assert result.exit_code == 1
    assert result.stderr == f"error: cannot read {path}: No such file or directory\n"


def test_an_endpoint_that_is_down_is_a_failure(
    capture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was not accepted is counted and said, and the exit code is 1."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    result = run(
        "replay", capture, "--endpoint", "http://127.0.0.1:1", "--protocol", "http/protobuf"
    )
    assert result.exit_code == 1
    assert "error: " in result.stderr
    assert "(http/protobuf): 0 of " in result.stdout


def test_sending_keeps_standard_output_clean(
    capture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With folded stacks on standard output, the result of sending goes to standard error too."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    arguments = ("--endpoint", "http://127.0.0.1:1", "--protocol", "http/protobuf", "--folded", "-")
    result = run("replay", capture, *arguments)
    assert result.exit_code == 1
    assert folded(result.stdout).total() == WAITED_NS
    assert "0 of " in result.stderr


def test_an_endpoint_that_is_none_is_wrong_usage(capture: Path) -> None:
    """A flag with a value that cannot be used ends with 2."""
    result = run("replay", capture, "--endpoint", "ftp://127.0.0.1")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
