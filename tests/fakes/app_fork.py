"""Target program: a parent, a forked child and a started child, each with its own launches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.fakes import app_common
from tests.fakes.cuda_driver import FakeCuda
from tests.fakes.steps import STAYS

Truth = dict[str, object]


def launch(count: int) -> Truth:
    """Launch in this process, with a driver that is initialised here."""
    cuda = FakeCuda()
    cuda.launch_many(app_common.KERNEL, count)
    return {"pid": os.getpid(), "launches": cuda.counters().launches}


def launch_in_fork(count: int) -> Truth:
    """Fork, launch there, and hand the truth back through a pipe."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.write(writer, json.dumps(launch(count)).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    _, status = os.waitpid(child, 0)
    if status != 0:
        sys.exit(f"app_fork.py: the forked child ended with status {status}")
    return {"how": "fork", **json.loads(text)}


def launch_in_subprocess(count: int) -> Truth:
    """Start another Python that launches."""
    command = [sys.executable, str(Path(__file__).with_name("app_launch.py")), str(count)]
    # Nobody but this process hears what it says.
    alone = {name: value for name, value in os.environ.items() if name != STAYS}
    answer = subprocess.run(command, env=alone, check=True, capture_output=True, text=True).stdout
    truth = json.loads(answer)
    return {"how": "subprocess", "pid": truth["pid"], "launches": truth["launches"]}


def main() -> None:
    """Launch in all three and print the truth."""
    parser = app_common.parser(__doc__ or "")
    parser.add_argument("parent", type=int)
    parser.add_argument("forked", type=int)
    parser.add_argument("started", type=int)
    options = parser.parse_args()
    app_common.hold(options)
    processes = [
        {"how": "parent", **launch(options.parent)},
        launch_in_fork(options.forked),
        launch_in_subprocess(options.started),
    ]
    app_common.emit({"pid": os.getpid(), "processes": processes})


if __name__ == "__main__":
    app_common.run(main)
