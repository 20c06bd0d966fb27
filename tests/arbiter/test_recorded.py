"""Decisions in a commit store, row by row of RFC 0001's failure table, on a lying S3 server."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast._ids import RandomIds
from holdfast.arbiter import (
    CommitStore,
    Key,
    Lost,
    RecordedDecisions,
    RetryPolicy,
    Won,
    pin_to_commit_store,
)
from holdfast.arbiter._recorded import INLINE_BYTES
from holdfast.arbiter._shedding import LEAST, MOST
from holdfast.arbiter.stores.sqlite import SqliteCommitStore, connect
from holdfast.errors import (
    CollectedError,
    CommitStoreRegressedError,
    CommitUnknownError,
    ConflictError,
    CorruptError,
    ForeignVersionError,
    UnavailableError,
)
from holdfast.formats import (
    STAGED_FOLDER,
    VERSIONS_SERIES,
    Name,
    decode_record,
    make_record,
    version_name,
)
from holdfast.storage import ObjectStore, open_store
from holdfast.testing import Fault, FaultyS3

QUICK = RetryPolicy(
    attempts=3, first_wait=timedelta(milliseconds=1), longest_wait=timedelta(milliseconds=2)
)
BIG = 70_000
FIRST, SECOND = version_name(1), version_name(2)

pytestmark = pytest.mark.requirement("C5", "C8")


def marked(text: str = "body", size: int = 0) -> tuple[bytes, str]:
    """Return a body that no codec makes smaller, and its token."""
    token = RandomIds().token()
    body = f"{text} {token}".encode()
    return body + random.Random(size).randbytes(max(0, size - len(body))), token


class Place:
    """A table on a store that ignores conditions, and its commit store."""

    def __init__(self, s3: FaultyS3, commit_store: SqliteCommitStore) -> None:
        self.s3 = s3
        self.commit_store = commit_store
        self.store: ObjectStore = open_store(
            s3.url("bucket", "table"), {**s3.storage_options(), "client_max_retries": "0"}
        )
        self.pin = pin_to_commit_store(self.store, commit_store, RandomIds())

    def arbiter(self, commit_store: CommitStore | None = None) -> RecordedDecisions:
        return RecordedDecisions(
            self.store, commit_store or self.commit_store, self.pin, retry=QUICK
        )

    def staged(self) -> list[str]:
        return [info.path for info in self.store.list(STAGED_FOLDER)]

    def forget(self, number: int) -> None:
        """Lose a record, as a restored backup would."""
        with self.commit_store._use() as connection:
            connection.execute("DELETE FROM holdfast_records WHERE number = ?", (number,))


@pytest.fixture
def place(faulty_s3: Callable[..., FaultyS3], tmp_path: Path) -> Iterator[Place]:
    commit_store = connect(f"sqlite:///{tmp_path}/decisions.db")
    commit_store.set_up()
    yield Place(faulty_s3(conditions="ignoring"), commit_store)
    commit_store.close()


@pytest.mark.parametrize("size", [0, BIG], ids=["inline", "staged"])
def test_first_body_wins_and_everyone_learns_it(place: Place, size: int) -> None:
    mine, my_token = marked("mine", size)
    theirs, their_token = marked("theirs", size)
    arbiter = place.arbiter()
    assert arbiter.read(FIRST) is None
    assert arbiter.decide(FIRST, mine, my_token) == Won()
    assert place.arbiter().decide(FIRST, theirs, their_token) == Lost(mine)
    assert place.arbiter().decide(FIRST, mine, my_token) == Won()
    assert place.arbiter().read(FIRST) == mine
    assert place.store.get(FIRST.path) == mine
    assert place.staged() == []


def test_small_bodies_travel_inside_the_record(place: Place) -> None:
    arbiter = place.arbiter()
    arbiter.decide(FIRST, *marked())
    place.s3.requests.clear()
    arbiter.decide(SECOND, *marked())
    assert [seen.operation for seen in place.s3.requests.all()] == ["get", "get", "put"]


def test_large_bodies_are_copied_inside_the_server(place: Place) -> None:
    arbiter = place.arbiter()
    arbiter.decide(FIRST, *marked(size=BIG))
    place.s3.requests.clear()
    arbiter.decide(SECOND, *marked(size=BIG))
    operations = [seen.operation for seen in place.s3.requests.all()]
    assert operations.count("put") == 1
    assert operations.count("copy") == 1


@pytest.mark.parametrize("size", [0, BIG], ids=["inline", "staged"])
@pytest.mark.parametrize("kind", ["drop_before", "drop_after"])
@pytest.mark.parametrize("nth", [1, 2, 3, 4, 5])
def test_any_answer_or_request_lost_once(place: Place, size: int, kind: str, nth: int) -> None:
    place.s3.faults.add(Fault(kind=kind, nth=nth))  # type: ignore[arg-type]
    body, token = marked(size=size)
    assert place.arbiter().decide(FIRST, body, token) == Won()
    place.s3.faults.clear()
    assert place.store.get(FIRST.path) == body
    assert place.arbiter().read(FIRST) == body


class Silent:
    """A commit store whose answer to one verb gets lost, before or after it was applied."""

    def __init__(self, inner: CommitStore, verb: str, *, applied: bool, times: int = 1) -> None:
        self._inner = inner
        self._verb = verb
        self._applied = applied
        self._left = times

    def __getattr__(self, name: str) -> object:
        found = getattr(self._inner, name)
        if name != self._verb or self._left == 0:
            return found

        def silent(*args: object, **kwargs: object) -> object:
            self._left -= 1
            if self._applied:
                found(*args, **kwargs)
            raise UnavailableError("no answer")

        return silent


def silent(place: Place, verb: str, *, applied: bool, times: int = 1) -> RecordedDecisions:
    store: object = Silent(place.commit_store, verb, applied=applied, times=times)
    return place.arbiter(store)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [0, BIG], ids=["inline", "staged"])
@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("verb", ["get", "put_if_absent", "compare_and_set", "scan"])
def test_any_answer_of_the_commit_store_lost_once(
    place: Place, size: int, verb: str, applied: bool
) -> None:
    body, token = marked(size=size)
    assert silent(place, verb, applied=applied).decide(FIRST, body, token) == Won()
    assert place.store.get(FIRST.path) == body


@pytest.mark.parametrize("applied", [False, True])
def test_record_without_an_answer_is_unknown_and_nothing_is_deleted(
    place: Place, applied: bool
) -> None:
    body, token = marked(size=BIG)
    arbiter = place.arbiter(_deaf(place, applied=applied))
    with pytest.raises(CommitUnknownError) as caught:
        arbiter.decide(FIRST, body, token)
    assert caught.value.decided is False
    assert len(place.staged()) == 1
    assert place.arbiter().decide(FIRST, body, token) == Won()
    assert place.arbiter().read(FIRST) == body
    assert place.staged() == []


def _deaf(place: Place, *, applied: bool) -> CommitStore:
    """A commit store that answers no put, nor any read after the first one."""
    quiet_reads = Silent(place.commit_store, "get", applied=False, times=99)
    heard: list[str] = []

    class Deaf(Silent):
        def __getattr__(self, name: str) -> object:
            if name == "get" and heard:
                return quiet_reads.get
            if name == "put_if_absent":
                heard.append(name)
            return super().__getattr__(name)

    deaf: object = Deaf(place.commit_store, "put_if_absent", applied=applied, times=99)
    return deaf  # type: ignore[return-value]


def test_decided_but_not_copied_is_unknown_and_anybody_finishes(place: Place) -> None:
    body, token = marked()
    place.s3.faults.add(Fault(kind="drop_before", method="PUT", times=None))
    with pytest.raises(CommitUnknownError) as caught:
        place.arbiter().decide(FIRST, body, token)
    assert caught.value.decided is True
    place.s3.faults.clear()
    theirs, their_token = marked("theirs")
    assert place.arbiter().decide(FIRST, theirs, their_token) == Lost(body)
    assert place.store.get(FIRST.path) == body
    assert place.arbiter().decide(FIRST, body, token) == Won()


@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_credentials_that_expire_after_deciding_leave_it_unknown(place: Place, method: str) -> None:
    body, token = marked()
    place.s3.faults.add(Fault(kind="status_before", method=method, status=403, times=None))
    with pytest.raises(CommitUnknownError) as caught:
        place.arbiter().decide(FIRST, body, token)
    assert caught.value.decided is True
    place.s3.faults.clear()
    assert place.arbiter().decide(FIRST, body, token) == Won()


def test_a_winner_whose_record_was_collected_still_hears_that_it_won(place: Place) -> None:
    body, token = marked()
    place.arbiter().decide(FIRST, body, token)
    place.arbiter().accept("versions", 1)
    assert place.arbiter().decide(FIRST, body, token) == Won()


def test_one_token_at_two_names_stages_two_objects(place: Place) -> None:
    body, token = marked(size=BIG)
    place.arbiter().decide(FIRST, *marked("other", BIG))
    assert isinstance(place.arbiter().decide(FIRST, body, token), Lost)
    assert place.arbiter().decide(SECOND, body, token) == Won()
    assert make_record(FIRST.path, body, token, after=None, inline=False).staged != (
        make_record(SECOND.path, body, token, after=None, inline=False).staged
    )


def test_an_unfinished_predecessor_is_finished_first(place: Place) -> None:
    body, token = marked()
    place.s3.faults.add(Fault(kind="drop_before", method="PUT", times=None))
    with pytest.raises(CommitUnknownError):
        place.arbiter().decide(FIRST, body, token)
    place.s3.faults.clear()
    assert place.arbiter().decide(SECOND, *marked("next")) == Won()
    assert place.store.get(FIRST.path) == body


def test_a_name_whose_predecessor_is_undecided_is_a_conflict(place: Place) -> None:
    with pytest.raises(ConflictError, match="before"):
        place.arbiter().decide(SECOND, *marked())
    assert place.commit_store.scan(f"{place.pin.table_id}/versions") == []


def test_a_foreign_version_is_refused_and_can_be_accepted(place: Place) -> None:
    arbiter = place.arbiter()
    arbiter.decide(FIRST, *marked())
    place.store.put(SECOND.path, b"written by somebody else")
    for attempt in (
        lambda: place.arbiter().read(SECOND),
        lambda: place.arbiter().decide(version_name(3), *marked()),
        lambda: place.arbiter().decide(SECOND, *marked()),
    ):
        with pytest.raises(ForeignVersionError) as caught:
            attempt()
        assert caught.value.number == 2
    assert place.store.get(SECOND.path) == b"written by somebody else"
    place.arbiter().accept("versions", 2)
    assert place.arbiter().read(SECOND) == b"written by somebody else"
    assert place.arbiter().decide(version_name(3), *marked()) == Won()


def test_versions_that_a_stranger_built_on_ours_are_foreign(place: Place) -> None:
    body, token = marked()
    place.arbiter().decide(FIRST, body, token)
    for number in (2, 3):  # a stock writer carries the token of the version below along
        place.store.put(version_name(number).path, b"stock, on " + body)
    for attempt in (
        lambda: place.arbiter().decide(version_name(4), *marked()),
        lambda: place.arbiter().read(version_name(3)),
    ):
        with pytest.raises(ForeignVersionError) as caught:
            attempt()
        assert caught.value.number == 3


def test_bytes_changed_behind_our_back_are_noticed(place: Place) -> None:
    place.arbiter().decide(FIRST, *marked())
    place.store.put(FIRST.path, b"changed")
    with pytest.raises(ForeignVersionError):
        place.arbiter().read(FIRST)
    with pytest.raises(ForeignVersionError):
        place.arbiter().decide(SECOND, *marked())


def test_a_commit_store_that_forgot_is_noticed(place: Place) -> None:
    body, token = marked()
    place.arbiter().decide(FIRST, body, token)
    place.forget(1)
    for attempt in (
        lambda: place.arbiter().read(FIRST),
        lambda: place.arbiter().decide(SECOND, *marked()),
    ):
        with pytest.raises(CommitStoreRegressedError) as caught:
            attempt()
        assert caught.value.number == 1
    assert place.store.get(FIRST.path) == body


def test_a_stale_writer_does_not_overwrite_what_was_forgotten(place: Place) -> None:
    arbiter = place.arbiter()
    first, token = marked("first")
    arbiter.decide(FIRST, first, token)
    stale = place.arbiter()
    assert stale.read(FIRST) == first
    second, token = marked("second")
    arbiter.decide(SECOND, second, token)
    place.forget(2)
    with pytest.raises(ForeignVersionError):
        stale.decide(SECOND, *marked("rival"))
    assert place.store.get(SECOND.path) == second


def test_a_rival_lineage_is_noticed(place: Place) -> None:
    arbiter = place.arbiter()
    arbiter.decide(FIRST, *marked("first"))
    place.forget(1)
    place.store.delete([FIRST.path])
    rival = place.arbiter()
    rival.decide(FIRST, *marked("rival"))
    rival.decide(SECOND, *marked("on the rival"))
    with pytest.raises(CommitStoreRegressedError) as caught:
        arbiter.decide(SECOND, *marked("on the first"))
    assert caught.value.number == 1


def test_collected_names_cannot_be_decided_again(place: Place) -> None:
    arbiter = place.arbiter()
    bodies = []
    for number in (1, 2, 3):
        body, token = marked(str(number))
        bodies.append(body)
        arbiter.decide(version_name(number), body, token)
    arbiter.accept("versions", 2)
    with pytest.raises(CollectedError):
        place.arbiter().decide(FIRST, *marked("zombie"))
    assert place.arbiter().read(FIRST) == bodies[0]
    assert place.arbiter().read(version_name(3)) == bodies[2]
    assert place.arbiter().decide(version_name(4), *marked()) == Won()
    assert arbiter.newest("versions") == 4


def test_newest_is_told_from_records_or_the_boundary(place: Place) -> None:
    arbiter = place.arbiter()
    assert arbiter.newest("versions") is None
    arbiter.accept("versions", 7)
    assert arbiter.newest("versions") == 7


def test_decided_bytes_that_vanished_are_an_error(place: Place) -> None:
    place.arbiter().decide(FIRST, *marked(size=BIG))
    place.store.delete([FIRST.path])
    with pytest.raises(CorruptError):
        place.arbiter().read(FIRST)


def test_a_record_that_cannot_be_read_is_an_error(place: Place) -> None:
    key = Key(f"{place.pin.table_id}/versions", 1)
    place.commit_store.put_if_absent(key, b"garbage")
    with pytest.raises(CorruptError):
        place.arbiter().read(FIRST)


def test_two_bodies_under_one_token_never_mix(place: Place) -> None:
    token = RandomIds().token()
    one, other = (f"{text} {token}".encode().ljust(BIG, b".") for text in ("one", "other"))
    place.s3.faults.add(Fault(kind="drop_before", path_regex="_versions", times=None))
    with pytest.raises(CommitUnknownError):
        place.arbiter().decide(FIRST, one, token)
    place.s3.faults.clear()
    assert place.arbiter().decide(FIRST, other, token) == Won()
    assert place.store.get(FIRST.path) == one


def test_names_that_stand_alone_need_no_predecessor(place: Place) -> None:
    name = Name.single("_indices/plan.json")
    body, token = marked()
    assert place.arbiter().decide(name, body, token) == Won()
    assert place.arbiter().read(name) == body


@pytest.mark.requirement("C5")
def test_a_large_body_that_shrinks_travels_inside_the_record(place: Place) -> None:
    token = RandomIds().token()
    body = b" ".join([token.encode(), *(b"fragment %d" % n for n in range(40_000))])
    assert place.arbiter().decide(FIRST, body, token) == Won()
    assert place.staged() == []
    (entry,) = place.commit_store.scan(f"{place.pin.table_id}/{VERSIONS_SERIES}")
    assert len(body) > 6 * INLINE_BYTES > 6 * len(entry.value)
    assert decode_record(entry.value).body == body
    lost = place.arbiter().decide_next(FIRST, *marked("loser"))
    assert lost == Lost(body)
    place.store.delete([FIRST.path])  # as if its copy had not been made yet
    assert place.arbiter().read(FIRST) == body
    assert place.store.get(FIRST.path) == body


def test_losers_remove_what_they_staged(place: Place) -> None:
    place.arbiter().decide(FIRST, *marked("winner", BIG))
    assert isinstance(place.arbiter().decide(FIRST, *marked("loser", BIG)), Lost)
    assert place.staged() == []


def test_a_staged_object_that_cannot_be_removed_does_no_harm(place: Place) -> None:
    place.s3.faults.add(Fault(kind="status_before", method="DELETE", status=403, times=None))
    place.s3.faults.add(Fault(kind="status_before", method="POST", status=403, times=None))
    body, token = marked(size=BIG)
    assert place.arbiter().decide(FIRST, body, token) == Won()
    assert len(place.staged()) == 1
    assert place.arbiter().read(FIRST) == body


def test_the_record_says_who_and_where(place: Place) -> None:
    body, token = marked(size=BIG)
    place.arbiter().decide(FIRST, body, token)
    value = place.commit_store.get(Key(f"{place.pin.table_id}/versions", 1))
    assert value is not None
    record = decode_record(value)
    assert (record.token, record.path, record.size) == (token, FIRST.path, BIG)
    assert record.state == "final"


# Bodies leave once their copies are confirmed


def bodies(place: Place) -> list[int]:
    """Return the versions whose bodies are still in the commit store."""
    series = f"{place.pin.table_id}/{VERSIONS_SERIES}"
    entries = place.commit_store.scan(series, limit=1000)
    return [entry.number for entry in entries if decode_record(entry.value).body is not None]


def test_only_the_newest_bodies_stay_in_the_commit_store(place: Place) -> None:
    decided, arbiter = {}, place.arbiter()
    for number in range(1, 81):
        body, token = marked(size=2000 if number % 3 else 100)  # small ones go as well
        assert arbiter.decide(version_name(number), body, token) == Won()
        decided[number] = body
        kept = bodies(place)
        assert kept[-LEAST:] == list(range(max(1, number - LEAST + 1), number + 1))
        assert kept[0] > number - MOST
        assert MOST == 16
    for number in (1, 40, 64, 80):
        assert place.arbiter().read(version_name(number)) == decided[number]


def test_a_body_whose_copy_is_not_there_stays(place: Place) -> None:
    """The newest decision may be unfinished; nothing is decided on top of it before it is."""
    arbiter, slow = place.arbiter(), place.arbiter()
    for number in range(1, 24):
        arbiter.decide(version_name(number), *marked())
    slow._copy_once = lambda *_: None  # type: ignore[method-assign]
    body, token = marked()
    with pytest.raises(CommitUnknownError):
        slow.decide(version_name(24), body, token)
    assert 24 in bodies(place)
    assert arbiter.decide(version_name(25), *marked()) == Won()
    assert place.arbiter().read(version_name(24)) == body
