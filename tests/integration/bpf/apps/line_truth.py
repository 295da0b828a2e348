# SPDX-License-Identifier: Apache-2.0
"""Target program for any supported Python, by ctypes alone: launches below random chains of calls of every kind.

Each launch has a number, its grid's first dimension, and its whole stack is asked of the interpreter on the same line.
Writes JSON to a file: {"frames": [[name, file, line], ...], "stacks": [[frame, ...], ...], "samples": [stack, ...]},
root first, sample n being launch n + 1.
"""

# Lines that break in odd places are the point here, and a function may do nothing but be called in its own way.
# fmt: off
# ruff: noqa

import asyncio
import contextlib
import ctypes
import functools
import json
import os
import random
import sys
import threading
import traceback

STEP = 500
"""Launches at a time: between them the recorder reads what the stacks' addresses mean."""
MAX_FRAMES = 128
"""More Python frames are cut, which is another test's business."""
WORKERS = 3
KINDS = []
THREADS = []


class Driver:
    """The few driver calls that it takes to launch."""

    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.context, module = ctypes.c_void_p(), ctypes.c_void_p()
        self.function = ctypes.c_void_p()
        self.cuda.cuInit(0)
        self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(self.context), 0)
        self.cuda.cuCtxSetCurrent(self.context)
        self.cuda.cuModuleLoadData(ctypes.byref(module), b"fake image")
        self.cuda.cuModuleGetFunction(ctypes.byref(self.function), module, b"_Z5saxpyPfS_fi")
        self.launch = self.cuda.cuLaunchKernel
        none = ctypes.c_void_p()
        self.rest = (1, 1, 32, 1, 1, 0, none, none, none)


class Truth:
    """What the program says about itself."""

    def __init__(self):
        self.frames, self.stacks, self.samples = {}, {}, []

    def here(self):
        """The caller's stack, as an index."""
        stack, frame = [], sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            name = getattr(code, "co_qualname", code.co_name)
            stack.append(self.frames.setdefault((name, code.co_filename, frame.f_lineno), len(self.frames)))
            frame = frame.f_back
        stack.reverse()
        return self.stacks.setdefault(tuple(stack), len(self.stacks))

    def write(self, path):
        with open(path, "w", encoding="utf-8") as file:
            stacks = list(self.stacks)
            json.dump({"frames": list(self.frames), "stacks": stacks, "samples": self.samples}, file)


DRIVER = Driver()
TRUTH = Truth()
RANDOM = random.Random(int(os.environ.get("LINE_TRUTH_SEED", "1")))


def kind(function):
    """A way to call the rest of a chain."""
    KINDS.append(function)
    return function


def leaf(pick):
    """Launch, and ask for the stack, on one of several lines."""
    number = len(TRUTH.samples) + 1
    launch, function, rest, here = DRIVER.launch, DRIVER.function, DRIVER.rest, TRUTH.here
    if pick == 0:
        result, stack = launch(function, number, *rest), here()
    elif pick == 1:
        result, stack = (launch(function, number, *rest), here()) if number else (None, None)

    elif pick == 2:
        try:
            raise ValueError
        except ValueError:
            result, stack = launch(function, number, *rest), here()
    elif pick == 3:
        result, stack = (
            number
            and
            (launch(function, number, *rest), here())
        )
    elif pick == 4:
        for _ in range(1):
            result, stack = launch(function, number, *rest), here()
    else:
        with contextlib.nullcontext():
            result, stack = launch(function, number, *rest), here()
    assert result == 0
    TRUTH.samples.append(stack)


def go(rest):
    """The next call of a chain, or its end."""
    if not rest:
        leaf(RANDOM.randrange(6))
        return
    following = rest[1:]
    rest[0](following)


def decorate(function):
    @functools.wraps(function)
    def wrapper(*arguments, **keywords):
        return function(
            *arguments,
            **keywords,
        )
    return wrapper


@kind
def recursion(rest, depth=None):
    depth = RANDOM.randrange(1, 6) if depth is None else depth
    if depth % 2:
        return recursion(rest, depth - 1)
    if depth:
        return recursion(
            rest,
            depth=depth - 1,
        )
    return go(rest)


@kind
def generator(rest):
    def inner():
        yield 1
        go(rest)
        yield 2

    def outer():
        yield 0
        yield from inner()

    for _ in outer():
        pass


@kind
def sent_to_generator(rest):
    def receiver():
        while True:
            got = yield
            if got is not None:
                go(
                    got
                )

    running = receiver()
    next(running)
    running.send(rest)


@kind
def thrown_into_generator(rest):
    def catcher():
        try:
            yield
        except KeyError:
            go(rest)
        yield

    running = catcher()
    next(running)
    running.throw(KeyError())


@kind
def closed_generator(rest):
    def closing():
        try:
            yield
        finally:
            go(rest)

    running = closing()
    next(running)
    running.close()


@kind
def generator_expression(rest):
    return any(
        go(rest)
        for _ in range(1)
        if rest is not None
    )


@kind
def list_comprehension(rest):
    return [
        go(rest)
        for _ in range(1)
        if rest is not None
    ]


@kind
def nested_comprehension(rest):
    return {
        key: {
            go(rest)
            for _ in "a"
        }
        for key in range(1)
    }


@kind
def coroutine(rest):
    async def bottom():
        return go(rest)

    async def middle():
        return await bottom()

    async def top():
        return await middle(
        )

    try:
        top().send(None)
    except StopIteration:
        pass


@kind
def asynchronous_generator(rest):
    async def numbers():
        yield 1
        go(rest)
        yield 2

    async def consume():
        async for _ in numbers():
            pass
        async with Asynchronous():
            pass

    try:
        consume().send(None)
    except StopIteration:
        pass


class Asynchronous:
    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        return None


@kind
def event_loop(rest):
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        async def task():
            go(rest)

        async def main():
            await asyncio.sleep(0)
            await asyncio.gather(task(), asyncio.sleep(0))

        asyncio.run(main())
    else:
        go(rest)


@kind
def map_callback(rest):
    return list(map(lambda _: go(rest), [0]))


@kind
def sorted_callback(rest):
    return sorted(
        [0],
        key=lambda _:
            go(rest) or 0,
    )


@kind
def reduce_callback(rest):
    return functools.reduce(
        lambda _, __: go(rest),
        (0, 1),
    )


@kind
def c_callback(rest):
    """From C, which knows nothing of Python, through libffi."""
    values = (ctypes.c_int * 2)(2, 1)
    once = []

    def compare(_, __):
        if not once:
            once.append(True)
            go(rest)
        return 0

    C_LIBRARY.qsort(values, 2, 4, COMPARE(compare))


C_LIBRARY = ctypes.CDLL(None)
COMPARE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


@kind
def partial(rest):
    return functools.partial(go, rest)()


@kind
def cached(rest):
    @functools.lru_cache(maxsize=None)
    def once():
        return go(rest)
    return once()


@kind
@decorate
@decorate
def decorated(rest):
    return go(
        rest
    )


@kind
def decorator_call(rest):
    def now(function):
        go(rest)
        return function

    @now
    @decorate
    def never():
        pass


@kind
def in_except(rest):
    try:
        try:
            raise ValueError
        except ValueError as error:
            raise KeyError from error
    except KeyError:
        go(rest)


@kind
def in_finally(rest):
    try:
        pass
    finally:
        go(rest)


@kind
def raised_through(rest):
    try:
        try:
            go(rest)
            raise IndexError
        finally:
            rest = rest[:0]
    except IndexError:
        rest = None


@kind
def with_exit(rest):
    class Manager:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            go(rest)
            return True

    with Manager():
        raise ValueError


@kind
def context_manager(rest):
    @contextlib.contextmanager
    def manager():
        go(rest)
        yield

    with contextlib.ExitStack() as stack:
        stack.enter_context(
            manager()
        )


@kind
def special_methods(rest):
    class Special:
        def __init__(self):
            self.value

        @property
        def value(self):
            return self + 1

        def __add__(self, other):
            return self[
                other
            ]

        def __getitem__(self, index):
            return self(index)

        def __call__(self, *arguments):
            return self.missing

        def __getattr__(self, name):
            return go(rest)

    Special()


@kind
def inherited(rest):
    class Base:
        @classmethod
        def build(cls, what):
            return cls.work(what)

        @staticmethod
        def work(what):
            return go(what)

    class Derived(Base):
        @classmethod
        def build(cls, what):
            return super().build(
                what
            )

    return Derived.build(rest)


@kind
def class_body(rest):
    class Outer:
        class Inner:
            value = go(rest)


@kind
def lambdas(rest):
    return (
        lambda call: (
            lambda: call(
                rest
            )
        )
    )(go)()


@kind
def odd_expressions(rest):
    text = f"""{
        rest and 1
    }{go(rest)}"""
    return (
        text
        if (length := len(text))
        else length
    )


@kind
def keywords(rest):
    def target(*arguments, **names):
        return names["what"](
            *arguments
        )

    return target(
        *[rest],
        **dict(
            what=go,
        ),
    )


COMPILED = [
    compile("\n" * (997 * number % 70001) + "what(\nrest)", f"/nowhere/généré_{number}.py", "exec")
    for number in range(50)
]


@kind
def compiled(rest):
    exec(RANDOM.choice(COMPILED), {"what": go, "rest": rest})


def in_thread(rest):
    """The rest in a thread that only lives for it."""
    def work():
        DRIVER.cuda.cuCtxSetCurrent(DRIVER.context)
        go(rest)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def chain():
    """A random chain of calls."""
    calls = [RANDOM.choice(KINDS) for _ in range(RANDOM.randrange(1, 9))]
    if RANDOM.random() < 0.1:
        calls.insert(RANDOM.randrange(len(calls)), in_thread)
    return tuple(calls)


class Worker:
    """A thread that takes part in turns: the order of launches is the order of their numbers."""

    def __init__(self):
        self.turn, self.done = threading.Semaphore(0), threading.Semaphore(0)
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        DRIVER.cuda.cuCtxSetCurrent(DRIVER.context)
        while True:
            self.turn.acquire()
            try:
                go(chain())
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            self.done.release()

    def __call__(self):
        self.turn.release()
        self.done.acquire()


def tell(what):
    print(json.dumps(what), flush=True)
    sys.stdin.readline()


def main():
    """FILE COUNT: launch that often, in steps."""
    path, count = sys.argv[1], int(sys.argv[2])
    workers = [Worker() for _ in range(WORKERS)]
    tell({"ready": True, "pid": os.getpid()})
    for number in range(1, count + 1):
        who = RANDOM.randrange(WORKERS + 1)
        if who < WORKERS:
            workers[who]()
        else:
            go(chain())
        if number % STEP == 0:
            tell({"launches": number})
    TRUTH.write(path)
    deepest = max(map(len, TRUTH.stacks))
    assert deepest <= MAX_FRAMES, deepest
    tell({"pid": os.getpid(), "launches": len(TRUTH.samples), "version": sys.version, "deepest": deepest})


if __name__ == "__main__":
    main()
