"""Names of C++ functions for people."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpuflame.symbolize.demangle import MAX_MANGLED_BYTES, Demangler


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


def test_without_a_library_names_stay() -> None:
    """A host without C++ run-time library shows mangled names."""
    assert Demangler(libraries=("libabsent.so.0",)).demangle("_Z3foov") == "_Z3foov"


@given(st.text(max_size=60).map("_Z".__add__))
def test_any_name_gives_text(demangler: Demangler, name: str) -> None:
    """Whatever follows the prefix."""
    assert demangler.demangle(name)
