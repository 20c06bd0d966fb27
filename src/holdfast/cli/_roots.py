"""`--all`: do something with every table below a root, and the tables that there are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from holdfast.cli._declare import Target
from holdfast.cli._output import Exit, print_error
from holdfast.commits import Namespace
from holdfast.errors import HoldfastError, InvalidInputError, NotFoundError
from holdfast.storage import open_store

_MOST = 10_000
_DEEPEST = 8


def find_tables(root: Target) -> list[tuple[str, str]]:
    """Return the name and address of every table below a root, sorted.

    Raises:
        NotFoundError: there is no such root.
        InvalidInputError: there are more tables than anybody wants in one answer.
        UnavailableError, PermissionDeniedError: the store did not tell.
    """
    location = open_store(root.uri, root.options).location
    if location.startswith("file://") and not Path(location.removeprefix("file://")).is_dir():
        raise NotFoundError("there is no such folder", root=root.uri)
    namespace = Namespace(root.uri, root.options)
    tables: list[tuple[str, str]] = []
    waiting: list[tuple[str, ...]] = [()]
    while waiting:
        here = waiting.pop(0)
        request = {"id": list(here)}
        for name in namespace.list_tables(request)["tables"]:
            table_id = (*here, name)
            tables.append((".".join(table_id), namespace.location(table_id)))
        if len(tables) > _MOST:
            raise InvalidInputError(f"more than {_MOST} tables: name a folder", root=root.uri)
        if len(here) < _DEEPEST:
            names = namespace.list_namespaces(request)["namespaces"]
            waiting += [(*here, name) for name in names]
    return sorted(tables)


def run_for_all(root: Target, run: Callable[[Target], Exit]) -> Exit:
    """Run something for each table; one that fails is told, and stops no other.

    Returns:
        The highest exit code of all.
    """
    worst = Exit.OK
    for _, uri in find_tables(root):
        try:
            code = run(replace(root, uri=uri))
        except HoldfastError as error:
            code = print_error(error, uri=uri)
        worst = max(worst, code)
    return worst
