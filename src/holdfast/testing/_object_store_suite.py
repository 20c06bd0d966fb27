"""`ObjectStoreSuite`: shows whether an object store keeps the port's promises. For pytest.

    class TestMyStore(ObjectStoreSuite):
        def make_store(self, place: str) -> ObjectStore:
            return open_store(f"mystore://bucket/{place}")

Each test works in a place of its own, so the store may be shared and need not be empty. Set
`keeps_conditions` to False for a store whose put-if-absent may be ignored: it then needs a
commit store, and the suite does not ask for more.
"""

from __future__ import annotations

import contextlib
import copy
import pickle
import unittest
from collections.abc import Iterator, Sequence
from functools import partial

from holdfast._ids import RandomIds
from holdfast.errors import (
    AlreadyExistsError,
    InvalidInputError,
    NotFoundError,
    UnsupportedError,
)
from holdfast.storage import (
    ObjectStore,
    SupportsDistrust,
    SupportsFirstNames,
    SupportsFolders,
    SupportsSync,
)
from holdfast.testing._commit_store_races import run_together

_BODIES = (b"", b"\0", bytes(range(256)), b"\r\n\r\n<x>&amp;%20+", b"\xff" * 300_000)
_BAD_PATHS = ("", "/a", "a//b", "a/", "../a", "a/../b", "a b", "a\0", "a?x", "a#x", "a%2Fb")


class ObjectStoreSuite:
    """Tests that every object store passes.

    Attributes:
        keeps_conditions: whether `put_if_absent` is enforced, also between threads.
        races: how many names are raced for.
        many: how many objects make a long listing.
    """

    keeps_conditions: bool = True
    races: int = 10
    many: int = 1100

    def make_store(self, place: str) -> ObjectStore:
        """Return a new client; two clients of the same place see the same objects."""
        raise NotImplementedError

    # Reading and writing.

    def test_bytes_come_back_exactly(self) -> None:
        store, other = self._two()
        for number, body in enumerate(_BODIES):
            store.put(f"folder/{number}.bin", body)
            assert other.get(f"folder/{number}.bin") == body
            info = other.head(f"folder/{number}.bin")
            assert (info.path, info.size) == (f"folder/{number}.bin", len(body))
            assert info.modified >= 0

    def test_a_put_replaces_the_whole_object(self) -> None:
        store, other = self._two()
        store.put("a", b"a long first body")
        store.put("a", b"short")
        assert other.get("a") == b"short"
        assert other.head("a").size == len(b"short")

    def test_ranges(self) -> None:
        store, _ = self._two()
        store.put("a", b"0123456789")
        assert store.get("a", start=2, end=5) == b"234"
        assert store.get("a", start=7) == b"789"
        assert store.get("a", end=3) == b"012"
        assert store.get("a", start=8, end=99) == b"89"
        assert store.get("a", start=10) == b"", "beyond the last byte there are none"
        assert store.get("a", start=50, end=60) == b""
        assert store.get("a", start=5, end=5) == b""
        assert store.get("a", start=6, end=2) == b""
        for start, end in ((-1, None), (0, -1)):
            with _raises(InvalidInputError):
                store.get("a", start=start, end=end)

    def test_what_is_not_there(self) -> None:
        store, _ = self._two()
        store.put("folder/a", b"x")
        for path in ("b", "folder", "folder/a/b"):
            with _raises(NotFoundError):
                store.get(path)
            with _raises(NotFoundError):
                store.get(path, start=1, end=2)
            with _raises(NotFoundError):
                store.head(path)
            with _raises(NotFoundError):
                store.copy(path, "target")
        assert [info.path for info in store.list()] == ["folder/a"]

    def test_names_that_are_none(self) -> None:
        store, _ = self._two()
        for path in _BAD_PATHS:
            with _raises(InvalidInputError):
                store.put(path, b"x")
            with _raises(InvalidInputError):
                store.get(path)
            with _raises(InvalidInputError):
                store.delete([path])

    def test_names_that_look_odd(self) -> None:
        store, other = self._two()
        names = ["a=b/c+d", "_versions/18446744073709551614.manifest", ".hidden/x", "A", "a.b-c_d"]
        for name in names:
            store.put(name, name.encode())
        assert [info.path for info in other.list()] == sorted(names)
        assert all(other.get(name) == name.encode() for name in names)

    # Creating.

    def test_put_if_absent(self) -> None:
        store, other = self._two()
        try:
            store.put_if_absent("a", b"first")
        except UnsupportedError:
            assert not self.keeps_conditions, "the store refuses conditions"
            return
        assert other.get("a") == b"first"
        if self.keeps_conditions:
            with _raises(AlreadyExistsError):
                other.put_if_absent("a", b"second")
            with _raises(AlreadyExistsError):
                store.put_if_absent("a", b"first")
            assert store.get("a") == b"first"

    def test_one_of_many_creators_wins(self) -> None:
        if not self.keeps_conditions:
            raise unittest.SkipTest("the store's conditions may be ignored")
        place = self._place()
        stores = [self.make_store(place) for _ in range(8)]
        for number in range(self.races):
            won = run_together(8, partial(_create_at, stores, f"race/{number}"))
            assert won.count(True) == 1, f"{won.count(True)} creators won one name"
            assert stores[0].get(f"race/{number}") == b"%d" % won.index(True)

    def test_a_store_that_is_not_trusted_says_why(self) -> None:
        store, _ = self._two()
        if not isinstance(store, SupportsDistrust):
            raise unittest.SkipTest("the store is judged by the probe")
        assert store.distrust

    # Listing.

    def test_a_listing_is_exact_and_current(self) -> None:
        store, other = self._two()
        assert list(store.list()) == []
        for path in ("b/2", "b/1", "a", "b.c/x", "bc/x", "b/d/3"):
            store.put(path, path.encode())
        assert [i.path for i in other.list()] == ["a", "b.c/x", "b/1", "b/2", "b/d/3", "bc/x"]
        assert [i.path for i in other.list("b")] == ["b/1", "b/2", "b/d/3"]
        assert [i.path for i in other.list("b", after="b/1")] == ["b/2", "b/d/3"]
        assert [i.path for i in other.list(after="b/2")] == ["b/d/3", "bc/x"]
        assert list(other.list("nothing")) == []
        assert [i.size for i in other.list("b/d")] == [len("b/d/3")]
        store.delete(["b/1"])
        assert [i.path for i in other.list("b")] == ["b/2", "b/d/3"]

    def test_a_long_listing_is_complete(self) -> None:
        store, other = self._two()
        names = [f"many/{number:05d}" for number in range(self.many)]
        for first in range(0, self.many, 50):
            batch = names[first : first + 50]
            run_together(len(batch), partial(_put_one, store, batch))
        assert [info.path for info in other.list("many")] == names
        assert [info.path for info in other.list("many", after=names[-3])] == names[-2:]
        if isinstance(other, SupportsFirstNames):
            assert min(other.first_names("many")) == "00000"
        store.delete(names)
        assert list(other.list()) == []

    def test_folders(self) -> None:
        store, _ = self._two()
        if not isinstance(store, SupportsFolders):
            raise unittest.SkipTest("the store does not list folders")
        for path in ("a/b/c", "a/d", "e/f", "g"):
            store.put(path, b"x")
        # A store may keep files of its own below `_holdfast`.
        assert [name for name in store.folders() if name != "_holdfast"] == ["a", "e"]
        assert list(store.folders("a")) == ["b"]
        assert list(store.folders("nothing")) == []

    # Copying and deleting.

    def test_a_copy_leaves_its_source(self) -> None:
        store, other = self._two()
        store.put("source", b"bytes")
        store.copy("source", "new/target")
        assert other.get("new/target") == other.get("source") == b"bytes"
        store.put("source", b"changed")
        assert other.get("new/target") == b"bytes", "the copy is the source under another name"
        store.copy("source", "new/target")
        assert other.get("new/target") == b"changed"

    def test_a_copy_to_a_taken_name(self) -> None:
        store, _ = self._two()
        store.put("source", b"bytes")
        store.copy("source", "target", if_absent=True)
        with _raises(AlreadyExistsError):
            store.copy("source", "target", if_absent=True)
        store.put("other", b"other")
        with _raises(AlreadyExistsError):
            store.copy("other", "target", if_absent=True)
        assert store.get("target") == b"bytes"

    def test_deleting(self) -> None:
        store, other = self._two()
        for number in range(5):
            store.put(f"a/{number}", b"x")
        store.delete(["a/0", "a/nothing", "a/3", "nothing"])
        store.delete([])
        assert [info.path for info in other.list()] == ["a/1", "a/2", "a/4"]
        with _raises(NotFoundError):
            other.get("a/0")

    # Handles.

    def test_two_places_are_apart(self) -> None:
        store, elsewhere = self.make_store(self._place()), self.make_store(self._place())
        store.put("a", b"here")
        assert list(elsewhere.list()) == []
        assert store.location != elsewhere.location

    def test_a_place_has_one_name(self) -> None:
        store, other = self._two()
        assert (store.location, store.endpoint) == (other.location, other.endpoint)
        assert "@" not in store.location
        assert "?" not in store.location
        assert isinstance(store.copies_if_absent, bool)

    def test_handles_do_not_pickle(self) -> None:
        store, _ = self._two()
        for send in (pickle.dumps, copy.deepcopy):
            with _raises(TypeError):
                send(store)

    def test_sync(self) -> None:
        store, _ = self._two()
        if not isinstance(store, SupportsSync):
            raise unittest.SkipTest("a put of this store is durable by itself")
        store.put("a/b", b"x")
        store.sync(["a/b"])
        with _raises(NotFoundError):
            store.sync(["a/nothing"])

    def _place(self) -> str:
        return RandomIds().token()

    def _two(self) -> tuple[ObjectStore, ObjectStore]:
        place = self._place()
        return self.make_store(place), self.make_store(place)


def _put_one(store: ObjectStore, paths: Sequence[str], place: int) -> None:
    store.put(paths[place], b"x")


def _create_at(stores: Sequence[ObjectStore], path: str, place: int) -> bool:
    try:
        stores[place].put_if_absent(path, b"%d" % place)
    except AlreadyExistsError:
        return False
    return True


@contextlib.contextmanager
def _raises(error: type[Exception]) -> Iterator[None]:
    try:
        yield
    except error:
        return
    raise AssertionError(f"{error.__name__} was not raised")
