"""What one append asks of an S3 server, beside stock pylance; counted, lest it creep up."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lance
import pytest

import holdfast
from commits.table_worker import rows, set_up
from holdfast.arbiter import RecordedDecisions
from holdfast.testing import FaultyS3Process

COMMITS = 4


@pytest.fixture(scope="module")
def s3() -> Iterator[FaultyS3Process]:
    with FaultyS3Process() as server:
        yield server


def cost(server: FaultyS3Process, append: Callable[[], object]) -> tuple[float, float]:
    """Return requests and bytes, both ways, of one append to a table that is warm."""
    append()
    server.control.clear_requests()
    for _ in range(COMMITS):
        append()
    totals = server.control.totals().values()
    sent = sum(total.received_bytes + total.sent_bytes for total in totals)
    return sum(total.requests for total in totals) / COMMITS, sent / COMMITS


def add_fragments(uri: str, options: dict[str, str], count: int) -> None:
    """Let a manifest show many more fragments; their files are never read."""
    table = lance.dataset(uri, storage_options=options)
    (fragment,) = table.get_fragments()
    template = fragment.metadata.to_json()
    made = []
    for _ in range(count):
        name = f"{uuid.uuid4().int % 2**24:024b}{uuid.uuid4().hex[:26]}.lance"
        template["files"][0]["path"] = name
        made.append(lance.FragmentMetadata.from_json(json.dumps(template)))
    if made:
        lance.LanceDataset.commit(
            table, lance.LanceOperation.Append(made), read_version=table.version
        )


class Counted:
    """A commit store whose calls are counted."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if callable(found):
            self.calls.append(name)
        return found


# Of a commit store, its statements included: data, transaction, insert, two looks (at the name
# and at the pin), copy, confirm.
# The look at the pin is what tells of a table that was removed, or made anew, by somebody who does
# not know this commit store; the store itself refuses only ids that were retired in it.
@pytest.mark.requirement("C1")
@pytest.mark.parametrize(
    ("arbiter", "most", "fragments"),
    [("conditional put", 5, 0), ("commit store", 7, 0), ("commit store", 7, 1_500)],
    ids=["conditional put", "commit store", "commit store, many fragments"],
)
def test_requests_of_an_append_beside_stock(
    s3: FaultyS3Process, tmp_path: Path, arbiter: str, most: int, fragments: int
) -> None:
    options = dict(s3.storage_options())
    plain, mine = (s3.url("lake", f"{tmp_path.name}/{name}.lance") for name in ("stock", "ours"))
    for uri in (plain, mine):
        lance.write_dataset(rows(0), uri, storage_options=options)
        add_fragments(uri, options, fragments)
    stock, stock_bytes = cost(
        s3, lambda: lance.write_dataset(rows(1), plain, mode="append", storage_options=options)
    )
    url = set_up(f"sqlite:///{tmp_path}/decisions.db?single_host=true")
    table = holdfast.adopt_table(
        mine, commit_store=url if arbiter == "commit store" else None, storage_options=options
    )
    table.append(rows(1))  # an adopted table learns what is there
    statements: list[str] = []
    if isinstance(table.core.arbiter, RecordedDecisions):
        counted: Any = Counted(table.core.arbiter._commit_store)
        table.core.arbiter._commit_store = counted
        statements = counted.calls
    ours, our_bytes = cost(s3, lambda: table.append(rows(1)))
    ours += len(statements[-COMMITS * 2 :]) / COMMITS
    print(f"requests {ours} (stock {stock}), bytes {our_bytes:.0f} (stock {stock_bytes:.0f})")
    assert len(statements) <= 2 * (COMMITS + 1)
    assert ours <= most
    assert our_bytes <= 2 * stock_bytes
