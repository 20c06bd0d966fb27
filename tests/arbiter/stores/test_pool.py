from __future__ import annotations

import gc
import os
import threading
from dataclasses import dataclass, field

import pytest

from holdfast.arbiter.stores import _pool
from holdfast.arbiter.stores._pool import Pool


@dataclass
class Factory:
    opened: int = 0
    closed: list[int] = field(default_factory=list)
    discarded: list[int] = field(default_factory=list)

    def open(self) -> int:
        self.opened += 1
        return self.opened

    def pool(self) -> Pool[int]:
        return Pool(self.open, self.closed.append, discard=self.discarded.append)


def use(pool: Pool[int]) -> int:
    with pool.connection() as connection:
        return connection


def test_one_connection_serves_many_short_lived_threads() -> None:
    factory = Factory()
    pool = factory.pool()
    for _ in range(20):
        thread = threading.Thread(target=use, args=(pool,))
        thread.start()
        thread.join()
    assert factory.opened == 1


def test_two_users_at_once_get_two_connections() -> None:
    factory = Factory()
    pool = factory.pool()
    with pool.connection() as one, pool.connection() as two:
        assert one != two
    assert factory.opened == 2 and factory.closed == []


def test_a_connection_whose_use_failed_is_discarded() -> None:
    factory = Factory()
    pool = factory.pool()
    with pytest.raises(KeyboardInterrupt), pool.connection():
        raise KeyboardInterrupt
    assert factory.discarded == [1]
    assert use(pool) == 2


def test_close_ends_idle_and_returning_connections() -> None:
    factory = Factory()
    pool = factory.pool()
    with pool.connection() as lent:
        use(pool)
        pool.close()
        assert factory.closed == [2]
    assert factory.closed == [2, lent]


def test_more_than_the_idle_limit_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pool, "MAX_IDLE", 1)
    factory = Factory()
    pool = factory.pool()
    with pool.connection(), pool.connection():
        pass
    assert len(factory.closed) == 1


def test_a_failing_close_is_no_error() -> None:
    def fail(connection: int) -> None:
        raise OSError(connection)

    pool = Pool(Factory().open, fail)
    use(pool)
    pool.close()


class Connection:
    """Leaves a mark when it is collected, as a driver's connection would hang up."""

    def __init__(self, mark: int) -> None:
        self.mark = mark

    def __del__(self) -> None:
        os.write(self.mark, b"x")


@pytest.mark.requirement("C5")
# Other tests of this process may have loaded lance, which warns at any fork.
@pytest.mark.filterwarnings("ignore:lance is not fork-safe")
def test_a_forked_child_neither_uses_nor_ends_a_parents_connection() -> None:
    reader, writer = os.pipe()
    closed: list[Connection] = []
    pool = Pool(lambda: Connection(writer), closed.append)
    with pool.connection() as connection:
        parents = id(connection)
        del connection
    gc.collect()  # what other tests have left is not for the child to end
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            with pool.connection() as connection:
                fresh = id(connection) != parents
            del connection
            pool.close()
            mine = len(closed) == 1
            del pool
            _pool._inherited.clear()  # as the interpreter does when it exits
            gc.collect()
            status = 0 if fresh and mine else 2
        finally:
            os._exit(status)  # closed still holds the child's own connection: no mark
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.set_blocking(reader, False)
    with pytest.raises(BlockingIOError):
        os.read(reader, 1)
    with pool.connection() as connection:
        assert id(connection) == parents
        del connection
    os.dup2(os.open(os.devnull, os.O_WRONLY), writer)
    os.close(reader)
