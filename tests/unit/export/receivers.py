"""Receivers on the loopback that answer as they are told and keep what they got."""

from __future__ import annotations

import gzip
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from ssl import CERT_REQUIRED, PROTOCOL_TLS_SERVER, SSLContext
from typing import Any

import grpc
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
    ExportProfilesServiceResponse,
)

METHOD = "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export"


@dataclass
class Received:
    """Requests with their headers, in order of arrival."""

    requests: list[ExportProfilesServiceRequest] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Answer:
    """An HTTP answer."""

    status: int = 200
    body: bytes = b""
    content_type: str = "application/x-protobuf"
    headers: tuple[tuple[str, str], ...] = ()


@contextmanager
def http_receiver(
    *answers: Answer, tls: SSLContext | None = None, hang_ups: int = 0
) -> Iterator[tuple[str, Received]]:
    """An HTTP server giving `answers` in turn, the last one again and again; yields host:port.

    The first `hang_ups` connections are closed as soon as something has come, in the middle of the handshake.
    """
    received = Received()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            received.paths.append(self.path)
            received.headers.append({k.lower(): v for k, v in self.headers.items()})
            received.requests.append(ExportProfilesServiceRequest.FromString(body))
            answer = answers[min(len(received.requests), len(answers)) - 1]
            self.send_response(answer.status)
            self.send_header("content-type", answer.content_type)
            self.send_header("content-length", str(len(answer.body)))
            for name, value in answer.headers:
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        left = hang_ups

        def verify_request(self, request: Any, _address: Any) -> bool:
            if not self.left:
                return True
            self.left -= 1
            # Below TLS. What is left unread would reset the connection.
            socket.socket.recv(request, 65_536)
            return False

        def handle_error(self, *_: Any) -> None:
            pass

    server = Server(("127.0.0.1", 0), Handler)
    if tls is not None:
        # Hands are shaken by the thread of the connection, at its first read.
        server.socket = tls.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}", received
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


GrpcAnswer = Callable[[grpc.ServicerContext], ExportProfilesServiceResponse | bytes]


@contextmanager
def grpc_receiver(
    *answers: GrpcAnswer, credentials: grpc.ServerCredentials | None = None
) -> Iterator[tuple[str, Received]]:
    """A gRPC server giving `answers` in turn, the last one again and again; yields host:port."""
    received = Received()

    def export(
        request: ExportProfilesServiceRequest, context: grpc.ServicerContext
    ) -> ExportProfilesServiceResponse | bytes:
        received.requests.append(request)
        received.headers.append({key: str(value) for key, value in context.invocation_metadata()})
        return answers[min(len(received.requests), len(answers)) - 1](context)

    def serialize(reply: ExportProfilesServiceResponse | bytes) -> bytes:
        return reply if isinstance(reply, bytes) else reply.SerializeToString()

    service, _, method = METHOD[1:].partition("/")
    handler = grpc.unary_unary_rpc_method_handler(
        export,
        request_deserializer=ExportProfilesServiceRequest.FromString,
        response_serializer=serialize,
    )
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {method: handler}),)
    )
    if credentials is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    try:
        yield f"127.0.0.1:{port}", received
    finally:
        server.stop(None).wait()


@dataclass(frozen=True)
class Authority:
    """A throw-away certificate authority with a server and a client certificate, PEM files."""

    ca: Path
    server_key: Path
    server_certificate: Path
    client_key: Path
    client_certificate: Path

    def server_context(self, *, demand_client: bool = False) -> SSLContext:
        """TLS for an HTTP server."""
        context = SSLContext(PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.server_certificate, self.server_key)
        if demand_client:
            context.load_verify_locations(self.ca)
            context.verify_mode = CERT_REQUIRED
        return context

    def server_credentials(self, *, demand_client: bool = False) -> grpc.ServerCredentials:
        """TLS for a gRPC server."""
        pair = self.server_key.read_bytes(), self.server_certificate.read_bytes()
        return grpc.ssl_server_credentials(
            [pair],
            root_certificates=self.ca.read_bytes() if demand_client else None,
            require_client_auth=demand_client,
        )


def make_authority(folder: Path) -> Authority:
    """Make an authority and two certificates for 127.0.0.1 with openssl."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl(
        "req", "-x509", *new_key, "-keyout", "ca.key", "-out", "ca.pem",
        "-days", "2", "-subj", "/CN=throw-away authority",
    )  # fmt: skip
    (folder / "names.cnf").write_text("subjectAltName=IP:127.0.0.1\n")
    for name in ("server", "client"):
        openssl(
            "req", *new_key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}"
        )
        openssl(
            "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
            "-CAcreateserial", "-days", "2", "-extfile", "names.cnf", "-out", f"{name}.pem",
        )  # fmt: skip
    return Authority(
        ca=folder / "ca.pem",
        server_key=folder / "server.key",
        server_certificate=folder / "server.pem",
        client_key=folder / "client.key",
        client_certificate=folder / "client.pem",
    )
