"""`ShardWriterConfig`: how a writer works, checked immediately, with the table's own defaults.

A setting that is not given is taken from what the table recorded for its writers, and
otherwise from the defaults below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any

from holdfast.errors import InvalidInputError
from holdfast.memtable import IndexConfig

_MAX_GROUP_BYTES = 512 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Every setting with its value; the attributes are those of `ShardWriterConfig`."""

    enable_memtable: bool = True
    durable_write: bool = True
    max_wal_buffer_size: int = 10 << 20
    max_wal_flush_interval: timedelta = timedelta(milliseconds=100)
    max_wal_persist_retries: int = 3
    wal_persist_retry_base_delay: timedelta = timedelta(milliseconds=50)
    max_memtable_size: int = 256 << 20
    max_memtable_rows: int = 100_000
    max_memtable_batches: int = 8_000
    max_unflushed_memtable_bytes: int = 1 << 30
    index_configs: tuple[IndexConfig, ...] | None = None
    sync_indexed_write: bool = True
    async_index_buffer_rows: int = 10_000
    async_index_interval: timedelta = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardWriterConfig:
    """How a writer works. Every setting may be left out.

    Attributes:
        enable_memtable: keep rows in memory, readable, and flush them to SSTables; True by
            default. False writes the log alone: whatever is said of MemTables and indexes below
            is then accepted and has no effect, except `index_configs`, which is refused.
        durable_write: `put` returns when the rows are durable; True by default. With False it
            returns early, which is no acknowledgement: a crash may lose the rows. Reads of the
            writer find them, as they wait until all that was put is in the log.
        max_wal_buffer_size: how many bytes of rows one log entry may gather; 10 MiB.
        max_wal_flush_interval: how long the rows of a writer without `durable_write` may wait for
            others before they are written together; 100 ms. Whoever waits for them (a read, a
            flush, `close`) and a full entry end it early. A durable put is written immediately.
        max_wal_persist_retries: how often a log write that was refused is tried again; 3.
        wal_persist_retry_base_delay: the first pause before that, doubled each time; 50 ms.
        max_memtable_size: bytes of rows from which on a MemTable is frozen; 256 MiB.
        max_memtable_rows: rows, likewise; 100,000. More than that, and a stock writer with
            its own defaults cannot open the shard before the rows are flushed.
        max_memtable_batches: log entries, likewise; 8,000.
        max_unflushed_memtable_bytes: the budget for rows in memory, waiting ones included;
            1 GiB. Without MemTables it bounds the rows that wait for the log.
        index_configs: how columns are searched in memory; as the table's maintained indexes
            say by default.
        sync_indexed_write: index keys as rows come, some 4,000 at a time; True by default. A
            read always indexes what waits, so acknowledged rows are found either way.
        async_index_buffer_rows: how many rows may wait for indexes then; 10,000.
        async_index_interval: how long; 1 s.
    """

    enable_memtable: bool | None = None
    durable_write: bool | None = None
    max_wal_buffer_size: int | None = None
    max_wal_flush_interval: timedelta | None = None
    max_wal_persist_retries: int | None = None
    wal_persist_retry_base_delay: timedelta | None = None
    max_memtable_size: int | None = None
    max_memtable_rows: int | None = None
    max_memtable_batches: int | None = None
    max_unflushed_memtable_bytes: int | None = None
    index_configs: tuple[IndexConfig, ...] | None = None
    sync_indexed_write: bool | None = None
    async_index_buffer_rows: int | None = None
    async_index_interval: timedelta | None = None

    def __post_init__(self) -> None:
        """Refuse values that no writer could keep to."""
        for name, value in self.given().items():
            _check(name, value)
        if self.enable_memtable is False and self.index_configs:
            raise InvalidInputError(
                "a writer without MemTables keeps no indexes: leave index_configs out"
            )

    def given(self) -> dict[str, Any]:
        """Return the settings that were given."""
        settings = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in settings.items() if value is not None}

    def resolve(self, recorded: Mapping[str, str]) -> Settings:
        """Return every setting: as given, as the table recorded it, or the default.

        Raises:
            InvalidInputError: what the table recorded makes no sense.
        """
        values = {**_from_table(recorded), **self.given()}
        if values.get("enable_memtable") is False and self.index_configs:
            raise InvalidInputError(
                "the table's writers have no MemTables, so they keep no indexes: leave "
                "index_configs out"
            )
        return Settings(**values)


def recorded_settings(config: ShardWriterConfig) -> dict[str, str]:
    """Return settings as a table records them for its writers, in Lance's names."""
    settings = {}
    for name, value in config.given().items():
        if name == "index_configs":
            raise InvalidInputError("indexes in memory are not recorded: they follow the table's")
        if isinstance(value, timedelta):
            settings[f"{name}_ms"] = str(round(value / timedelta(milliseconds=1)))
        else:
            settings[name] = str(value).lower()
    return settings


def _from_table(recorded: Mapping[str, str]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for one in fields(Settings):
        kind = type(one.default)
        key = f"{one.name}_ms" if kind is timedelta else one.name
        if key in recorded and kind in _READERS:
            try:
                settings[one.name] = _READERS[kind](recorded[key])
            except (ValueError, KeyError):
                raise InvalidInputError(
                    "the table recorded a writer setting that makes no sense",
                    setting=key,
                    value=repr(recorded[key])[:60],
                ) from None
            _check(one.name, settings[one.name])
    return settings


_READERS: Mapping[type, Callable[[str], object]] = {
    bool: lambda text: {"true": True, "false": False}[text.lower()],
    int: int,
    timedelta: lambda text: timedelta(milliseconds=int(text)),
}


def _check(name: str, value: object) -> None:
    default = next(one.default for one in fields(Settings) if one.name == name)
    if name == "index_configs":
        fits = isinstance(value, tuple) and all(isinstance(one, IndexConfig) for one in value)
        wanted = "a tuple of IndexConfig"
    elif isinstance(default, bool):
        fits, wanted = isinstance(value, bool), "True or False"
    elif isinstance(default, timedelta):
        fits = isinstance(value, timedelta) and value >= timedelta(0)
        wanted = "a timedelta that is not negative"
    else:
        least = 0 if name in {"max_wal_persist_retries", "async_index_buffer_rows"} else 1
        fits = isinstance(value, int) and not isinstance(value, bool) and value >= least
        wanted = f"a whole number from {least} on"
    if not fits:
        raise InvalidInputError(f"{name} is {wanted}", value=repr(value)[:60])
    if name == "max_wal_buffer_size" and isinstance(value, int) and value > _MAX_GROUP_BYTES:
        raise InvalidInputError(
            f"{name} is at most {_MAX_GROUP_BYTES}: a log entry must fit a request", value=value
        )
