"""The README as a package index shows it: there, links need the whole address."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"\]\((?!https?://|#)([^)\s]+)\)")


class AbsoluteLinks(MetadataHookInterface):
    """Sets the description that the package carries."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Make links to files of the repository links to its home."""
        home = metadata["urls"]["Source"]
        text = (Path(self.root) / "README.md").read_text()
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": _LINK.sub(lambda link: f"]({home}{link[1]})", text),
        }
