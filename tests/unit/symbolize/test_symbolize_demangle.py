"""Names of C++ functions for people."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpuflame.symbolize.demangle import MAX_CACHED_CHARACTERS, MAX_MANGLED_BYTES, Demangler
from otel_gpuflame.symbolize.demangle_bound import longest_demangled
from tests.held import held


@pytest.fixture(scope="module")
def demangler() -> Demangler:
    """With the host's C++ library."""
    return Demangler()


@pytest.mark.parametrize(
    ("mangled", "name"),
    [
        ("_ZN2at4_ops5addmm4callERKNS_6TensorES4_", "at::_ops::addmm::call(at::Tensor const&, at::Tensor const&)"),
        ("_Z3fooIiEvT_", "void foo<int>(int)"),
        ("_ZNSt6vectorIiSaIiEE9push_backEOi", "std::vector<int, std::allocator<int> >::push_back(int&&)"),
    ],
)  # fmt: skip
def test_mangled_names_become_readable(demangler: Demangler, mangled: str, name: str) -> None:
    """Namespaces, references, templates."""
    assert demangler.demangle(mangled) == name


@pytest.mark.parametrize("name", ["main", "", "_Z", "_Zno", "i", "größe", "_ZN5space\udcff"])
def test_other_names_stay(demangler: Demangler, name: str) -> None:
    """C names, broken names, and single letters that would be types."""
    assert demangler.demangle(name) == name


def test_names_too_long_for_the_library_stay(demangler: Demangler) -> None:
    """Its stack use grows with the length."""
    name = "_Z" + "N1a" * MAX_MANGLED_BYTES
    assert demangler.demangle(name) == name


def _doubling(steps: int) -> str:
    """`f(A<int, int>, A<that, that>, A<that, that>, …)`: each step doubles the length."""
    parts = ["S_", *(f"S{digit}_" for digit in "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ")]
    return "_Z1f1AIiiE" + "".join(f"S_I{part}{part}E" for part in parts[1 : steps + 1])


@pytest.mark.parametrize("steps", [20, 28, 36])
def test_names_that_explode_stay(demangler: Demangler, steps: int) -> None:
    """200 characters that would become gigabytes are not given to the library."""
    assert demangler.demangle(_doubling(steps)) == _doubling(steps)


@pytest.mark.parametrize("steps", range(8))
def test_the_bound_is_not_below_the_real_length(demangler: Demangler, steps: int) -> None:
    """For the steepest names there are, while they can still be demangled."""
    name = demangler.demangle(_doubling(steps))
    assert name.startswith("f(A<int, int>")
    assert len(name) <= longest_demangled(_doubling(steps), 1 << 60)


@pytest.mark.parametrize(
    "mangled",
    [
        "_Z1fIJidEEvDpT_",
        "_Z1fIJidEEvDpRKT_",
        "_Z1fISt4pairIiiEEvT_S2_S2_S2_S2_S2_S2_S2_S2_S2_S2_S2_S2_S2_S2_S2_S2_S2_S2_S2_S2_S2_",
        "_ZN1aC1ERKSsS1_S1_S1_",
    ],
)
def test_the_bound_lets_ordinary_names_pass(demangler: Demangler, mangled: str) -> None:
    """Packs, many references to one type, abbreviations."""
    assert len(demangler.demangle(mangled)) > len(mangled)
    assert len(demangler.demangle(mangled)) <= longest_demangled(mangled, 1 << 60) < 1 << 20


def test_without_a_library_names_stay() -> None:
    """A host without C++ run-time library shows mangled names."""
    assert Demangler(libraries=("libabsent.so.0",)).demangle("_Z3foov") == "_Z3foov"


@given(st.text(max_size=60).map("_Z".__add__))
def test_any_name_gives_text(demangler: Demangler, name: str) -> None:
    """Whatever follows the prefix."""
    assert demangler.demangle(name)


def test_names_that_are_long_for_people_are_not_kept(demangler: Demangler) -> None:
    """100 characters become 17,000: sixty thousand of them would take a gigabyte."""
    begins = [f"_Z{len(str(n)) + 1}f{n}" for n in range(100)]
    long = [demangler.demangle(_doubling(9).replace("_Z1f", begin)) for begin in begins]
    assert min(map(len, long)) > MAX_CACHED_CHARACTERS
    assert held(long) == 0
    short = [demangler.demangle(_doubling(3).replace("_Z1f", begin)) for begin in begins]
    assert held(short) == len(short)
