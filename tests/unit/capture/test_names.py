"""Handles and what they mean: aliases, reuse, long names."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from otel_gpuflame.capture.bpf.decode import RawName
from otel_gpuflame.capture.bpf.probes import ProbeGroup
from otel_gpuflame.capture.names import MAX_READABLE, NameTable, shorten
from otel_gpuflame.events.frames import ProcessKey
from tests.held import held

PROCESS, OTHER = ProcessKey(1, 10), ProcessKey(2, 20)


def raw(
    handle: int,
    name: str = "",
    *,
    alias_of: int = 0,
    time_ns: int = 0,
    process: ProcessKey = PROCESS,
) -> RawName:
    """A name as it comes from BPF."""
    return RawName(process, time_ns, handle, alias_of, name)


def table() -> NameTable:
    """A table whose demangler shouts."""
    return NameTable(str.upper)


def test_a_new_handle_is_fresh_and_has_both_names() -> None:
    """The first name of a handle is fresh, mangled as given and readable for people."""
    learned = table().learn([raw(1, "gemm", time_ns=5)])
    (name,) = learned.fresh
    assert (name.process, name.time_ns, name.handle) == (PROCESS, 5, 1)
    assert (name.name, name.readable) == ("gemm", "GEMM")
    assert not learned.renamed


def test_the_same_name_again_is_no_news() -> None:
    """A program may ask for the same function as often as it likes."""
    names = table()
    names.learn([raw(1, "gemm")])
    learned = names.learn([raw(1, "gemm"), raw(1, "gemm")])
    assert (learned.fresh, learned.renamed) == ((), ())


def test_a_handle_with_another_name_is_renamed() -> None:
    """A module was unloaded and its handle used again: that counts from the time it was seen."""
    names = table()
    names.learn([raw(1, "old", time_ns=1)])
    learned = names.learn([raw(1, "new", time_ns=9)])
    assert not learned.fresh
    assert [(n.name, n.time_ns) for n in learned.renamed] == [("new", 9)]


def test_renamed_handles_are_in_order_of_time() -> None:
    """Calls are split at each of them, so they must come in order, also when rings delivered otherwise."""
    names = table()
    names.learn([raw(1, "a"), raw(2, "b")])
    learned = names.learn([raw(2, "d", time_ns=9), raw(1, "c", time_ns=5)])
    assert [(n.handle, n.time_ns) for n in learned.renamed] == [(1, 5), (2, 9)]


def test_fresh_and_renamed_in_one_round() -> None:
    """A handle that gets two names in one round is fresh with the first and renamed to the second."""
    learned = table().learn([raw(1, "a", time_ns=1), raw(1, "b", time_ns=2)])
    assert [n.name for n in learned.fresh] == ["a"]
    assert [(n.name, n.time_ns) for n in learned.renamed] == [("b", 2)]


def test_an_alias_means_what_the_other_handle_means() -> None:
    """A CUfunction got from a CUkernel has the name of that kernel."""
    names = table()
    learned = names.learn([raw(1, "gemm"), raw(2, alias_of=1)])
    assert [(n.handle, n.name) for n in learned.fresh] == [(1, "gemm"), (2, "gemm")]
    assert names.unresolved_aliases == 0


def test_aliases_of_aliases_resolve() -> None:
    """What an alias means can be passed on."""
    learned = table().learn([raw(1, "gemm"), raw(2, alias_of=1), raw(3, alias_of=2)])
    assert [n.name for n in learned.fresh] == ["gemm"] * 3


def test_an_alias_of_nothing_known_is_counted() -> None:
    """A kernel loaded before the recording has no name; its aliases are counted, not guessed."""
    names = table()
    learned = names.learn([raw(2, alias_of=1), raw(2, alias_of=1, process=OTHER)])
    assert (learned.fresh, learned.renamed) == ((), ())
    assert names.unresolved_aliases == 2


def test_handles_of_processes_are_apart() -> None:
    """The same handle in another process is another one, and aliases do not cross."""
    names = table()
    learned = names.learn(
        [raw(1, "a"), raw(1, "b", process=OTHER), raw(2, alias_of=1, process=OTHER)]
    )
    assert [(n.process, n.name) for n in learned.fresh] == [
        (PROCESS, "a"),
        (OTHER, "b"),
        (OTHER, "b"),
    ]


def test_a_process_that_ended_is_forgotten() -> None:
    """Its handles are fresh again, should the same key come back; others are untouched."""
    names = table()
    names.learn([raw(1, "a"), raw(1, "b", process=OTHER)])
    names.forget(PROCESS)
    names.forget(ProcessKey(99, 99))
    learned = names.learn([raw(1, "c"), raw(1, "d", process=OTHER)])
    assert [n.name for n in learned.fresh] == ["c"]
    assert [n.name for n in learned.renamed] == ["d"]


def test_readable_names_are_shortened_and_mangled_ones_are_not() -> None:
    """The identity of a kernel is kept in full."""
    (name,) = table().learn([raw(1, "k" * 30_000)]).fresh
    assert (len(name.name), len(name.readable)) == (30_000, MAX_READABLE)


def test_short_names_stay_as_they_are() -> None:
    """Up to the limit nothing is cut."""
    for name in ("", "gemm", "k" * MAX_READABLE):
        assert shorten(name) == name


@given(st.text(min_size=1, max_size=30), st.text(min_size=1, max_size=30))
def test_shortening_never_merges_names(one: str, other: str) -> None:
    """Long names with equal beginnings stay apart, wherever they differ."""
    prefix, suffix = "p" * MAX_READABLE, "s" * MAX_READABLE
    cut = [shorten(prefix + one + suffix), shorten(prefix + other + suffix)]
    assert all(len(name) == MAX_READABLE and name.startswith("ppp") for name in cut)
    assert (cut[0] == cut[1]) == (one == other)


def test_what_is_known_and_asked_again_is_counted() -> None:
    """By process, and by what is asked for: a name, or another handle."""
    names = table()
    names.learn([raw(1, "gemm"), raw(2, alias_of=1), raw(1, "gemm", process=OTHER)])
    learned = names.learn(
        [raw(1, "gemm"), raw(2, alias_of=1), raw(2, alias_of=1), raw(1, "gemm", process=OTHER)]
    )
    assert learned.repeated == {
        (PROCESS, ProbeGroup.NAME): 1,
        (PROCESS, ProbeGroup.ALIAS): 2,
        (OTHER, ProbeGroup.NAME): 1,
    }


def test_aliases_of_what_was_named_before_us_teach_nothing() -> None:
    """However often they come: programs that ran before the agent ask for them, too."""
    learned = table().learn([raw(2, alias_of=1), raw(2, alias_of=1)])
    assert not learned.fresh
    assert learned.repeated == {(PROCESS, ProbeGroup.ALIAS): 2}


def test_one_process_cannot_make_us_keep_everything_that_it_names() -> None:
    """A loop over new handles with names of 4 KB: 64 MB of them stay, the last ones, and the rest is counted."""
    names = table()
    texts = [f"{number:04x}" * 1_000 for number in range(18_000)]
    for handle in range(len(texts)):
        names.learn([raw(handle, texts[handle])])
    kept = held(texts)
    assert kept <= (64 << 20) // 4_000
    assert names.forgotten == len(texts) - kept > 0
    (alias,) = names.learn([raw(1 << 40, alias_of=len(texts) - 1)]).fresh
    assert alias.name == texts[-1]
    names.learn([raw(1 << 41, alias_of=0)])
    assert names.unresolved_aliases == 1
    names.learn([raw(1, "small", process=OTHER)])
    assert names.learn([raw(2, alias_of=1, process=OTHER)]).fresh


def test_names_that_are_asked_for_again_stay() -> None:
    """A program that loads modules for days goes on asking for what it uses."""
    names = table()
    names.learn([raw(1, "gemm")])
    for handle in range(10, 18_000):
        names.learn([raw(handle, "k" * 4_000), raw(1, "gemm")])
    assert names.forgotten > 0
    assert not names.learn([raw(1, "gemm")]).fresh
