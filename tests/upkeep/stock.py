"""Stock writers, as worker processes of the upkeep tests run them; importable by plain name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

from holdfast.formats import version_name


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def append(uri: str, options: dict[str, str] | None, *ids: int, mode: str = "append") -> None:
    lance.write_dataset(rows(*ids), uri, mode=mode, storage_options=options)


def append_all(uri: str, options: dict[str, str], ids: list[int], told: Any, ready: Any) -> None:
    """Append one row after the other and report which were acknowledged."""
    ready.wait(240)
    for number in ids:
        try:
            append(uri, options, number)
        except Exception as error:  # noqa: BLE001 - whatever a user would see
            told.put(("failed", f"{number}: {error}"[:200]))
        else:
            told.put(("acknowledged", number))
    told.put(("done", 0))


def ids_in(uri: str, options: dict[str, str] | None = None) -> list[int]:
    found = lance.dataset(uri, storage_options=options).to_table()["id"].to_pylist()
    return sorted(found)


def take_away(uri: str, version: int) -> bytes:
    """Remove a version's manifest, as if it was overwritten or never written."""
    file = Path(uri, version_name(version).path)
    body = file.read_bytes()
    file.unlink()
    Path(uri, "_versions/latest_version_hint.json").unlink(missing_ok=True)
    return body


def lose(uri: str, *ids: int) -> None:
    """Append in a way that no version shows."""
    append(uri, None, *ids)
    take_away(uri, lance.dataset(uri).version)


def lose_after_showing(uri: str, lost: int, kept: int, next_one: int) -> None:
    """Make `lost` part of a version, and the next version be built on another one.

    Two writers make version N; the store keeps the second one's, `lost`; a third, which has
    read the first one's, `kept`, builds N + 1 on that.
    """
    append(uri, None, kept)
    version = lance.dataset(uri).version
    first = take_away(uri, version)
    append(uri, None, lost)
    second = take_away(uri, version)
    file = Path(uri, version_name(version).path)
    file.write_bytes(first)
    append(uri, None, next_one)
    file.write_bytes(second)
