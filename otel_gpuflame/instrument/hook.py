# SPDX-License-Identifier: Apache-2.0
"""Hooks the places where a thread's current OpenTelemetry Context changes.

The methods of the public class ``ContextVarsRuntimeContext`` are wrapped, not the functions
``opentelemetry.context.attach`` and ``detach``: code that imported those functions before the
install still ends up in the methods, so nothing is missed however late the install comes.
"""

from __future__ import annotations

import functools
import logging
import threading
from contextvars import Token

from opentelemetry import context as context_api
from opentelemetry.context import Context
from opentelemetry.context.contextvars_context import ContextVarsRuntimeContext

from otel_gpuflame.instrument._library import LibraryUnavailableError, load_library
from otel_gpuflame.instrument._switches import SwitchesUnseenError, follow_switches
from otel_gpuflame.instrument.process_context import ProcessContext
from otel_gpuflame.instrument.publish import ATTACHED, SpanPublisher

_logger = logging.getLogger(__name__)


class ContextHook:
    """Tells a publisher about every attach and detach of the application's Context.

    Once in place it stays: see ``otel_gpuflame.instrument.uninstall``.
    """

    def __init__(self, publisher: SpanPublisher) -> None:
        self._publisher = publisher
        self._runtime: ContextVarsRuntimeContext | None = None
        self._probing_thread: int | None = None
        self._in_place = False

    def engage(self) -> bool:
        """Puts the hook in place if it is not.

        Returns:
            Whether the hook sees the application's attaches; false if the application uses another
            implementation of the Context (OTEL_PYTHON_CONTEXT).
        """
        if not self._in_place:
            self._wrap_context()
            self._in_place = True
            self._probe()
        return self._runtime is not None

    def _probe(self) -> None:
        """Attaches the current Context once more, to find out which object that arrives at."""
        self._probing_thread = threading.get_ident()
        context_api.detach(context_api.attach(context_api.get_current()))
        self._probing_thread = None

    def _note_probe(self, runtime: ContextVarsRuntimeContext) -> None:
        if self._probing_thread == threading.get_ident():
            self._runtime = runtime

    def _wrap_context(self) -> None:
        hook = self
        publisher = self._publisher
        original_attach = ContextVarsRuntimeContext.attach
        original_detach = ContextVarsRuntimeContext.detach

        # Anybody may make another instance of the class, whose Context is not the application's.
        @functools.wraps(original_attach)
        def attach(self: ContextVarsRuntimeContext, context: Context) -> Token[Context]:
            token = original_attach(self, context)
            if self is hook._runtime:
                publisher.attached(token, context)
            elif hook._probing_thread is not None:
                hook._note_probe(self)
            return token

        @functools.wraps(original_detach)
        def detach(self: ContextVarsRuntimeContext, token: Token[Context]) -> None:
            # It raises for a token of another thread or Context, and then has changed nothing.
            original_detach(self, token)
            if self is hook._runtime:
                publisher.detached(token, self.get_current())

        ContextVarsRuntimeContext.attach = attach  # type: ignore[method-assign]
        ContextVarsRuntimeContext.detach = detach  # type: ignore[method-assign]


class Installation:
    """The one installation of a process: the library, the publisher and the hook."""

    def __init__(self) -> None:
        self._publisher: SpanPublisher | None = None
        self._hook: ContextHook | None = None
        self._warned = False

    @property
    def publisher(self) -> SpanPublisher | None:
        """None until the first successful install."""
        return self._publisher

    def install(self, resource: object = None) -> bool:
        """See ``otel_gpuflame.instrument.install``.

        Args:
            resource: the SDK's, if it is known already; else that of the first span is taken.
        """
        if self._hook is None or self._publisher is None:
            try:
                library = load_library()
                follow_switches(library, ATTACHED)
            except (LibraryUnavailableError, SwitchesUnseenError) as error:
                return self._refuse(str(error))
            described = ProcessContext(library)
            described.describe(resource)
            self._publisher = SpanPublisher(library, described.describe_by)
            self._hook = ContextHook(self._publisher)
        if not self._hook.engage():
            return self._refuse(
                "OTEL_PYTHON_CONTEXT selects another Context than contextvars_context; unset it"
            )
        self._publisher.enabled = True
        return True

    def uninstall(self) -> None:
        """See ``otel_gpuflame.instrument.uninstall``."""
        if self._publisher is not None:
            self._publisher.enabled = False
            self._publisher.clear()

    def _refuse(self, reason: str) -> bool:
        if not self._warned:
            self._warned = True
            _logger.warning("spans are not published to the GPU profiler: %s", reason)
        return False


INSTALLATION = Installation()
