# SPDX-License-Identifier: Apache-2.0
"""OTLP profiles over HTTP, and the query API, on one port as in Pyroscope."""

from __future__ import annotations

import gzip
import json
import threading
import zlib
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from google.protobuf import json_format
from google.protobuf.message import DecodeError

from tests.fakes.pyroscope.grpc_front import PushFunction, Request, Response
from tests.fakes.pyroscope.limits import RefusedError
from tests.fakes.pyroscope.query_api import SERVICE, Json

INGEST_PATH: Final = "/v1development/profiles"
_PROTOBUF: Final = ("application/x-protobuf", "application/protobuf")
_JSON: Final = "application/json"

AnswerFunction = Callable[[str, bytes], tuple[int, Json]]


class HttpFront:
    """An HTTP server on a free port of 127.0.0.1; starts at once."""

    def __init__(self, push: PushFunction, answer: AnswerFunction, *, max_body_bytes: int) -> None:
        self._server = _Server(push, answer, max_body_bytes)
        self.port = int(self._server.server_address[1])
        # The poll interval bounds how long `close` waits.
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="pyroscope-http", daemon=True
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

    def __init__(self, push: PushFunction, answer: AnswerFunction, max_body_bytes: int) -> None:
        super().__init__(("127.0.0.1", 0), _RequestHandler)
        self.push = push
        self.answer = answer
        self.max_body_bytes = max_body_bytes


class _BodyError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _RequestHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_POST(self) -> None:
        try:
            body = self._body()
            if self.path == INGEST_PATH:
                self._ingest(body)
            elif self.path.startswith(SERVICE):
                self._query(self.path.removeprefix(SERVICE), body)
            else:
                raise _BodyError(404, f"no such path: {self.path}")
        except _BodyError as error:
            # What is left of an unread body would be taken for the next request.
            self.close_connection = True
            self._send(error.status, f"{error}\n".encode(), "text/plain; charset=utf-8")

    def log_message(self, _format: str, *args: object) -> None:
        """Test output stays clean."""

    def _ingest(self, body: bytes) -> None:
        try:
            self.server.push(self._request(body))
        except RefusedError as error:
            raise _BodyError(error.refusal.http_status, str(error)) from error
        self._send(200, Response().SerializeToString(), _PROTOBUF[0])

    def _request(self, body: bytes) -> Request:
        content_type = self.headers.get("content-type", "")
        try:
            if content_type in _PROTOBUF:
                return Request.FromString(body)
            if content_type == _JSON:
                # Protobuf's JSON and not OTLP's: ids are base64.
                return json_format.Parse(body, Request())
        except (DecodeError, json_format.ParseError) as error:
            raise _BodyError(400, f"failed to parse {content_type} request: {error}") from error
        raise _BodyError(415, f"unsupported content type: {content_type!r}")

    def _query(self, method: str, body: bytes) -> None:
        if self.headers.get_content_type() != _JSON:
            raise _BodyError(415, f"content type must be {_JSON}")
        status, answer = self.server.answer(method, body)
        self._send(status, json.dumps(answer).encode(), _JSON)

    def _body(self) -> bytes:
        length = self.headers.get("content-length")
        if length is None or not length.isdigit():
            raise _BodyError(411, "content-length is needed")
        limit = self.server.max_body_bytes
        if int(length) > limit:
            raise _BodyError(413, f"profile payload size exceeds limit of {limit} B")
        body = self.rfile.read(int(length))
        if self.headers.get("content-encoding", "").lower() == "gzip":
            try:
                body = gzip.decompress(body)
            except (OSError, EOFError, zlib.error) as error:
                raise _BodyError(400, "failed to read gzip-compressed request body") from error
        if len(body) > limit:
            raise _BodyError(413, f"uncompressed profile payload size exceeds limit of {limit} B")
        return body

    def _send(self, status: int, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)
