# SPDX-License-Identifier: Apache-2.0
"""Names of GPU kernels for people: what C++ says about a kernel, in what a flame graph has room for. Pure.

`void at::native::vectorized_elementwise_kernel<4, at::native::AUnaryFunctor<float, float, float,
at::native::binary_internal::MulFunctor<float> >, std::array<char*, 2ul> >(int, …)` becomes
`at::native::vectorized_elementwise_kernel<4, AUnaryFunctor<…, MulFunctor<…>>, array<…>>`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

MAX_NAME: Final = 140
"""Characters: about what a frame of the full width shows."""
MAX_PARSED: Final = 16_384
"""Characters; the longest kernel of PyTorch 2.11 has about 2,000."""
MAX_NESTING: Final = 40
MAX_CACHED: Final = 4_096
ELLIPSIS: Final = "…"
_CLOSING: Final = {"<": ">", "(": ")", "{": "}", "[": "]"}
_OPERATORS: Final = re.compile(r"operator(?:\(\)|\[\]|->\*?|<=>|<<=?|>>=?|<=?|>=?)")
_LEFT_OUT: Final = re.compile(r"\(anonymous namespace\)::| \[clone [^\]]*\]")
_SUFFIXED: Final = re.compile(r"(-?\d+)(?:u|ul|ull|l|ll)")
_PLAIN: Final = re.compile(r"[\w *&]*")
_BEHIND_PARAMETERS: Final = re.compile(r"(?:\s+(?:const|volatile|noexcept)|\s*&&?)+")
_MAX_LAMBDA: Final = 24
"""Characters of a lambda's parameters that still tell something: its types, as `float, float`."""


@dataclass(slots=True)
class _Group:
    """Brackets, and what stands in them."""

    opening: str
    pieces: list[str | _Group] = field(default_factory=list)


_Pieces = Sequence[str | _Group]


@lru_cache(MAX_CACHED)
def readable_kernel_name(full: str) -> str:
    """A demangled name without return type, parameters and namespaces of arguments, in at most `MAX_NAME` characters.

    Template arguments are left out, from the inside, as far as that needs. What is no C++, or was cut, is returned as
    it is, shortened in its middle. Never empty, unless `full` is.
    """
    if len(full) > MAX_PARSED or not ("<" in full or "(" in full):
        return _shorten(full)
    operators: list[str] = []
    text = _OPERATORS.sub(lambda found: _hide(found[0], operators), _LEFT_OUT.sub("", full))
    pieces = _parse(text)
    if pieces is None:
        return _shorten(full)
    name = _without_return_type(pieces)
    for detail in _DETAILS:
        shown = _restore(_name(name, 0, detail), operators)
        if len(shown) <= MAX_NAME:
            break
    else:
        alone = len(_restore(_name(name, 0, _none), operators))
        shown = _restore(_name(name, 0, _that_fit(MAX_NAME - alone)), operators)
    return _shorten(shown.strip() or full)


def _hide(operator: str, operators: list[str]) -> str:
    """A word in place of an operator whose brackets are none."""
    operators.append(operator)
    return f"\0{len(operators) - 1}\0"


def _restore(text: str, operators: list[str]) -> str:
    def original(found: re.Match[str]) -> str:
        index = int(found[1])
        return operators[index] if index < len(operators) else found[0]

    return re.sub("\0([0-9]+)\0", original, text)


def _shorten(name: str) -> str:
    """Both ends: they tell kernels of one library apart better than a common beginning does."""
    if len(name) <= MAX_NAME:
        return name
    half = (MAX_NAME - 1) // 2
    return f"{name[: MAX_NAME - 1 - half]}{ELLIPSIS}{name[-half:]}"


def _parse(text: str) -> _Pieces | None:
    """Text and bracket groups; None where a bracket closes another one or stays open, or they nest too deep."""
    root = _Group("")
    open_groups = [root]
    begin = 0
    for at, character in enumerate(text):
        is_arrow = character == ">" and at and text[at - 1] == "-"
        if character not in "<>(){}[]" or is_arrow:
            continue
        if at > begin:
            open_groups[-1].pieces.append(text[begin:at])
        begin = at + 1
        if character in _CLOSING:
            group = _Group(character)
            open_groups[-1].pieces.append(group)
            open_groups.append(group)
            if len(open_groups) > MAX_NESTING:
                return None
        elif _CLOSING.get(open_groups.pop().opening) != character:
            return None
    if begin < len(text):
        open_groups[-1].pieces.append(text[begin:])
    return root.pieces if len(open_groups) == 1 else None


def _without_return_type(pieces: _Pieces) -> _Pieces:
    """From the last space on that is in no bracket, but that between a function and its qualifiers."""
    cleaned: list[str | _Group] = []
    for piece in pieces:
        after = cleaned[-1] if cleaned else None
        if isinstance(piece, str) and isinstance(after, _Group) and after.opening == "(":
            piece = _behind_parameters(piece)  # noqa: PLW2901 - one piece is looked at once
        cleaned.append(piece)
    for at in range(len(cleaned) - 1, -1, -1):
        piece = cleaned[at]
        if isinstance(piece, str) and " " in piece.rstrip():
            return [piece.rstrip().rpartition(" ")[2], *cleaned[at + 1 :]]
        if isinstance(piece, str) and piece.endswith(" ") and at + 1 < len(cleaned):
            return cleaned[at + 1 :]
    return cleaned


def _behind_parameters(text: str) -> str:
    found = _BEHIND_PARAMETERS.match(text)
    return text if found is None else text[found.end() :]


# What an argument list becomes: the list, how deep it is, and the rule for lists inside of it.
_Detail = Callable[[_Group, int], str]


def _all(group: _Group, depth: int) -> str:
    return ", ".join(_name(each, depth, _all) for each in _split(group.pieces))


def _templates(group: _Group, depth: int) -> str:
    """Inside of arguments only those that have arguments themselves: a functor says more than its types."""
    return _with_arguments(group, depth, _templates)


def _few_lambdas(group: _Group, depth: int) -> str:
    """As before; and of lambdas inside of lambdas the innermost."""
    return _with_arguments(group, depth, _few_lambdas)


def _bare_lambdas(group: _Group, depth: int) -> str:
    """As before, with numbers and without parameters of lambdas: the function that one is in says more."""
    return _with_arguments(group, depth, _bare_lambdas)


def _with_arguments(group: _Group, depth: int, inside: _Detail) -> str:
    shown: list[str] = []
    for each in _split(group.pieces):
        text = _name(each, depth, inside)
        is_number = inside is _bare_lambdas and text.isdecimal()
        if depth < 2 or is_number or any(isinstance(piece, _Group) for piece in each):
            shown.append(text)
        elif shown[-1:] != [ELLIPSIS]:
            shown.append(ELLIPSIS)
    return ", ".join(shown)


def _outermost(group: _Group, depth: int) -> str:
    if depth >= 2:
        return ELLIPSIS
    return ", ".join(_name(each, depth, _outermost) for each in _split(group.pieces))


def _none(_group: _Group, _depth: int) -> str:
    return ELLIPSIS


def _that_fit(characters: int) -> _Detail:
    """The first arguments, in this much room."""
    left = characters

    def first(group: _Group, depth: int) -> str:
        nonlocal left
        shown: list[str] = []
        for each in _split(group.pieces) if depth < 2 else ():
            argument = _name(each, depth, _outermost)
            left -= len(argument) + len(", ")
            if left < 0:
                break
            shown.append(argument)
        return ", ".join([*shown, ELLIPSIS])

    return first


_DETAILS: Final[tuple[_Detail, ...]] = (
    _all,
    _templates,
    _few_lambdas,
    _bare_lambdas,
    _outermost,
)


def _split(pieces: _Pieces) -> list[list[str | _Group]]:
    """The parts between commas."""
    parts: list[list[str | _Group]] = [[]]
    for piece in pieces:
        if isinstance(piece, _Group):
            parts[-1].append(piece)
            continue
        first, *others = piece.split(",")
        parts[-1].append(first)
        parts += [[each] for each in others]
    return [part for part in parts if any(not isinstance(p, str) or p.strip() for p in part)]


@dataclass(slots=True)
class _Component:
    """What stands between two `::`."""

    text: str = ""
    is_plain: bool = True
    """A namespace or a class: neither a function nor a template."""
    is_lambda: bool = False


def _name(pieces: _Pieces, depth: int, detail: _Detail) -> str:
    """A qualified name. Arguments lose the namespaces that they begin with."""
    components = _components(pieces, depth, detail)
    if depth:
        first = next((at for at, each in enumerate(components) if not each.is_plain), -1)
        # A lambda without the function that it is in would be anybody's.
        first -= first > 0 and components[first].is_lambda
        components = components[first:]
    shown = _without_bodies(components)
    if depth and detail in (_few_lambdas, _bare_lambdas):
        shown = [
            each
            for at, each in enumerate(shown)
            if not (each.is_lambda and at + 1 < len(shown) and shown[at + 1].is_lambda)
        ]
    text = "::".join(each.text for each in shown).strip()
    number = _SUFFIXED.fullmatch(text)
    return text if number is None else number[1]


def _without_bodies(components: Sequence[_Component]) -> list[_Component]:
    """The body of a lambda is its `operator()`, which goes without saying."""
    return [
        each
        for at, each in enumerate(components)
        if not (at and components[at - 1].is_lambda and each.text.startswith("\0"))
    ]


def _components(pieces: _Pieces, depth: int, detail: _Detail) -> list[_Component]:
    components = [_Component()]
    is_behind_parameters = False
    for piece in pieces:
        if isinstance(piece, str):
            text = _behind_parameters(piece) if is_behind_parameters else piece
            first, *others = text.split("::")
            components[-1].text += first
            components += [_Component(each) for each in others]
            is_behind_parameters = False
            continue
        component = components[-1]
        component.is_plain = False
        is_behind_parameters = piece.opening == "("
        if piece.opening == "<":
            component.text += f"<{detail(piece, depth + 1)}>"
        elif piece.opening == "{":
            component.is_lambda = True
            component.text += _lambda(piece, depth, detail)
        elif piece.opening == "[":
            component.text += f"[{_name(piece.pieces, depth + 1, detail)}]"
    return components


def _lambda(group: _Group, depth: int, detail: _Detail) -> str:
    """`{lambda(float)#1}`; parameters that say little in many characters are left out."""
    parts: list[str] = []
    for piece in group.pieces:
        if isinstance(piece, str):
            parts.append(piece)
        elif piece.opening == "(" and piece.pieces:
            parameters = ", ".join(_name(each, depth + 1, detail) for each in _split(piece.pieces))
            is_plain = len(parameters) <= _MAX_LAMBDA and _PLAIN.fullmatch(
                parameters.replace(",", "")
            )
            is_shown = is_plain and detail is not _bare_lambdas
            parts.append(f"({parameters})" if is_shown else "")
    return f"{{{''.join(parts)}}}"
