"""Small inserts that arrive at the same time become one version, each with its own outcome.

They are gathered on the event loop: while one group is committed, whoever arrives joins the next.
So an insert that waits holds no thread, and a group costs one change of threads, not one for each
of its members. Only the event loop's thread touches what is kept here.

This is no `commits.GroupCommit`, which is about threads: its callers block, one of them leads, and
any of them may be interrupted. Here nobody blocks, a task of the loop leads, and a lock would be
in the way. What its groups become is one append, which meets others in that `GroupCommit`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from holdfast import CommitResult
from holdfast.errors import HoldfastError
from holdfast.server._lanes import Lane
from holdfast.server._tables import Id, Insert

Outcomes: TypeAlias = Sequence[CommitResult | HoldfastError]


class Inserts:
    """Gathers inserts by table, and commits one group of each table at a time.

    Args:
        lane: whose threads commit.
        append: adds the rows of a group to a table; returns the outcome of each.
    """

    def __init__(self, lane: Lane, append: Callable[[Id, Sequence[Insert]], Outcomes]) -> None:
        self._lane = lane
        self._append = append
        self._waiting: dict[Id, list[tuple[Insert, asyncio.Future[CommitResult]]]] = {}
        self._leading: set[asyncio.Task[None]] = set()  # or the loop would forget them

    async def add(self, table_id: Id, insert: Insert) -> CommitResult:
        """Add rows to a table, with those of others. Whoever stops waiting cancels nothing.

        Raises:
            HoldfastError: as for `Table.append`.
        """
        outcome: asyncio.Future[CommitResult] = asyncio.get_running_loop().create_future()
        group = self._waiting.get(table_id)
        if group is not None:
            group.append((insert, outcome))
        else:
            self._waiting[table_id] = [(insert, outcome)]
            leader = asyncio.create_task(self._lead(table_id))
            self._leading.add(leader)
            leader.add_done_callback(self._leading.discard)
        return await outcome

    async def _lead(self, table_id: Id) -> None:
        """Commit group after group, until nobody waits."""
        while group := self._waiting[table_id]:
            self._waiting[table_id] = []
            work = partial(self._append, table_id, [insert for insert, _ in group])
            outcomes: Sequence[CommitResult | Exception]
            try:
                outcomes = await self._lane.run(work)
            except Exception as error:  # noqa: BLE001 - each member gets it, as it is
                outcomes = [error] * len(group)
            for (_, waiter), outcome in zip(group, outcomes, strict=True):
                _resolve(waiter, outcome)
        del self._waiting[table_id]


def _resolve(waiter: asyncio.Future[CommitResult], outcome: CommitResult | Exception) -> None:
    if waiter.done():
        return  # its client went away
    if isinstance(outcome, Exception):
        waiter.set_exception(outcome)
        waiter.exception()  # it was seen, even if the client is gone
    else:
        waiter.set_result(outcome)
