"""What `repair` does, step by step, and what the operator said of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from holdfast.arbiter import Repin
from holdfast.options import StorageOptions
from holdfast.storage import ObjectStore


class RepairKind(StrEnum):
    """What a step puts right. Append-only."""

    PIN = "pin"
    ADDRESS = "address"
    COMMIT_STORE = "commit_store"
    OBJECT = "object"
    RECORDS = "records"
    LOG = "log"
    GENERATION = "generation"


class RepairState(StrEnum):
    """What became of a step. Append-only."""

    PLANNED = "planned"
    DONE = "done"
    CHOOSE = "choose"


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairStep:
    """One thing that a table needs.

    Attributes:
        kind: what is put right.
        what: what is wrong, and what is done about it.
        path: the object or series that it is about.
        loses: what is given up for good; None for a step that gives up nothing.
        kept: where the bytes are that were in its place.
        state: planned, done, or `choose`: say how, by an argument.
        command: for `choose`, the commands to choose from.
    """

    kind: RepairKind
    what: str
    path: str | None = None
    loses: str | None = None
    kept: tuple[str, ...] = ()
    state: RepairState = RepairState.PLANNED
    command: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return one line."""
        lost = f"; gives up: {self.loses}" if self.loses else ""
        return f"{self.state.value:<8} {self.kind.value}: {self.what}{lost}"


@dataclass(slots=True, kw_only=True)
class RepairRun:
    """What the operator said."""

    uri: str
    options: StorageOptions
    place: Repin | None
    new_commit_store: str | None
    conditional_put: bool
    commit_store: str | None
    confirm: bool
    store: ObjectStore
    steps: list[RepairStep] = field(default_factory=list)

    def do(self, step: RepairStep, act: Callable[[], object]) -> None:
        """Note a step; do it if that was confirmed."""
        if not self.confirm:
            self.steps.append(step)
            return
        kept = act()
        aside = (kept,) if isinstance(kept, str) else ()
        self.steps.append(replace(step, state=RepairState.DONE, kept=aside))
