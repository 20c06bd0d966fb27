"""Tables and namespaces as folders: which there are below a root, and where one is.

A table `["a", "b"]` is the folder `a/b.lance`; the namespace `["a"]` is the folder `a`. No
two ids share a folder: a namespace's name never ends in `.lance`. A table is there while its
pin is, a namespace while a table or its marker is in it: a folder alone is nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from holdfast.errors import AlreadyExistsError, InvalidInputError, NotFoundError, UnsupportedError
from holdfast.formats import NAMESPACE_MARKER, PIN_PATH, TABLE_SUFFIX, check_name
from holdfast.options import StorageOptions
from holdfast.storage import ObjectStore, SupportsFolders, open_store

_LOOKS = 16  # requests under way while a listing looks for pins
Id = Sequence[str]


class Folders:
    """The folders below one root."""

    def __init__(self, root: str, options: StorageOptions) -> None:
        self._root = root
        self._options = options

    def table(self, table_id: Id) -> str:
        """Return the folder of a table, below the root.

        Raises:
            InvalidInputError: it has no name, or a part of it cannot be a folder's.
        """
        if not table_id:
            raise InvalidInputError("a table's id is a list of names, the last one its own")
        *parents, name = table_id
        folder = f"{check_name(name, 'a table name')}{TABLE_SUFFIX}"
        return "/".join([*self._parts(parents), folder])

    def tables(self, namespace: Id) -> list[str]:
        """Return the names of the tables directly below a namespace, sorted.

        Raises:
            NotFoundError: there is no such namespace.
        """
        path = self._path(namespace)
        names = self._tables_in(path)
        if not names:
            self.check(namespace)
        return names

    def namespaces(self, namespace: Id) -> list[str]:
        """Return the names of the namespaces directly below one, sorted.

        Raises:
            NotFoundError: there is no such namespace.
        """
        path = self._path(namespace)
        names = self._namespaces_in(path)
        if not names:
            self.check(namespace)
        return names

    def check(self, namespace: Id) -> None:
        """Make sure that a namespace exists; the root always does.

        Raises:
            NotFoundError: it does not.
        """
        path = self._path(namespace)
        if path and not self._is_namespace(path):
            raise NotFoundError("there is no such namespace", namespace=path)

    def create(self, namespace: Id) -> None:
        """Make an empty namespace.

        Raises:
            AlreadyExistsError: it exists.
            InvalidInputError: a part of its id cannot be a folder's name.
        """
        path = self._path(namespace)
        if not path or self._is_namespace(path):
            raise AlreadyExistsError("the namespace exists", namespace=path or "(root)")
        self._store().put(f"{path}/{NAMESPACE_MARKER}", b"{}")

    def drop(self, namespace: Id) -> None:
        """Remove an empty namespace.

        Raises:
            NotFoundError: it does not exist.
            InvalidInputError: something is in it.
        """
        path = self._path(namespace)
        self.check(namespace)
        if not path or self._tables_in(path) or self._namespaces_in(path):
            raise InvalidInputError(
                "the namespace is not empty: drop what is in it first", namespace=path or "(root)"
            )
        self._store().delete([f"{path}/{NAMESPACE_MARKER}"])

    def _is_namespace(self, path: str) -> bool:
        return (
            self._holds(f"{path}/{NAMESPACE_MARKER}")
            or bool(self._tables_in(path))
            or bool(self._namespaces_in(path))
        )

    def _tables_in(self, path: str) -> list[str]:
        folders = [name for name in self._folders_in(path) if name.endswith(TABLE_SUFFIX)]
        pins = ["/".join(filter(None, [path, folder, PIN_PATH])) for folder in folders]
        with ThreadPoolExecutor(_LOOKS, thread_name_prefix="holdfast-pins") as looks:
            there = list(looks.map(self._holds, pins))
        names = zip(folders, there, strict=True)
        return sorted(folder.removesuffix(TABLE_SUFFIX) for folder, pinned in names if pinned)

    def _namespaces_in(self, path: str) -> list[str]:
        folders = [name for name in self._folders_in(path) if not name.endswith(TABLE_SUFFIX)]
        paths = ["/".join(filter(None, [path, name])) for name in folders]
        pairs = zip(folders, paths, strict=True)
        return [name for name, below in pairs if _is_name(name) and self._is_namespace(below)]

    def _folders_in(self, path: str) -> Sequence[str]:
        store = self._store()
        if not isinstance(store, SupportsFolders):
            raise UnsupportedError("this store cannot list folders", location=self._root)
        return store.folders(path)

    def _holds(self, path: str) -> bool:
        try:
            self._store().head(path)
        except NotFoundError:
            return False
        return True

    def _store(self) -> ObjectStore:
        return open_store(self._root, self._options)

    def _path(self, namespace: Id) -> str:
        return "/".join(self._parts(namespace))

    def _parts(self, namespace: Id) -> list[str]:
        for name in namespace:
            check_name(name, "a namespace's name")
            if name.endswith(TABLE_SUFFIX):
                raise InvalidInputError(
                    f"a namespace's name does not end in {TABLE_SUFFIX}: tables' folders do",
                    name=name,
                )
        return list(namespace)


def _is_name(name: str) -> bool:
    try:
        check_name(name)
    except InvalidInputError:
        return False
    return True
