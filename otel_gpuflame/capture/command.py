"""Starting the program to record: it exists, but has not run its first instruction, until probes are attached."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence

from otel_gpuflame.errors import TargetError

_CANNOT_EXECUTE = 127


class StoppedCommand:
    """A child that waits on a pipe before it executes the command.

    Must be created before the recorder starts threads, since it forks. Standard streams, working directory and, where
    no other is given, environment are inherited unchanged; signals are at their defaults, as a shell starts programs,
    but for a SIGINT that is ignored.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        self.command = tuple(command)
        self._environment = dict(os.environ if environment is None else environment)
        self.exit_code: int | None = None
        go_read, self._go = os.pipe()
        self._error, error_write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._go)
            os.close(self._error)
            self._run(go_read, error_write)
        os.close(go_read)
        os.close(error_write)

    @property
    def released(self) -> bool:
        """Whether the command was allowed to run."""
        return self._go < 0

    def release(self) -> None:
        """Let the command run. Raises TargetError if it cannot be executed."""
        try:
            os.write(self._go, b"g")
        except BrokenPipeError as error:
            self.abandon()
            raise TargetError(
                f"{self.command[0]!r} ended before it was started (exit code {self.exit_code})"
            ) from error
        os.close(self._go)
        self._go = -1
        # The pipe closes by itself when exec succeeds.
        message = os.read(self._error, 4096).decode("utf-8", "replace")
        os.close(self._error)
        self._error = -1
        if message:
            self.poll(wait=True)
            raise TargetError(f"cannot execute {self.command[0]!r}: {message}")

    def poll(self, *, wait: bool = False) -> int | None:
        """Exit code as a shell gives it (128 + signal), or None while the program runs."""
        if self.exit_code is None:
            try:
                pid, status = os.waitpid(self.pid, 0 if wait else os.WNOHANG)
            except ChildProcessError:
                self.exit_code = _CANNOT_EXECUTE
                return self.exit_code
            if pid:
                code = os.waitstatus_to_exitcode(status)
                self.exit_code = code if code >= 0 else 128 - code
        return self.exit_code

    def abandon(self) -> None:
        """Make a command that was not released end without running."""
        for fd in (self._go, self._error):
            if fd >= 0:
                os.close(fd)
        self._go = self._error = -1
        self.poll(wait=True)

    def _run(self, go: int, error: int) -> None:
        try:
            if os.read(go, 1) != b"g":
                os._exit(_CANNOT_EXECUTE)
            # Python ignores these, which must not be inherited. Ctrl-C is handled, or was ignored before us.
            for number in (signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
                signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.execvpe(self.command[0], self.command, self._environment)  # noqa: S606 (no shell is the point)
        except OSError as failure:
            os.write(error, (failure.strerror or str(failure)).encode())
        finally:
            os._exit(_CANNOT_EXECUTE)
