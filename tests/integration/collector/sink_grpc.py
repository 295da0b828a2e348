# SPDX-License-Identifier: Apache-2.0
"""The gRPC side of the OTLP sink. Handles bytes, so that it can keep and send what is no OTLP."""

from __future__ import annotations

from collections.abc import Callable
from concurrent import futures

import grpc

from tests.integration.collector.sink_types import (
    GRPC_METHODS,
    AnswerFunction,
    Signal,
    success_body,
)

_WORKERS = 4
_STATUS_DETAILS = "grpc-status-details-bin"


class GrpcFront:
    """A gRPC server on a free port of 127.0.0.1; starts at once."""

    def __init__(self, answer: AnswerFunction, *, max_body_bytes: int) -> None:
        self._pool = futures.ThreadPoolExecutor(_WORKERS, thread_name_prefix="sink-grpc")
        self._server = grpc.server(
            self._pool,
            handlers=[_handler(answer, *item) for item in GRPC_METHODS.items()],
            options=[
                ("grpc.max_receive_message_length", max_body_bytes),
                # A second sink must never share this one's port.
                ("grpc.so_reuseport", 0),
            ],
        )
        self.port = int(self._server.add_insecure_port("127.0.0.1:0"))
        self._server.start()

    def close(self) -> None:
        """Refuse new calls, end the running ones, and wait for the threads."""
        self._server.stop(grace=1.0).wait()
        self._pool.shutdown(wait=True)


def _handler(
    answer: AnswerFunction, path: str, signal: Signal
) -> grpc.GenericRpcHandler[bytes, bytes]:
    service, method = path.strip("/").split("/")
    return grpc.method_handlers_generic_handler(
        service, {method: grpc.unary_unary_rpc_method_handler(_behaviour(answer, signal))}
    )


def _behaviour(
    answer: AnswerFunction, signal: Signal
) -> Callable[[bytes, grpc.ServicerContext], bytes]:
    def export(body: bytes, context: grpc.ServicerContext) -> bytes:
        metadata = tuple((str(key), value) for key, value in context.invocation_metadata())
        reply = answer("grpc", signal, body, metadata)
        if reply.grpc_code is not grpc.StatusCode.OK:
            if reply.retry_after_s is not None:
                context.set_trailing_metadata(((_STATUS_DETAILS, reply.status_body()),))
            context.abort(reply.grpc_code, reply.message)
        return success_body(signal, reply)

    return export
