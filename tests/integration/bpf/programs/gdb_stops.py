# SPDX-License-Identifier: Apache-2.0
"""Runs inside gdb, attached to a process. At each stop it prints where every thread is, as a JSON line, and goes on."""

import json
import time

import gdb


def frames_of_thread() -> list[int]:
    """Program counters of the selected thread, leaf first: of what is on the stack, not what gdb adds from debug
    information (inlined functions, and those that ended by jumping to another one).
    """
    found = []
    frame = gdb.newest_frame()
    while frame is not None:
        if frame.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME):
            found.append(frame.pc())
        frame = frame.older()
    return found


def main() -> None:
    """Until gdb is ended."""
    for setting in (
        "pagination off",
        "confirm off",
        "backtrace past-main on",
        "backtrace past-entry on",
    ):
        gdb.execute(f"set {setting}")
    gdb.execute("handle SIGUSR1 stop nopass", to_string=True)
    print('{"ready": true}', flush=True)
    while True:
        gdb.execute("continue", to_string=True)
        threads = {}
        for thread in gdb.selected_inferior().threads():
            thread.switch()
            threads[thread.ptid[1]] = frames_of_thread()
        print(json.dumps({"time_ns": time.monotonic_ns(), "threads": threads}), flush=True)


main()
