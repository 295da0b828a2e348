"""Encoding elsewhere gives what encoding here gives."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Iterator

import pytest

from otel_gpuflame.encode.otlp import encode_requests
from otel_gpuflame.findings.find import find
from otel_gpuflame.findings.model import Finding
from otel_gpuflame.pipeline.encoding import EncodingProcess
from tests.unit.encode.bundles import waits_and_launches
from tests.unit.findings.programs import unpinned_copy


@pytest.fixture
def encode() -> Iterator[EncodingProcess]:
    """An encoding process, ended with the test."""
    process = EncodingProcess()
    yield process
    process.close()


def test_requests_are_the_same(encode: EncodingProcess) -> None:
    """Byte for byte, and nothing is dropped."""
    dropped: Counter[str] = Counter()
    there = encode([waits_and_launches()], dropped=dropped)
    here = encode_requests([waits_and_launches()], dropped=Counter())
    assert [e.request for e in there] == [e.request for e in here]
    assert not dropped


def test_findings_come_from_where_bundles_are_encoded() -> None:
    """Rules are asked there, too, and only if somebody wants to know."""
    noted: list[Finding] = []
    encode = EncodingProcess(noted.extend)
    bundles = unpinned_copy().bundles()
    encode(bundles, dropped=Counter())
    encode.close()
    assert noted == find(bundles)
    assert len(noted) == 1


def test_a_process_that_dies_is_replaced() -> None:
    """The window in hand is encoded here, the next one in another process."""
    # Those of earlier tests end in their own time.
    others = set(multiprocessing.active_children())
    encode = EncodingProcess()
    expected = [e.request for e in encode([waits_and_launches()], dropped=Counter())]
    (worker,) = set(multiprocessing.active_children()) - others
    worker.kill()
    worker.join()
    again = [e.request for e in encode([waits_and_launches()], dropped=Counter())]
    assert again == expected
    assert [e.request for e in encode([waits_and_launches()], dropped=Counter())] == expected
    (successor,) = set(multiprocessing.active_children()) - others
    encode.close()
    successor.join()
