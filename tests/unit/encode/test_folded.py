"""Folded stacks."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from otel_gpuflame.encode.folded import encode_folded
from otel_gpuflame.events.frames import Frame, FrameKind
from otel_gpuflame.profile import sample_types
from otel_gpuflame.profile.model import Bundle
from tests.unit.encode.bundles import bundle, bundles, waits_and_launches


def test_stacks_are_root_first_and_sorted() -> None:
    """A line holds the names from root to leaf and the value; lines are sorted."""
    assert encode_folded(waits_and_launches(), sample_types.GPU_WAIT) == (
        "<module>;Trainer.step.<locals>.inner;void at::add<float>(float*, at::Tensor const&);"
        "cuStreamSynchronize;[spin] 5000000\n"
        "<module>;void at::add<float>(float*, at::Tensor const&);cuStreamSynchronize;"
        "saxpy<float>(int, float*) 7000000\n"
    )


def test_lines_show_where_python_code_is() -> None:
    """On request a Python frame names its file and line."""
    folded = encode_folded(waits_and_launches(), sample_types.GPU_LAUNCH, lines=True)

    assert folded.startswith("<module> (train.py:88);Trainer.step.<locals>.inner (train.py:31);")


def test_equal_stacks_are_added_up_over_spans_and_bundles() -> None:
    """The format has no spans, so samples that differ only in these are one line."""
    one = bundle({sample_types.GPU_WAIT: [(0, 0, 0, 5), (0, -1, 0, 7)]}, stacks=[(0,)])

    assert encode_folded([one, one], sample_types.GPU_WAIT) == "<module> 24\n"


def test_absent_sample_type_gives_nothing() -> None:
    """A type that no bundle has samples of yields an empty text."""
    assert encode_folded(waits_and_launches(), sample_types.GPU_COPY) == ""


def test_separators_in_names_are_escaped() -> None:
    """`;`, newlines and backslashes in names are visible and cannot be taken for structure."""
    frames = [Frame(FrameKind.NATIVE, "a;b"), Frame(FrameKind.NATIVE, "c\nd\\x3b")]
    odd = bundle({sample_types.GPU_WAIT: [(0, -1, 0, 1)]}, frames=frames, stacks=[(0, 1)])

    assert encode_folded(odd, sample_types.GPU_WAIT) == "a\\x3bb;c\\x0ad\\\\x3b 1\n"


@settings(deadline=None)
@given(st.lists(bundles(), max_size=3))
def test_values_add_up(generated: list[Bundle]) -> None:
    """Every line ends in a value, and these add up to the totals of the profiles."""
    for sample_type in sample_types.ALL:
        folded = encode_folded(generated, sample_type)
        values = [int(line.rpartition(" ")[2]) for line in folded.split("\n")[:-1]]
        assert sum(values) == sum(
            profile.total
            for one in generated
            for profile in one.profiles
            if profile.sample_type == sample_type
        )
