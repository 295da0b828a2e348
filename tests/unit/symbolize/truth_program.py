"""A program whose threads stop in calls of every kind, and which then prints its own stacks.

Runs under every supported interpreter, so it keeps to the syntax of the oldest one. Prints JSON:
{"version": [..], "threads": {"scenario": {"id": pthread_self, "frames": [..]}}}, a frame being
[code address, f_lasti, name, file, line], leaf first, taken while each thread is inside read(2).
Ends when its standard input does.
"""

# Odd names, line breaks and redundant code are the point here.
# ruff: noqa
# fmt: off

import ast
import asyncio
import contextlib
import functools
import json
import os
import sys
import threading
import time

STOP_READ, STOP_WRITE = os.pipe()
SCENARIOS = {}


def scenario(function):
    SCENARIOS[function.__name__] = function
    return function


def stop(*_):
    os.read(
        STOP_READ,
        1,
    )


def identity(*values):
    return values


def traced(function):
    @functools.wraps(function)
    def wrapper(*args):
        before = 1
        return (
            before
            and function(*args)
        )

    return wrapper


@scenario
def plain():
    first = 1
    stop(first)
    return first


@scenario
def multi_line_call():
    return identity(
        1,
        identity(
            2,
            stop(
                3,
                4,
            ),
        ),
        5,
    )


@scenario
def method_chain():
    class Chain:
        def then(self):
            return self

        def end(self):
            stop()

    return (
        Chain()
        .then()
        .end()
    )


@scenario
def list_comprehension():
    return [
        stop(value)
        for value in range(3)
        if value >= 0
    ]


@scenario
def nested_comprehension():
    return {
        key: [
            stop(value)
            for value in range(2)
        ]
        for key in range(2)
    }


@scenario
def generator_expression():
    return any(
        stop(value)
        for value in range(3)
    )


@scenario
def generator():
    def inner():
        yield 1
        stop()
        yield 2

    def outer():
        yield 0
        yield from inner()

    return list(
        outer()
    )


@scenario
@traced
@traced
def decorated():
    stop()


@scenario
def decorator_call():
    @traced
    @identity
    @stop
    def never():
        pass


@scenario
def lambdas():
    run = lambda action: (
        action()
    )
    run(lambda: stop(
        1
    ))


@scenario
def class_body():
    class Outer:
        before = 1

        class Inner:
            after = stop(
            )


@scenario
def coroutine():
    async def leaf():
        stop()

    async def branch():
        await asyncio.sleep(0)
        await leaf()

    asyncio.run(branch())


@scenario
def async_generator():
    async def numbers():
        yield 1
        stop()

    async def consume():
        async for _ in numbers():
            pass

    asyncio.run(consume())


@scenario
def non_ascii():
    def größe():
        def 関数():
            def 𠮷野():
                stop()

            𠮷野()

        関数()

    größe()


@scenario
def with_enter():
    @contextlib.contextmanager
    def manager():
        stop()
        yield

    with contextlib.nullcontext(), manager(
    ):
        pass


@scenario
def with_exit():
    class Manager:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            stop()

    with Manager():
        identity()
        identity()


@scenario
def finally_block():
    try:
        identity()
    finally:
        stop()


@scenario
def except_block():
    try:
        raise ValueError
    except ValueError:
        stop()


@scenario
def through_c():
    return sorted(
        [2, 1],
        key=lambda value:
            stop(value),
    )


@scenario
def properties():
    class Lazy:
        @property
        def value(self):
            return stop()

        def __getattr__(self, name):
            return self.value

        def __add__(self, other):
            return self.missing

    return (
        Lazy()
        +
        1
    )


@scenario
def keywords():
    def target(*args, **kwargs):
        stop()

    return target(
        *identity(1, 2),
        **dict(
            a=1,
        ),
    )


@scenario
def recursion(depth=60):
    if depth:
        recursion(depth - 1)
    else:
        stop()


@scenario
def long_function():
    lines = ["def long(value):"]
    lines += ["    value = (value, %s)" % ", ".join(["value"] * 400)]
    lines += ["    if not value:\n" + "        value = value\n" * 300 + "    value = identity(value)"] * 2
    lines += ["    return stop(value)"]
    names = dict(globals())
    exec(compile("\n".join(lines), "<long>", "exec"), names)
    names["long"](1)


@scenario
def far_line():
    exec(compile("\n" * 70000 + "identity(\n1,\n\n\nstop())", "/tmp/gén/関.py", "exec"), globals())


@scenario
def lines_backwards():
    tree = ast.parse("def back():\n    identity()\n    identity()\n    stop()\nback()")
    tree.body[0].body[0].lineno = tree.body[0].body[0].end_lineno = 90000
    for node in ast.walk(tree.body[0].body[0]):
        if hasattr(node, "lineno"):
            node.lineno = node.end_lineno = 90000
    for node in ast.walk(tree.body[0].body[2]):
        if hasattr(node, "lineno"):
            node.lineno = node.end_lineno = 7
    exec(compile(tree, "<backwards>", "exec"), globals())


@scenario
def undecodable_file_name():
    exec(compile("stop()", "/tmp/\udcff\udc80.py", "exec"), globals())


@scenario
def subclass_file_name():
    class Path(str):
        pass

    exec(compile("stop()", Path("/tmp/sübclass.py"), "exec"), globals())


@scenario
def replaced_code():
    def short():
        stop()

    name = {"co_qualname": "q" * 5000} if sys.version_info >= (3, 11) else {"co_name": "q" * 5000}
    short.__code__ = short.__code__.replace(co_firstlineno=1000, **name)
    short()


def frames_of(frame):
    frames = []
    while frame is not None:
        code = frame.f_code
        name = code.co_qualname if sys.version_info >= (3, 11) else code.co_name
        frames.append([id(code), frame.f_lasti, name, code.co_filename, frame.f_lineno])
        frame = frame.f_back
    return frames


def wait_until_reading(native_id):
    wanted = "%#x" % STOP_READ
    while True:
        with open("/proc/self/task/%d/syscall" % native_id) as file:
            if file.read().split()[1:2] == [wanted]:
                return
        time.sleep(0.001)


def report(threads):
    for thread in threads.values():
        wait_until_reading(thread.native_id)
    current = sys._current_frames()
    found = {
        name: {"id": thread.ident, "frames": frames_of(current[thread.ident])}
        for name, thread in threads.items()
    }
    print(json.dumps({"version": list(sys.version_info[:3]), "threads": found}), flush=True)
    sys.stdin.read()
    os._exit(0)


def main():
    threads = {name: threading.Thread(target=run, daemon=True) for name, run in SCENARIOS.items()}
    for thread in threads.values():
        thread.start()
    threads["main"] = threading.main_thread()
    threading.Thread(target=report, args=(threads,), daemon=True).start()
    identity(
        stop()
    )


main()
