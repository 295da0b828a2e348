# SPDX-License-Identifier: Apache-2.0
"""The HTTP side of the OTLP sink."""

from __future__ import annotations

import gzip
import sys
import threading
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc

from tests.integration.collector.sink_types import (
    HTTP_PATHS,
    AnswerFunction,
    Reply,
    success_body,
)

_PROTOBUF = "application/x-protobuf"


class HttpFront:
    """An HTTP server on a free port of 127.0.0.1; starts at once."""

    def __init__(self, answer: AnswerFunction, *, max_body_bytes: int) -> None:
        self._server = _Server(answer, max_body_bytes)
        self.port = int(self._server.server_address[1])
        # The poll interval bounds how long `close` waits.
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="sink-http", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening; threads of idle kept-alive connections end with their clients."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # A client that keeps its connection open must not hold up `server_close`.
    block_on_close = False

    def __init__(self, answer: AnswerFunction, max_body_bytes: int) -> None:
        super().__init__(("127.0.0.1", 0), _RequestHandler)
        self.answer = answer
        self.max_body_bytes = max_body_bytes

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that gave up waiting is what a test of timeouts wants: no traceback for it."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _RefusedError(Exception):
    """The request is no OTLP/HTTP; carries the reply."""

    def __init__(self, http_status: int, message: str) -> None:
        super().__init__(message)
        self.reply = Reply(
            grpc_code=grpc.StatusCode.INVALID_ARGUMENT, http_status=http_status, message=message
        )


class _RequestHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_POST(self) -> None:
        signal = HTTP_PATHS.get(self.path)
        if signal is None:
            self._fail(Reply(http_status=404, message=f"no such path: {self.path}"))
            return
        try:
            body = self._body()
        except _RefusedError as refused:
            self._fail(refused.reply)
            return
        headers = tuple((name.lower(), value) for name, value in self.headers.items())
        reply = self.server.answer("http", signal, body, headers)
        if reply.http_status == 200:
            self._send(reply, success_body(signal, reply))
        else:
            self._fail(reply)

    def log_message(self, _format: str, *args: object) -> None:
        """Test output stays clean; what matters is in `OtlpSink.received`."""

    def _body(self) -> bytes:
        if self.headers.get("content-type") != _PROTOBUF:
            raise _RefusedError(415, f"content-type must be {_PROTOBUF}")
        length = self.headers.get("content-length")
        if length is None or not length.isdigit():
            raise _RefusedError(411, "content-length is needed")
        if int(length) > self.server.max_body_bytes:
            raise _RefusedError(413, f"over {self.server.max_body_bytes} bytes")
        body = self._decompress(self.rfile.read(int(length)))
        if len(body) > self.server.max_body_bytes:
            raise _RefusedError(413, f"over {self.server.max_body_bytes} bytes")
        return body

    def _decompress(self, body: bytes) -> bytes:
        encoding = self.headers.get("content-encoding", "identity")
        if encoding == "identity":
            return body
        if encoding != "gzip":
            raise _RefusedError(415, f"content-encoding {encoding} is not supported; use gzip")
        try:
            return gzip.decompress(body)
        except (OSError, EOFError, zlib.error) as error:
            raise _RefusedError(400, f"body is not gzip: {error}") from error

    def _fail(self, reply: Reply) -> None:
        # What is left of an unread body would be taken for the next request.
        self.close_connection = True
        self._send(reply, reply.status_body() if reply.body is None else reply.body)

    def _send(self, reply: Reply, body: bytes) -> None:
        self.send_response(reply.http_status)
        if reply.retry_after_s is not None:
            self.send_header("Retry-After", str(reply.retry_after_s))
        for name, value in reply.http_headers:
            self.send_header(name, value)
        if not any(name.lower() == "content-type" for name, _ in reply.http_headers):
            self.send_header("Content-Type", _PROTOBUF)
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)
