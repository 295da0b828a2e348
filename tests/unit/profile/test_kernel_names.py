# SPDX-License-Identifier: Apache-2.0
"""Names of kernels for people: real ones of PyTorch, cuBLAS and CUTLASS, and anything at all."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpuflame.capture.replay import ReplaySource
from otel_gpuflame.events.apis import Runtime
from otel_gpuflame.events.frames import ProcessKey
from otel_gpuflame.events.records import HandleName, Names
from otel_gpuflame.profile.kernel_names import MAX_NAME, MAX_PARSED, readable_kernel_name
from otel_gpuflame.profile.labels import kernel_frame

ROOT: Final = Path(__file__).parents[3]
CAPTURES: Final = [
    ROOT / "examples/captures/h200_train.ogfcap",
    *sorted((ROOT / "tests/golden/captures").glob("*.ogfcap")),
]
ELEMENTWISE: Final = "at::native::vectorized_elementwise_kernel"
MUL: Final = "at::native::AUnaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> >"
SILU: Final = (
    "at::native::(anonymous namespace)::silu_kernel(at::TensorIteratorBase&)::{lambda()#1}::operator()() const"
    "::{lambda()#2}::operator()() const::{lambda(float)#1}"
)
COPY: Final = (
    "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const"
    "::{lambda()#7}::operator()() const::{lambda(float)#1}"
)
ITERATOR: Final = "at::TensorIteratorBase"
PUT: Final = (
    f"at::native::index_put_kernel_impl<at::native::OpaqueType<2> >({ITERATOR}&, c10::ArrayRef<long>)"
    "::{lambda(char*, char const*, long)#1}"
)
GEMV: Final = "cublasGemvTensorStridedBatched<float const>"

TABLE: Final = {
    # Whole where there is room: no return type, no parameters, arguments without their namespaces.
    f"void {ELEMENTWISE}<4, {MUL}, std::array<char*, 2ul> >(int, {MUL}, std::array<char*, 2ul>)": (
        f"{ELEMENTWISE}<4, AUnaryFunctor<float, float, float, MulFunctor<float>>, array<char*, 2>>"
    ),
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float, false>(int)": (
        "at::native::vectorized_layer_norm_kernel<float, float, false>"
    ),
    "at::cuda::(anonymous namespace)::spin_kernel(long)": "at::cuda::spin_kernel",
    # A lambda is named by the functions that it is in, without the operator() of each.
    f"void {ELEMENTWISE}<4, {SILU}, std::array<char*, 2ul> >(int, {SILU})": (
        f"{ELEMENTWISE}<4, silu_kernel::{{lambda#1}}::{{lambda#2}}::{{lambda(float)#1}}, array<char*, 2>>"
    ),
    # Less and less of the inside, where there is not enough room.
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::func_wrapper_t<float, "
    "at::native::sum_functor<float, float, float>::operator()(at::TensorIterator&)::{lambda(float, float)#1}>, "
    "unsigned int, float, 4, 4> >(int)": (
        "at::native::reduce_kernel<512, 1, ReduceOp<…, func_wrapper_t<…, "
        "sum_functor<…>::operator()::{lambda(float, float)#1}>, …>>"
    ),
    f"void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<{COPY}>("
    f"at::TensorIteratorBase&, {COPY} const&)::{{lambda(int)#1}}>(int)": (
        "at::native::elementwise_kernel<128, 2, gpu_kernel_impl_nocast<direct_copy_kernel_cuda::{lambda(float)#1}>"
        "::{lambda(int)#1}>"
    ),
    f"void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel<{PUT}>({ITERATOR}&, {PUT} const&)"
    "::{lambda(int)#1}>(long)": (
        "at::native::index_elementwise_kernel<128, 4, gpu_index_kernel<index_put_kernel_impl<OpaqueType<2>>"
        "::{lambda#1}>::{lambda#1}>"
    ),
    f"void gemmSN_TN_kernel<float, 128, 16, 2, 4, 8, 9, false, {GEMV}, {GEMV}, "
    "cublasGemvTensorStridedBatched<float> >(cublasGemmSmallNParams<float>)": (
        "gemmSN_TN_kernel<float, 128, 16, 2, 4, 8, 9, false, cublasGemvTensorStridedBatched<…>, "
        "cublasGemvTensorStridedBatched<…>, …>"
    ),
    # Return types with brackets of their own, values of enumerations, pointers to functions, operators.
    "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, 6>(int)": (
        "internal::gemvx::kernel<int, 6>"
    ),
    "void scan<(at::Mode)1, 32u, (bool)1>(int)": "scan<1, 32, 1>",
    "void apply<std::less<int>, &(operator< <int>), (n::kind)-2>(int)": "apply<less<int>, &, -2>",
    "void outer(int)::{lambda(float*)#2}::operator()(float*) const [clone .isra.0]": (
        "outer::{lambda(float*)#2}"
    ),
    # What is no C++ stays.
    "triton_poi_fused_add_relu_0": "triton_poi_fused_add_relu_0",
    "sm80_xmma_gemm_f32f32_tn_n_tilesize128x64x8": "sm80_xmma_gemm_f32f32_tn_n_tilesize128x64x8",
    "": "",
    "<": "<",
    "()": "()",
    "a<b)": "a<b)",
}


@pytest.mark.parametrize(("full", "expected"), TABLE.items(), ids=range(len(TABLE)))
def test_what_people_see(full: str, expected: str) -> None:
    """The name that says which kernel this is."""
    assert readable_kernel_name(full) == expected


def recorded_names() -> list[HandleName]:
    """Kernels of all recordings, but those whose names were cut by a recorder that did not keep them whole yet."""
    found: dict[str, HandleName] = {}
    for path in CAPTURES:
        with ReplaySource(path) as source:
            for event in source.events():
                if isinstance(event, Names):
                    whole = [name for name in event.names if "…" not in name.readable]
                    found.update((name.name, name) for name in whole)
    return list(found.values())


def test_recorded_kernels_are_readable_and_still_whole_beside_it() -> None:
    """Nothing of 91 kernels is only brackets, none look the same, and the linker's name is kept."""
    names = recorded_names()
    assert len(names) == 91
    frames = [kernel_frame(Runtime.CUDA, name) for name in names]
    for name, frame in zip(names, frames, strict=True):
        assert len(frame.name) <= MAX_NAME
        assert (frame.system_name or frame.name) == name.name
        assert "namespace" not in frame.name
        assert not frame.name.startswith("void ")
        assert not frame.name.endswith("kernel<…>"), name.readable
        assert frame.name.count("<") == frame.name.count(">")
    assert len(set(frames)) == len(names)
    assert len({frame.name for frame in frames}) == len(names)


def test_kernels_that_look_the_same_are_not_one() -> None:
    """What is left out tells them apart: the frame keeps it as its identity."""
    process = ProcessKey(1, 1)
    inner = "A<B<C<{}> > >"
    full = [f"void k<{', '.join([inner.format(n)] * 12)}>(int)" for n in ("int", "long")]
    one, other = (
        kernel_frame(Runtime.CUDA, HandleName(process, 0, 1, mangled, name))
        for mangled, name in zip(("_Z1", "_Z2"), full, strict=True)
    )
    assert one.name == other.name
    assert one != other


@given(st.text(alphabet=st.sampled_from("ab:<>(){}[], *&#0…-\0") | st.characters(), max_size=400))
def test_any_name_has_a_bounded_readable_one(name: str) -> None:
    """No exception, no empty name, never longer than the limit."""
    shown = readable_kernel_name(name)
    assert len(shown) <= MAX_NAME
    assert bool(shown) == bool(name)


@st.composite
def cpp_names(draw: st.DrawFn) -> str:
    """Names as a demangler writes them."""
    word = st.sampled_from(["a", "kernel", "at", "operator()", "operator<", "4", "float const*"])
    nested = st.recursive(
        word,
        lambda inner: st.one_of(
            st.builds("{}::{}".format, inner, inner),
            st.builds("{}<{}, {} >".format, inner, inner, inner),
            st.builds("{}({}) const".format, inner, inner),
            st.builds("{}::{{lambda({})#1}}".format, inner, inner),
        ),
        max_leaves=40,
    )
    return f"void {draw(nested)}({draw(nested)})"


@given(cpp_names())
def test_any_cpp_name_has_a_bounded_readable_one(name: str) -> None:
    """As before, for names that get far into the parser; brackets are paired."""
    shown = readable_kernel_name(name)
    assert 0 < len(shown) <= MAX_NAME


@pytest.mark.parametrize("opening", "<({[")
def test_a_hostile_name_takes_no_recursion(opening: str) -> None:
    """A program says what its kernels are called."""
    for length in (50, MAX_PARSED, 1_000_000):
        assert len(readable_kernel_name(opening * length)) <= MAX_NAME
        assert len(readable_kernel_name("a<b," * length)) <= MAX_NAME
        assert len(readable_kernel_name("a" + "<b>" * length)) <= MAX_NAME
