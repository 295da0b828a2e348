# SPDX-License-Identifier: Apache-2.0
"""The guest's first process: mounts, runs the jobs, writes what came of them to the second serial port, powers off.

It is started by the kernel with an empty environment, so it uses nothing but the standard library.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import subprocess
import termios
import time
import tty
from typing import Any

RESULTS = "/dev/ttyS1"
_MOUNTS = (("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev"), ("tmpfs", "/tmp"))
_REBOOT_POWER_OFF = 0x4321FEDC

libc = ctypes.CDLL(None, use_errno=True)


def mount_all() -> None:
    """The file systems that every Linux system has; tracefs is left out, as in many containers."""
    for kind, place in _MOUNTS:
        os.makedirs(place, exist_ok=True)
        if libc.mount(kind.encode(), place.encode(), kind.encode(), 0, None):
            raise OSError(ctypes.get_errno(), f"mount {place}")


def run_job(job: dict[str, Any]) -> dict[str, Any]:
    """Run one program to its end; its output, exit status and the files that it was to leave."""
    try:
        done = subprocess.run(
            job["argv"],
            env=job["environment"],
            cwd="/app",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=job["limit_s"],
            check=False,
        )
        code, out, err = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired as error:
        code, out, err = -1, error.stdout or b"", (error.stderr or b"") + b"\n[timed out]"
    return {
        "name": job["name"],
        "exit_code": code,
        "stdout": out.decode("utf-8", "replace"),
        "stderr": err.decode("utf-8", "replace"),
        "files": {path: read(path) for path in job["files"] if os.path.exists(path)},
    }


def read(path: str) -> str:
    """A file's content in base64."""
    with open(path, "rb") as file:
        return base64.b64encode(file.read()).decode()


def main() -> None:
    """Run all jobs; whatever happens, the machine goes off."""
    try:
        mount_all()
        with open("/jobs.json", encoding="utf-8") as file:
            jobs = json.load(file)
        port = os.open(RESULTS, os.O_WRONLY | os.O_NOCTTY)
        tty.setraw(port)
        with os.fdopen(port, "w", encoding="ascii") as results:
            for job in jobs:
                print(f"guest: {time.monotonic():.1f} s: {job['name']}", flush=True)
                results.write(json.dumps(run_job(job)) + "\n")
                results.flush()
                termios.tcdrain(results.fileno())
            print(f"guest: {time.monotonic():.1f} s: done", flush=True)
    finally:
        libc.reboot(_REBOOT_POWER_OFF)


if __name__ == "__main__":
    main()
