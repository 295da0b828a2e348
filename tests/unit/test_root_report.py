"""What is said of a recording's roots is true of stacks of which everything is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from otel_gpuflame.events import wire
from otel_gpuflame.events.frames import Frame, FrameKind, ProcessKey, Stack, StackKey, mark
from otel_gpuflame.events.records import Calls, Stacks
from otel_gpuflame.symbolize.stacks import NATIVE_CUT
from tests.integration.gpu.root_report import report_roots, report_whole

KERNEL = Frame(FrameKind.GPU, "kernel")
LAUNCH = Frame(FrameKind.NATIVE, "cuLaunchKernel")
ENGINE = Frame(FrameKind.NATIVE, "torch::autograd::Engine::evaluate_function(…)")


@pytest.fixture
def lines(tmp_path: Path) -> dict[str, Frame]:
    """Frames of a program by what their lines say."""
    program = tmp_path / "steps.py"
    texts = ["loss = model(batch).square().mean()", "loss.backward()", "optimizer.step()"]
    program.write_text("\n".join(texts) + "\n")
    frames = (
        Frame(FrameKind.PYTHON, "step", "", str(program), number + 1)
        for number in range(len(texts))
    )
    return dict(zip(("forward", "backward", "step"), frames, strict=True))


def test_shares_are_of_time(lines: dict[str, Frame]) -> None:
    """Three lines of a training step; two in a hundred ns have no Python."""
    samples = [
        ([lines["forward"], LAUNCH, KERNEL], 400),
        ([lines["forward"], LAUNCH, Frame(FrameKind.GPU, "other")], 100),
        ([lines["backward"], ENGINE, LAUNCH, KERNEL], 300),
        ([lines["step"], LAUNCH, KERNEL], 180),
        ([NATIVE_CUT, LAUNCH, KERNEL], 20),
    ]
    found = report_roots("train", samples)
    assert found["without_python"] == pytest.approx(0.02)
    assert found["lines"] == pytest.approx(
        {"model(batch)": 0.5, "loss.backward()": 0.3, "optimizer.step()": 0.18}
    )
    assert found["backward_elsewhere"] == 0
    assert not found["ok"]
    assert report_roots("train", samples[:-1])["ok"]


def test_backward_work_under_another_line_is_found(lines: dict[str, Frame]) -> None:
    """A kernel of the engine under the forward line is not where it belongs."""
    found = report_roots("decode", [([lines["forward"], ENGINE, LAUNCH, KERNEL], 100)])
    assert found["backward_elsewhere"] == 1
    assert not found["ok"]


@pytest.mark.parametrize("name", ["train", "decode"])
def test_nothing_recorded_is_not_good(name: str) -> None:
    """No sample, and time without any stack."""
    assert not report_roots(name, [])["ok"]
    assert not report_roots(name, [([mark("no launch: no probe"), KERNEL], 5)])["ok"]


def test_whole_is_what_no_mark_says_is_cut_since_then(lines: dict[str, Frame]) -> None:
    """Of four launches one comes too early, one has a stack that is cut, and one none."""
    process = ProcessKey(1, 0)
    whole = Stack(StackKey(1, 0), process, (lines["forward"], ENGINE, LAUNCH))
    cut = Stack(StackKey(2, 0), process, (lines["forward"], NATIVE_CUT, LAUNCH))
    rows = np.zeros(4, wire.CALL)
    rows["kind"] = wire.Kind.LAUNCH
    rows["start_ns"] = [5, 10, 11, 12]
    rows["stack_hash"][:, 0] = [2, 1, 2, 3]
    found = report_whole([Stacks((whole, cut)), Calls(rows)], since_ns=10)
    assert (found["launches"], found["whole_launches"]) == (3, 1)
    assert (found["stacks"], found["whole_stacks"]) == (3, 1)
    assert found["native_frames"] == [2, 2, 2]
    assert not found["ok"]
    assert report_whole([Stacks((whole, cut)), Calls(rows[1:2])], since_ns=10)["ok"]
    assert not report_whole([], since_ns=0)["ok"]
