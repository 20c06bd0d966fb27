"""Small programs that Spark is started with, kept in the user's cache."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path


def kept_script(name: str, text: str, environ: Mapping[str, str]) -> Path:
    """Make sure that an executable script is there, and return where; concurrent callers agree.

    It is below `XDG_CACHE_HOME` (or `~/.cache`), in a folder that is named after its content:
    another text gets another folder.

    Raises:
        OSError: it cannot be written.
    """
    folder = Path(name).name
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    program = _cache_directory(environ) / folder / digest / name
    if not _is_executable_file(program, text):
        _write_executable(program, text)
    return program


def _cache_directory(environ: Mapping[str, str]) -> Path:
    base = Path(environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():  # unset, or to be ignored by the XDG rules
        base = Path(environ.get("HOME") or Path.home()) / ".cache"
    return base / "holdfast"


def _is_executable_file(path: Path, content: str) -> bool:
    return path.is_file() and os.access(path, os.X_OK) and path.read_text() == content


def _write_executable(path: Path, content: str) -> None:
    """Write the whole file or nothing, so that nobody ever starts half a script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".script-", delete=False) as file:
        temporary = Path(file.name)
        file.write(content)
    try:
        temporary.chmod(0o755)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
