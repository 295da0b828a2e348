"""The example's transformer, on the CPU: `OGF_TORCH_PYTHON` names an interpreter with PyTorch where this has none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

INFERENCE = Path(__file__).parents[3] / "examples" / "inference"
PROGRAM = """
import json, sys
from torch_model import TorchModel, MAX_BATCH

PROMPTS = {3: 17, 0: 5, 9: 40}

def alone(slot, steps):
    model = TorchModel("cpu", 2, 128)
    model.prefill(slot, PROMPTS[slot])
    return [model.decode([slot])[0] for _ in range(steps)]

def together(steps):
    # Each joins a step later than the one before, and the first leaves early.
    model, said, slots = TorchModel("cpu", 2, 128), {slot: [] for slot in PROMPTS}, []
    joining = list(PROMPTS)
    while joining or slots:
        if joining:
            slots.append(joining.pop(0))
            model.prefill(slots[-1], PROMPTS[slots[-1]])
        for slot, token in zip(slots, model.decode(slots), strict=True):
            said[slot].append(token)
        slots = [slot for slot in slots if len(said[slot]) < steps]
    return said

model = TorchModel("cpu", 1, 64)
model.warm_up()
again = TorchModel("cpu", 2, 128)
for _ in range(2):
    again.prefill(3, PROMPTS[3])
    reused = [again.decode([3])[0] for _ in range(6)]
print(json.dumps({"alone": {slot: alone(slot, 6) for slot in PROMPTS}, "together": together(6), "reused": reused}))
"""


@pytest.fixture(scope="module")
def tokens() -> dict[str, dict[str, list[int]]]:
    """What the model said, to each text alone and to all in one batch."""
    python = os.environ.get("OGF_TORCH_PYTHON", sys.executable)
    needed = "import torch, opentelemetry.sdk"
    if subprocess.run([python, "-c", needed], capture_output=True, check=False).returncode:
        pytest.skip("torch or opentelemetry-sdk is not installed: see OGF_TORCH_PYTHON")
    paths = os.pathsep.join([str(INFERENCE), str(INFERENCE.parents[1])])
    done = subprocess.run(
        [python, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said: dict[str, dict[str, list[int]]] = json.loads(done.stdout)
    return said


def test_a_batch_says_to_each_text_what_it_would_say_to_it_alone(
    tokens: dict[str, dict[str, list[int]]],
) -> None:
    """Also to those that come later and stay longer: neither the cache nor the mask mixes texts."""
    assert tokens["together"] == tokens["alone"]
    assert len({tuple(each) for each in tokens["alone"].values()}) > 1


def test_a_slot_can_be_used_again(tokens: dict[str, dict[str, list[int]]]) -> None:
    """What an earlier text left in the cache is not seen."""
    assert tokens["reused"] == tokens["alone"]["3"]
