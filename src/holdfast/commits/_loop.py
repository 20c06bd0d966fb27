"""`make_version`: the one loop in which versions of a table are made.

Whoever changes a table has a plan: how to build the next version on a given base, and how to judge
what came meanwhile. The loop lets it try, and asks after each conflict, in this order:

| after a conflict                                 | the loop                                   |
|--------------------------------------------------|--------------------------------------------|
| `find`: it is in the table already, by its txn   | returns that version                       |
| `again`: others were merely faster               | lets it try again, `tries` times           |
| `rebuild`: they changed what it is based on      | lets it build anew, `builds` times in all  |
| `never`, or as often as it may                   | raises                                     |

Only a `ConflictError` says that nothing was decided and that another try may help. Every other
error ends the loop: after `CommitUnknownError` above all, a second try could apply a change twice.
What keeps a try from deciding wrongly is not here but in the bytes that are decided: see
`holdfast.commits._versions`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from holdfast.errors import ConflictError, NextStep

Result = TypeVar("Result")


class CommitPlan(ABC, Generic[Result]):
    """How one version is built, and what a conflict means to it.

    Attributes:
        tries: how often what was built may be put upon what others did meanwhile.
        builds: how often it may be built.
    """

    tries: int = 1
    builds: int = 1

    def build(self) -> Result | None:
        """Compute what is to be committed; return a result only if there is nothing to commit."""

    @abstractmethod
    def attempt(self) -> Result:
        """Put it upon the newest version, and decide it.

        Raises:
            ConflictError: others were first, and nothing was decided.
            HoldfastError: whatever another try would not mend.
        """

    def find(self, error: ConflictError) -> Result | None:  # noqa: ARG002 - for those who override
        """Return the outcome of this very plan, if a repeat of it was the other writer."""
        return None

    def judge(self, error: ConflictError) -> NextStep:
        """Return what helps after a conflict."""
        return error.next_step

    def give_up(self, error: ConflictError) -> ConflictError:
        """Return the error that the caller gets in the end."""
        return error


def make_version(plan: CommitPlan[Result]) -> Result:
    """Carry a plan out: build, decide, and again as long as it helps.

    Raises:
        ConflictError: others were first, and nothing was decided; `next_step` tells what helps.
        HoldfastError: as for the plan's `build` and `attempt`.
    """
    for builds_left in reversed(range(plan.builds)):
        nothing_to_do = plan.build()
        if nothing_to_do is not None:
            return nothing_to_do
        for tries_left in reversed(range(plan.tries)):
            try:
                return plan.attempt()
            except ConflictError as error:
                done = plan.find(error)
                if done is not None:
                    return done
                step = plan.judge(error)
                if step is NextStep.AGAIN and tries_left:
                    continue
                if step is NextStep.REBUILD and builds_left:
                    break
                final = plan.give_up(error)
                if final is error:
                    raise
                raise final from error
    raise AssertionError("unreachable")  # the last try of the last build returns or raises
