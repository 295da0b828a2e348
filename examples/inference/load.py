"""Load for the inference service: callers that each wait for their answer, every call in a trace of its own."""

from __future__ import annotations

import argparse
import json
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from opentelemetry import propagate, trace
from opentelemetry.trace import SpanKind
from traces_file import start_tracing

EXAMPLES = """\
examples:
  python examples/inference/load.py                                   64 calls at once
  python examples/inference/load.py --requests 1000 --callers 32
  python examples/inference/load.py --requests 128 --traces callers.json
"""

HOST = "127.0.0.1"
ANSWER_S = 300.0
RETRY_S = 0.05

tracer = trace.get_tracer("callers")


class CallError(Exception):
    """A call was not answered as it should be."""


def wait_for_service(port: int, seconds: float) -> None:
    """Until it listens; it loads a model first.

    Raises:
        CallError: not within these seconds.
    """
    until_s = time.monotonic() + seconds
    while not listens(port):
        if time.monotonic() > until_s:
            raise CallError(f"no service at {HOST}:{port} within {seconds:.0f} s")
        time.sleep(RETRY_S)


def listens(port: int) -> bool:
    """Whether somebody does."""
    try:
        socket.create_connection((HOST, port), timeout=RETRY_S).close()
    except OSError:
        return False
    return True


def call(port: int, number: int) -> float:
    """Make one call; what it took in seconds. Sizes differ from call to call."""
    size = {"prompt_tokens": 10 + number % 50, "new_tokens": 1 + number % 20}
    headers = {"content-type": "application/json"}
    began_s = time.monotonic()
    with tracer.start_as_current_span("call", kind=SpanKind.CLIENT):
        propagate.inject(headers)
        connection = HTTPConnection(HOST, port, timeout=ANSWER_S)
        try:
            connection.request("POST", "/infer", json.dumps(size), headers)
            answer = connection.getresponse()
            text = answer.read().decode()
        except (OSError, HTTPException) as error:
            raise CallError(f"call {number}: {error!r}") from error
        finally:
            connection.close()
    if answer.status != 200 or len(json.loads(text)["tokens"]) != size["new_tokens"]:
        raise CallError(f"call {number}: {answer.status} {text}")
    return time.monotonic() - began_s


def main() -> None:
    """Make all calls; exits with 1 if one failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--port", type=int, default=8080, help="of the service (%(default)s)")
    parser.add_argument("--requests", type=int, default=64, help="calls in all (%(default)s)")
    parser.add_argument("--callers", type=int, default=64, help="calls at once (%(default)s)")
    parser.add_argument("--wait-s", type=float, default=60, help="for the service (%(default)s)")
    parser.add_argument("--traces", type=Path, help="write spans to this file, as OTLP JSON")
    options = parser.parse_args()
    provider = start_tracing("callers", options.traces)
    try:
        wait_for_service(options.port, options.wait_s)
        began_s = time.monotonic()
        with ThreadPoolExecutor(options.callers) as callers:
            took_s = list(callers.map(lambda n: call(options.port, n), range(options.requests)))
    except CallError as error:
        sys.exit(f"load: {error}")
    finally:
        provider.shutdown()
    seconds = time.monotonic() - began_s
    print(
        f"{len(took_s)} calls in {seconds:.2f} s, the slowest {1e3 * max(took_s, default=0):.0f} ms"
    )


if __name__ == "__main__":
    main()
