# SPDX-License-Identifier: Apache-2.0
"""Python frames where they are hard to find, and stacks that must not be taken for one another."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from otel_gpuflame.events.wire import Kind
from otel_gpuflame.profile.sample_types import GPU_LAUNCH, GPU_WAIT
from tests.fakes.build import app_command, build_fakes, fake_environment
from tests.integration.bpf.recording import app, total
from tests.integration.bpf.session import attach_and_record, record_in_step
from tests.tiers import require

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("bpf_tier")]


WAITS = 5
NOT_FOUND = "[no Python frames: more threads than are searched at a time]"
FOREIGN_THREAD = """
#include <pthread.h>
#include <stddef.h>
int cuCtxSetCurrent(void *context);
int cuCtxGetCurrent(void **ret);
int cuCtxSynchronize(void);
struct work { int count; void (*python)(void); void *context; };
static void *run(void *argument)
{
	struct work *work = argument;
	cuCtxSetCurrent(work->context);
	for (int i = 0; i < work->count; i++)
		cuCtxSynchronize();
	work->python();
	return NULL;
}
int wait_then_call(int count, void (*python)(void))
{
	struct work work = {count, python, NULL};
	pthread_t thread;
	if (cuCtxGetCurrent(&work.context) || pthread_create(&thread, NULL, run, &work))
		return 1;
	return pthread_join(thread, NULL);
}
"""


@pytest.mark.parametrize("shape", ["many_threads", "subinterpreter"])
def test_frames_are_found_whatever_else_the_interpreter_holds(
    shape: str, output: Path, environment: dict[str, str]
) -> None:
    """The main thread behind 400 newer ones, or with a newer interpreter, has its frames."""
    recording = attach_and_record(output, app("odd_stacks", shape, "--hold"), environment)
    truth = recording.truth
    assert truth["launches"] == 1
    (wait,) = recording.samples(GPU_WAIT)
    names = [name for name, _ in wait.python()]
    assert (truth["function"], truth["line"]) in wait.python()
    assert names[:3] == ["<module>", "run", "main"]


def test_among_too_many_threads_the_search_goes_on_with_the_next_call(
    output: Path, environment: dict[str, str]
) -> None:
    """Calls until then say that their Python frames are missing, and why; the later ones have them."""
    # Samples of the thread would look for it, too.
    command = app("odd_stacks", "too_many_threads", "--hold")
    recording = attach_and_record(output, command, environment, "--no-cpu")
    truth = recording.truth
    assert truth["launches"] == WAITS
    samples = recording.samples(GPU_LAUNCH)
    searching = [s for s in samples if NOT_FOUND in s.marks()]
    found = [s for s in samples if truth["function"] in [name for name, _ in s.python()]]
    # Two calls each time around: a launch, then a wait. The third of them finds the thread.
    assert (total(searching), total(found)) == (1, WAITS - 1)
    assert recording.capture.count("symbolize", "python_stacks_unreadable") >= 1
    waits = recording.samples(GPU_WAIT)
    assert {NOT_FOUND in s.marks() for s in waits if not s.python()} == {True}
    assert any((truth["function"], truth["line"]) in s.python() for s in waits)


def test_a_thread_that_enters_python_late_has_its_frames(
    output: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    """That it has none is known after its first call, and forgotten when it gets some."""
    library = tmp_path / "libforeign.so"
    driver = Path(environment["LD_LIBRARY_PATH"].split(":")[0]) / "libcuda.so.1"
    compiler = ["cc", "-shared", "-fPIC", "-pthread", "-o", str(library)]
    command = [*compiler, "-x", "c", "-", "-x", "none", str(driver)]
    subprocess.run(command, input=FOREIGN_THREAD.encode(), check=True)
    recording = attach_and_record(
        output,
        app("odd_stacks", "foreign_thread", "--hold"),
        {**environment, "FOREIGN_THREAD": str(library)},
    )
    truth = recording.truth
    waits = recording.samples(GPU_WAIT)
    (of_python,) = [s for s in waits if s.python()]
    assert (truth["function"], truth["line"]) in of_python.python()
    assert not any(NOT_FOUND in s.marks() for s in waits)
    assert len(recording.capture.api("cuCtxSynchronize")) == WAITS + 1


def test_a_stack_that_is_too_deep_keeps_its_leaf_and_says_so(
    output: Path, environment: dict[str, str]
) -> None:
    """The 128 innermost frames are kept; a mark stands at the root instead of the others."""
    recording = attach_and_record(output, app("odd_stacks", "deep", "--hold"), environment)
    (wait,) = recording.samples(GPU_WAIT)
    assert wait.frames[0].name == "[Python stack truncated]"
    assert len(wait.python()) == 128
    assert (recording.truth["function"], recording.truth["line"]) in wait.python()


def test_equal_addresses_before_and_after_exec_are_not_one_stack(
    output: Path, environment: dict[str, str]
) -> None:
    """Without address space randomisation two programs of one process share addresses, not frames."""
    require("bpf", shutil.which("setarch") is not None, "setarch (util-linux) is missing")
    fixed = {**environment, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    command = ["setarch", "-R", *app("two_programs", 1, "--hold")]
    recording = record_in_step(output, *command, environment=fixed)
    first, second = recording.truths
    assert first["pid"] == second["pid"]
    launches = recording.samples(GPU_LAUNCH)
    functions = [name for sample in launches for name, _ in sample.python()]
    assert functions.count("in_program_1") == functions.count("in_program_2") == 1
    assert total(launches) == 2


@pytest.mark.parametrize("frame_pointers", [True, False])
def test_a_driver_with_endbr64_is_counted_and_measured(frame_pointers: bool, output: Path) -> None:
    """Probes behind endbr64, in code with or without frame pointers, see every call and its return."""
    fakes = build_fakes(cf_protection="full", frame_pointers=frame_pointers)
    log = output.with_suffix(".log")
    environment = fake_environment(fakes, FAKE_CUDA_LOG=str(log))
    command = app_command("app_wait", 20, 5, "--hold")
    recording = record_in_step(output, *command, environment=environment)
    truth = recording.truth
    assert len(recording.capture.kind(Kind.LAUNCH)) == len(recording.capture.kind(Kind.WAIT)) == 5
    assert recording.capture.pending() == {}
    assert 0 < total(recording.samples(GPU_WAIT)) <= sum(truth["duration_ns"])
    for sample in recording.samples(GPU_WAIT):
        assert (truth["function"], truth["line"]) in sample.python()
