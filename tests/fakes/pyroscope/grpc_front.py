# SPDX-License-Identifier: Apache-2.0
"""OTLP profiles over gRPC."""

from __future__ import annotations

from collections.abc import Callable
from concurrent import futures

import grpc
from opentelemetry.proto.collector.profiles.v1development import profiles_service_pb2

from tests.fakes.pyroscope.limits import RefusedError

SERVICE = "opentelemetry.proto.collector.profiles.v1development.ProfilesService"
Request = profiles_service_pb2.ExportProfilesServiceRequest
Response = profiles_service_pb2.ExportProfilesServiceResponse
# The words travel in a header, and clients refuse headers above 8 KiB, at first only some of them.
_MAX_DETAILS = 4096
PushFunction = Callable[[Request], None]


class GrpcFront:
    """A gRPC server on a free port of 127.0.0.1; starts at once. It has no other service: traces are UNIMPLEMENTED."""

    def __init__(self, push: PushFunction, *, max_body_bytes: int) -> None:
        self._pool = futures.ThreadPoolExecutor(2, thread_name_prefix="pyroscope-grpc")
        export = grpc.unary_unary_rpc_method_handler(
            _export(push),
            request_deserializer=Request.FromString,
            response_serializer=Response.SerializeToString,
        )
        self._server = grpc.server(
            self._pool,
            handlers=[grpc.method_handlers_generic_handler(SERVICE, {"Export": export})],
            options=[
                ("grpc.max_receive_message_length", max_body_bytes),
                # Another server must never share this one's port.
                ("grpc.so_reuseport", 0),
            ],
        )
        self.port = int(self._server.add_insecure_port("127.0.0.1:0"))
        self._server.start()

    def close(self) -> None:
        """Refuse new calls, end the running ones, and wait for the threads."""
        self._server.stop(grace=1.0).wait()
        self._pool.shutdown(wait=True)


def _export(push: PushFunction) -> Callable[[Request, grpc.ServicerContext], Response]:
    def export(request: Request, context: grpc.ServicerContext) -> Response:
        try:
            push(request)
        except RefusedError as error:
            context.abort(error.refusal.grpc_code, str(error)[:_MAX_DETAILS])
        return Response()

    return export
