"""How a recorded command gets the library."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_gpuflame.capture.cupti import inject
from otel_gpuflame.errors import SourceUnavailable
from otel_gpuflame.pipeline import recording
from otel_gpuflame.pipeline.recording import RecordOptions

COMMAND = RecordOptions(output=None, command=("true",))


@pytest.fixture(autouse=True)
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A packaged library."""
    path = tmp_path / "libogf_inject.so"
    path.write_bytes(b"")
    monkeypatch.setattr(inject, "LIBRARY", path)
    monkeypatch.delenv(inject.VARIABLE, raising=False)
    return path


def test_the_path_is_absolute_and_the_rest_stays(library: Path) -> None:
    """The driver loads it from whatever directory the program is in."""
    environment = {"HOME": "/x"}
    assert inject.injecting(environment) == {"HOME": "/x", inject.VARIABLE: str(library)}
    assert environment == {"HOME": "/x"}
    assert inject.LIBRARY.is_absolute()


def test_our_own_library_elsewhere_is_left(library: Path) -> None:
    """As a pod has it, or a shell after `otel-gpuflame env`."""
    environment = {inject.VARIABLE: "/otel-gpuflame/libogf_inject.so"}
    assert inject.injecting(environment) == environment


def test_an_empty_variable_is_as_none(library: Path) -> None:
    """The driver takes it so too."""
    assert inject.injecting({inject.VARIABLE: ""}) == {inject.VARIABLE: str(library)}


def test_another_profilers_library_is_not_replaced() -> None:
    """The driver loads only one, and whoever set it wants that."""
    with pytest.raises(SourceUnavailable, match=r"is already set to /opt/nsys/lib\.so"):
        inject.injecting({inject.VARIABLE: "/opt/nsys/lib.so"})


def test_record_gives_a_command_the_library(library: Path) -> None:
    """And nothing with --no-gpu."""
    environment, has_gpu = recording._environment(COMMAND)
    assert (environment[inject.VARIABLE], has_gpu) == (str(library), True)
    assert environment[inject.START_VARIABLE] == "1"
    without = RecordOptions(output=None, command=("true",), gpu=False)
    environment, has_gpu = recording._environment(without)
    assert (inject.VARIABLE in environment, has_gpu) == (False, False)


def test_whoever_has_set_the_start_means_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that must not be recorded from its beginning."""
    monkeypatch.setenv(inject.START_VARIABLE, "0")
    assert recording._environment(COMMAND)[0][inject.START_VARIABLE] == "0"


def test_record_of_a_running_process_changes_no_environment() -> None:
    """What it was started with decides."""
    environment, has_gpu = recording._environment(RecordOptions(output=None, pid=1))
    assert (inject.VARIABLE in environment, has_gpu) == (False, True)


@pytest.mark.parametrize("is_missing", [True, False])
def test_record_goes_on_without_gpu_times(
    is_missing: bool,
    library: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And says why, and how to have it quiet."""
    if is_missing:
        library.unlink()
    else:
        monkeypatch.setenv(inject.VARIABLE, "/opt/nsys/lib.so")
    environment, has_gpu = recording._environment(COMMAND)
    # What OpenCL executes is recorded all the same.
    assert has_gpu
    assert environment.get(inject.VARIABLE) == (None if is_missing else "/opt/nsys/lib.so")
    (message,) = caplog.messages
    assert message.startswith("no times of CUDA work are recorded: ")
    assert message.endswith(", or give --no-gpu")
    assert ("make native" if is_missing else "already set") in message


@pytest.mark.parametrize(
    ("present", "expected"),
    [
        ("", "{ours}"),
        ("/opt/other.so", "{ours}:/opt/other.so"),
        ("/opt/other.so:/elsewhere/libogf_opencl.so", "/opt/other.so:/elsewhere/libogf_opencl.so"),
    ],
)
def test_the_opencl_layer_stands_before_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, present: str, expected: str
) -> None:
    """Once, whoever else has layers; a copy of ours that is there already stays."""
    layer = tmp_path / "libogf_opencl.so"
    layer.touch()
    monkeypatch.setattr(inject, "LAYER", layer)
    environment = inject.layering({inject.LAYERS_VARIABLE: present})
    assert environment[inject.LAYERS_VARIABLE] == expected.format(ours=layer)


def test_without_the_layer_nothing_is_changed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A checkout that was not built records calls as before."""
    monkeypatch.setattr(inject, "LAYER", tmp_path / "libogf_opencl.so")
    assert inject.layering({"A": "b"}) == {"A": "b"}
