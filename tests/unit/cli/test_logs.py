"""The limit on messages: a minute of its own clock, and memory that does not grow."""

from __future__ import annotations

import logging
import subprocess
import sys
import tracemalloc

import pytest

from otel_gpuflame.cli.logs import MAX_KINDS, MAX_MESSAGES, PERIOD_S, RateLimit


class Log:
    """A filter, its clock, and what it let through."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.limit = RateLimit(lambda: self.now_s)
        self.lines: list[str] = []

    def say(self, text: str, *args: object, level: int = logging.WARNING, name: str = "a") -> bool:
        """Log a message; whether it came through."""
        record = logging.LogRecord(name, level, __file__, 1, text, args, None)
        passed = self.limit.filter(record)
        if passed:
            self.lines.append(record.getMessage())
        return passed


def test_the_same_message_comes_once_a_minute_with_the_number_withheld() -> None:
    """The first is logged, the next ones counted, and the count comes with the first after a minute."""
    log = Log()
    for _ in range(5):
        log.say("the receiver is busy")
    log.now_s = PERIOD_S
    log.say("the receiver is busy")

    assert log.lines == ["the receiver is busy", "the receiver is busy (4 more like this)"]


def test_numbers_do_not_make_a_message_another_one() -> None:
    """Seconds, counts and addresses change all the time; words do not."""
    log = Log()

    assert log.say("no answer within %.2f s from 0x7fff", 9.97)
    assert not log.say("no answer within %.2f s from 0xabcd", 8)
    assert log.say("no way within 3 s")


def test_messages_of_different_modules_are_different() -> None:
    """What one library says again and again does not silence another."""
    log = Log()

    assert log.say("failed", name="a")
    assert log.say("failed", name="b")


@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO])
def test_what_was_asked_for_is_not_limited(level: int) -> None:
    """Information only comes with -v: then all of it is wanted."""
    log = Log()

    assert all(log.say("attached", level=level) for _ in range(10))


def test_messages_that_are_all_different_are_limited_together() -> None:
    """A receiver whose every answer has another text cannot fill the disk."""
    log = Log()
    texts = ["".join(chr(ord("a") + int(c)) for c in str(n)) for n in range(1_000)]

    passed = sum(log.say(text) for text in texts)
    log.now_s = PERIOD_S
    log.say("at last")

    assert passed == MAX_MESSAGES
    assert log.lines[-1] == f"at last ({1_000 - MAX_MESSAGES} others withheld)"


def test_what_was_withheld_of_a_forgotten_kind_is_still_counted() -> None:
    """Sum of logged and withheld is the number of messages, whatever was forgotten in between."""
    log = Log()
    log.say("old")
    log.say("old")
    for number in range(MAX_KINDS + MAX_MESSAGES):
        log.now_s += 1
        log.say(chr(0x4E00 + number))

    assert any("(1 others withheld)" in line for line in log.lines)


def test_memory_is_bounded() -> None:
    """Twenty thousand different, long messages leave a few hundred short keys."""
    log = Log()
    tracemalloc.start()
    for number in range(20_000):
        log.now_s += 1
        log.limit.filter(
            logging.LogRecord("a", logging.WARNING, "", 1, chr(0x4E00 + number) * 1_000, (), None)
        )
    size, _peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert size < 1 << 20


def test_the_command_line_limits_all_loggers() -> None:
    """The limit sits where everything passes: also what other packages log."""
    code = (
        "import logging\n"
        "from otel_gpuflame.cli.logs import set_up_logging\n"
        "set_up_logging(0)\n"
        "for n in range(9): logging.getLogger('opentelemetry.x').warning('failed %d', n)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert result.stderr == "otel-gpuflame: failed 0\n"
