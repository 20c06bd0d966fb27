"""Hooks of the documentation site: its navigation, and links to files beside `docs`.

The navigation below the pages of "Learn" follows the sections of `docs/index.md`, so that a new
page is listed in one place only. A link to a file of the repository that is no page is shown
as plain text: the site stands alone.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_SECTIONS = {
    "Do": "How to",
    "When something is wrong": "When something is wrong",
    "Look up": "Look up",
    "Why it is the way it is": "Why it is so",
}
_PAGE = re.compile(r"\]\(([\w./-]+\.md)\)")
_OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+(?:[A-Z]+\.md|src|tests|tools|benchmarks)[^)]*\)")


def on_config(config: Any) -> Any:  # noqa: ANN401 - MkDocs ships no types
    """Fill the sections of the navigation from the index."""
    pages = list_sections(Path(config["docs_dir"], "index.md").read_text())
    for entry in config["nav"]:
        for title in entry if isinstance(entry, dict) else ():
            if title in pages:
                entry[title] = pages[title]
    return config


def on_page_markdown(markdown: str, **_: object) -> str:
    """Show links that leave the documentation as text."""
    return _OUTSIDE.sub(r"\1", markdown)


def list_sections(index: str) -> dict[str, list[str]]:
    """Return the pages below each heading of the index, by their title in the navigation."""
    sections: dict[str, list[str]] = {}
    for part in index.split("\n## ")[1:]:
        heading, _, text = part.partition("\n")
        if heading in _SECTIONS:
            sections[_SECTIONS[heading]] = _PAGE.findall(text)
    return sections
