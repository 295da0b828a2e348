"""What launches and executions are told apart by, and for how long it is remembered."""

from __future__ import annotations

from otel_gpuflame.correlate.gpu.signatures import Signatures
from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.events.records import HandleName, Names
from tests.held import held
from tests.unit.correlate.gpu.traffic import PROCESS, call, executed

OTHER = ProcessKey(PROCESS.tgid + 1, PROCESS.start_ns)


def signature(signatures: Signatures, process: ProcessKey, handle: int) -> int:
    """Of a launch of the function."""
    return int(signatures.of_calls(process, call(1, 10, object=handle))[0])


def learn(signatures: Signatures, process: ProcessKey, handle: int, name: str) -> None:
    """The process names a function."""
    signatures.learn(Names((HandleName(process, 0, handle, name),)))


def test_both_sides_have_one_signature_for_a_kernel() -> None:
    """A launch goes by the function's handle, an execution by the text; another kernel has another."""
    signatures = Signatures()
    learn(signatures, PROCESS, 0xA0, "gemm")
    learn(signatures, PROCESS, 0xB0, "relu")
    learn(signatures, PROCESS, 7, "gemm")
    theirs = signatures.of_executions(PROCESS, executed(1, 20, 30, name=7))
    assert signature(signatures, PROCESS, 0xA0) == theirs[0]
    assert signature(signatures, PROCESS, 0xB0) != theirs[0]


def test_copies_are_told_apart_by_their_size() -> None:
    """And from launches."""
    signatures = Signatures()
    sizes = [
        int(signatures.of_calls(PROCESS, call(2, 10, api="cuMemcpyDtoH", bytes=n))[0])
        for n in (1, 1, 4096)
    ]
    assert sizes[0] == sizes[1] != sizes[2]
    assert signature(signatures, PROCESS, 1) not in sizes


def test_names_of_ended_processes_are_forgotten_and_none_is_taken_for_another() -> None:
    """Kernels of those that live keep their number, and new ones get numbers that nobody has."""
    signatures = Signatures()
    learn(signatures, PROCESS, 0xA0, "gemm")
    learn(signatures, OTHER, 0xA0, "relu")
    learn(signatures, OTHER, 0xB0, "gemm")
    shared, own = signature(signatures, OTHER, 0xB0), signature(signatures, OTHER, 0xA0)
    signatures.forget({PROCESS})
    assert signature(signatures, OTHER, 0xB0) == shared
    assert signature(signatures, OTHER, 0xA0) == own
    learn(signatures, PROCESS, 0xA0, "softmax")
    assert signature(signatures, PROCESS, 0xA0) not in (shared, own)
    signatures.forget({PROCESS, OTHER})
    assert signature(signatures, OTHER, 0xB0) == signature(signatures, OTHER, 0xA0)


def test_names_that_no_handle_has_any_more_go() -> None:
    """A program that loads modules for days gives its handles new names, and does not end."""
    signatures = Signatures()
    texts = [f"kernel_{number}_of_a_module" for number in range(20_000)]
    for number in range(len(texts)):
        learn(signatures, PROCESS, number % 10, texts[number])
    assert held(texts) < 5_000


def test_names_of_new_handles_without_end_go() -> None:
    """One process, each name with a handle of its own."""
    signatures = Signatures()
    texts = [f"{number:04x}" * 4_000 for number in range(6_000)]
    for number in range(len(texts)):
        learn(signatures, PROCESS, number, texts[number])
    assert held(texts) <= (64 << 20) // 16_000 + 1_100
    assert signature(signatures, PROCESS, 5_999) != signature(signatures, PROCESS, 5_998)
