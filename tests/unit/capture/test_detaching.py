"""Links are let go of at the same time, since each takes the kernel a while."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from otel_gpuflame.capture.bpf.detaching import detach_together

LIMIT_S = 60


def test_detachers_run_at_the_same_time() -> None:
    """Each waits until all have begun, which one after the other would never come to pass."""
    begun = threading.Barrier(8)
    detach_together([partial(begun.wait, LIMIT_S) for _ in range(8)])
    assert not begun.broken


def test_all_are_done_when_it_returns() -> None:
    """More than there are threads."""
    done: list[int] = []
    detach_together([partial(done.append, number) for number in range(100)])
    assert sorted(done) == list(range(100))


def test_one_that_fails_does_not_keep_the_others() -> None:
    """All are tried; the error comes out."""
    done: list[int] = []

    def fail() -> None:
        raise OSError(9, "Bad file descriptor")

    with pytest.raises(OSError, match="Bad file descriptor"):
        detach_together([fail, *(partial(done.append, number) for number in range(5))])
    assert sorted(done) == list(range(5))


@pytest.mark.parametrize("count", [0, 1])
def test_few_need_no_threads(count: int) -> None:
    """One runs where it was asked for."""
    where: list[int] = []
    detach_together([lambda: where.append(threading.get_ident())] * count)
    assert where == [threading.get_ident()] * count
