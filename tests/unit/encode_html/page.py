# SPDX-License-Identifier: Apache-2.0
"""Reads a page back, with a parser of its own: neither the encoder nor the viewer is asked."""

from __future__ import annotations

import json
from collections import Counter
from html.parser import HTMLParser
from typing import Any


class ParsedPage(HTMLParser):
    """Elements, attributes and the text of scripts, style and title."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: dict[str, list[str]] = {"script": [], "style": [], "title": []}
        self._open = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self._open = tag
        if tag in self.texts:
            self.texts[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open in self.texts:
            self.texts[self._open][-1] += data

    @property
    def data(self) -> dict[str, Any]:
        """The JSON of the page."""
        document: dict[str, Any] = json.loads(self.texts["script"][0])
        return document

    def policy(self) -> dict[str, list[str]]:
        """Directives of the Content-Security-Policy."""
        (content,) = (v for _, n, v in self.attributes if n == "content" and "-src" in v)
        parts = (directive.split() for directive in content.split(";"))
        return {name: sources for name, *sources in parts}


def decoded_stacks(data: dict[str, Any]) -> list[tuple[int, ...]]:
    """Frame indexes of each stack, root first, target included."""
    coded, stacks, at = data["stacks"], [], 0
    before: tuple[int, ...] = ()
    while at < len(coded):
        shared, added = coded[at], coded[at + 1]
        before = (*before[:shared], *coded[at + 2 : at + 2 + added])
        assert len(before) == shared + added
        stacks.append(before)
        at += 2 + added
    return stacks


def folded(data: dict[str, Any]) -> dict[tuple[str, str, str], int]:
    """Values by (sample type label, `target;frame;…`, span id or empty)."""
    names = [data["strings"][name] for name in data["frames"]["name"]]
    stacks = [";".join(names[frame] for frame in stack) for stack in decoded_stacks(data)]
    values: Counter[tuple[str, str, str]] = Counter()
    for series in data["series"]:
        label = data["types"][series["type"]]["label"]
        columns = (series["stack"], series["link"], series["value"])
        for stack, link, value in zip(*columns, strict=True):
            span_id = "" if link < 0 else data["links"][link][1]
            values[label, stacks[stack], span_id] += value
    return dict(values)
