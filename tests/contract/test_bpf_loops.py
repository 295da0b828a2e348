# SPDX-License-Identifier: Apache-2.0
"""Loops of the BPF object as Linux 6.1 wants them. Newer kernels take any, so that only the kernel tier would tell."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess

import pytest

from otel_gpuflame.capture.bpf.kernel import OBJECT

OBJDUMP = "llvm-objdump"


def functions() -> dict[str, dict[int, str]]:
    """Instructions of each function by their position in its section."""
    command = [OBJDUMP, "-d", "--no-show-raw-insn", str(OBJECT)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found: dict[str, dict[int, str]] = {}
    current: dict[int, str] = {}
    for line in text.splitlines():
        if name := re.match(r"[0-9a-f]+ <(\w+)>:$", line):
            if not name[1].startswith("LBB"):
                current = found.setdefault(name[1], {})
        elif instruction := re.match(r"\s+(\d+):\s+(.*)$", line):
            current[int(instruction[1])] = instruction[2]
    return found


def entered_in_the_middle(instructions: dict[int, str]) -> list[int]:
    """Where straight code runs into an instruction that the search from the first one is still below.

    The search takes the next instruction before the target of a jump, as the verifier's does.
    """
    places = sorted(instructions)
    following = dict(itertools.pairwise(places))

    def edges(place: int) -> list[tuple[int, bool]]:
        text = instructions[place]
        if text.startswith("exit"):
            return []
        jump = re.search(r"goto ([+-](?:0x)?[0-9a-f]+)", text)
        next_ = [(following[place], jump is not None)] if place in following else []
        if jump is None:
            return next_
        target = (place + 1 + int(jump[1], 0), True)
        return [*next_, target] if text.startswith("if") else [target]

    below, done, wrong = {places[0]}, set[int](), []
    path = [(places[0], iter(edges(places[0])))]
    while path:
        place, rest = path[-1]
        for target, by_jump in rest:
            if target in below and not by_jump:
                wrong.append(place)
            if target not in below and target not in done:
                below.add(target)
                path.append((target, iter(edges(target))))
                break
        else:
            path.pop()
            below.discard(place)
            done.add(place)
    return wrong


@pytest.mark.skipif(shutil.which(OBJDUMP) is None, reason=f"{OBJDUMP} is missing")
def test_no_loop_is_entered_in_its_middle() -> None:
    """`back-edge from insn … to …`: clang lays a loop out so where one round hands a register to the next."""
    found = functions()
    assert "ogf_walk_frames" in found
    wrong = {name: entered_in_the_middle(code) for name, code in found.items()}
    assert not {name: places for name, places in wrong.items() if places}


def test_such_a_loop_is_found() -> None:
    """A jump into a loop whose end falls through to its beginning."""
    loop = {
        0: "goto +1 <x>",
        1: "r1 = r2",
        2: "r1 += 1",
        3: "if r1 > 9 goto +1 <x>",
        4: "goto -4 <x>",
    }
    assert entered_in_the_middle({**loop, 5: "exit"}) == [1]
    assert (
        entered_in_the_middle({0: "r1 = 0", **{k: v for k, v in loop.items() if k}, 5: "exit"})
        == []
    )
