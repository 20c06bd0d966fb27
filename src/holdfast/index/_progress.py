"""How a build is getting on, by stage: for people, and for programs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

log = logging.getLogger(__name__)


class Stage(StrEnum):
    """What is being done; in this order."""

    BUILD = "build"
    """Tasks build parts; counted are tasks."""
    COPY = "copy"
    """Parts get their final names; counted are files."""
    COMMIT = "commit"
    """The complete index becomes part of the table."""
    CLEAN = "clean"
    """What was staged is removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """So much of a stage is done."""

    build_id: str
    stage: Stage
    done: int
    total: int


Watch = Callable[[Progress], None]
"""A function that is told of progress; whatever it raises is logged and changes nothing."""


def report(watch: Watch | None, build_id: str, stage: Stage, done: int, total: int) -> None:
    """Tell the watcher, if there is one. Never raises."""
    if watch is None:
        return
    try:
        watch(Progress(build_id=build_id, stage=stage, done=done, total=total))
    except Exception:
        log.exception("a progress callback failed")
