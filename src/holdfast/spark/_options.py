"""The options of the data source `holdfast`: one table, from which they are read and documented.

Spark hands options over as strings with lower-cased names. A name that is not below is
refused, with a suggestion; what Spark itself adds is let through. `env:NAME` as a value of
`storage.*` or `commitStoreUrl` means an environment variable, looked up by each process.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Flag, auto
from typing import Any

from holdfast.errors import InvalidInputError
from holdfast.options import StorageOptions, suggestion


class Use(Flag):
    """What an option is for."""

    READ = auto()
    WRITE = auto()
    SOURCE = auto()
    SINK = auto()


_WORDS = {
    Use.READ: "read",
    Use.WRITE: "write",
    Use.SOURCE: "readStream",
    Use.SINK: "writeStream",
}
_READS = Use.READ | Use.SOURCE
_WRITES = Use.WRITE | Use.SINK
_ALL = _READS | _WRITES
_MOST = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option: its name, what it is for, how its text is read, and what to say about it."""

    name: str
    use: Use
    parse: Callable[[str, str], Any]  # Any: each option has its own type
    help: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkOptions:
    """What a user gave, read and checked. It travels to Spark's workers.

    Attributes:
        path: the table's address, as given.
        storage: storage options.
        values: every other option, by its documented name.
        sizes: column name in lower case -> length of its vectors.
    """

    path: str
    storage: StorageOptions
    values: Mapping[str, Any] = field(repr=False)  # Any: see `Option.parse`
    sizes: Mapping[str, int]

    def get(self, name: str) -> Any:  # noqa: ANN401 - see `Option.parse`
        """Return an option's value, None when it was not given."""
        if name not in _BY_NAME:
            raise KeyError(name)
        return self.values.get(name)


def _text(name: str, text: str) -> str:
    if not text.strip():
        raise InvalidInputError(f"option {name} is empty: give it a value or leave it out")
    return text


def _number(least: int) -> Callable[[str, str], int]:
    def parse(name: str, text: str) -> int:
        if re.fullmatch(r"[0-9]{1,19}", text.strip()) and least <= int(text) <= _MOST:
            return int(text)
        raise InvalidInputError(
            f"option {name} is a whole number from {least} on", given=repr(text[:40])
        )

    return parse


def _flag(name: str, text: str) -> bool:
    if text.strip().lower() not in {"true", "false"}:
        raise InvalidInputError(f"option {name} is true or false", given=repr(text[:40]))
    return text.strip().lower() == "true"


def _names(name: str, text: str) -> tuple[str, ...]:
    """Return comma-separated names; backquotes hold a name with a comma together."""
    parts = re.findall(r"\s*(`(?:[^`]|``)+`|[^,`]+?)\s*(?:,|$)", text)
    if not parts or re.sub(r"\s*(`(?:[^`]|``)+`|[^,`]+?)\s*(?:,|$)", "", text).strip():
        raise InvalidInputError(
            f"option {name} is a list of columns such as a,b,`with, comma`", given=repr(text[:80])
        )
    names = tuple(part[1:-1].replace("``", "`") if part[0] == "`" else part for part in parts)
    if len(set(names)) != len(names):
        raise InvalidInputError(f"option {name} names a column twice")
    return names


def _sizes(name: str, text: str) -> dict[str, int]:
    sizes = {}
    for part in _names(name, text):
        column, _, size = part.rpartition(":")
        if not column.strip():
            raise InvalidInputError(
                f"option {name} is a list such as Embedding:768", given=repr(text[:80])
            )
        sizes[column.strip()] = _number(1)(name, size)
    return sizes


def _freshness(name: str, text: str) -> str:
    if text.strip().lower() not in {"latest", "flushed", "base"}:
        raise InvalidInputError(f"option {name} is latest, flushed or base", given=repr(text[:40]))
    return text.strip().lower()


def _into(name: str, text: str) -> str:
    if text.strip().lower() not in {"table", "log"}:
        raise InvalidInputError(f"option {name} is table or log", given=repr(text[:40]))
    return text.strip().lower()


def _expressions(name: str, text: str) -> tuple[str, ...]:
    """Return expressions with commas between them; those in brackets and quotes do not count."""
    parts, depth, quote = [""], 0, ""
    for char in text:
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"`":
            quote = char
        else:
            depth += (char in "([{") - (char in ")]}")
        if char == "," and not quote and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return tuple(_text(name, part).strip() for part in parts)


def _moment(name: str, text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidInputError(
            f"option {name} is a time such as 2026-11-16T10:00:00Z", given=repr(text[:40])
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _parse_start(name: str, text: str) -> int | str:
    return "latest" if text.strip().lower() == "latest" else _number(1)(name, text)


OPTIONS: tuple[Option, ...] = (
    Option(
        name="commitStoreUrl",
        use=_ALL,
        parse=_text,
        help="Where versions are decided. Needed only to create a table on a store that cannot "
        "decide by itself; afterwards the table knows. Of an existing table it may be another "
        "address of the same commit store, with credentials, say. Use `env:NAME`.",
    ),
    Option(
        name="primaryKey",
        use=_WRITES,
        parse=_names,
        help="The columns that identify a row, for a table that this write creates; never null.",
    ),
    Option(
        name="versionAsOf",
        use=Use.READ,
        parse=_number(1),
        help="Read this version instead of the newest.",
    ),
    Option(
        name="timestampAsOf",
        use=Use.READ,
        parse=_text,
        help="Read the version that was the newest at this time, by its writers' clocks: "
        "`2026-11-16T10:00:00Z`; without a zone it is UTC.",
    ),
    Option(
        name="freshness",
        use=_READS,
        parse=_freshness,
        help="How new rows must be: `latest` (default) reads what writers got acknowledged, "
        "`flushed` leaves out what is only in logs, `base` reads the base table alone. "
        "An older version is of the base table alone. With `readChangeFeed`, `latest` or `base`: "
        "what is followed; a stream without it follows the base table.",
    ),
    Option(name="tag", use=Use.READ, parse=_text, help="Read the version that has this tag."),
    Option(
        name="columns",
        use=_READS,
        parse=_names,
        help="Read only these columns: `a,b`. Spark cannot tell a Python data source which "
        "columns a query uses; a schema given with `.schema(...)` has the same effect.",
    ),
    Option(
        name="filter",
        use=_READS,
        parse=_text,
        help="Read only rows that meet this condition, in Lance's SQL: `id < 5`.",
    ),
    Option(
        name="searchColumn",
        use=Use.READ,
        parse=_text,
        help="Search this text column: the load then has the rows that match `searchQuery` "
        "best, with their `_score`. `filter` narrows the search down.",
    ),
    Option(
        name="searchQuery",
        use=Use.READ,
        parse=_text,
        help='What to look for: `storm AND harbour`, `"old town"`, `harbor~1`; see '
        "[full-text search](../how-to/full-text.md).",
    ),
    Option(
        name="searchLimit",
        use=Use.READ,
        parse=_number(1),
        help="At most so many rows of a search. Default 100.",
    ),
    Option(
        name="fragmentsPerPartition",
        use=_READS,
        parse=_number(1),
        help="How many fragments one task reads. Without it, as many as make 64 MiB.",
    ),
    Option(
        name="txnAppId",
        use=Use.WRITE,
        parse=_text,
        help="Together with `txnVersion`: a job that is repeated under the same pair is applied "
        "once. Versions of one application count upwards.",
    ),
    Option(
        name="txnVersion",
        use=Use.WRITE,
        parse=_number(0),
        help="See `txnAppId`. Without the two, a job that is submitted again is a new job.",
    ),
    Option(
        name="mergeSchema",
        use=_WRITES,
        parse=_flag,
        help="`true` adds columns, and parts of structs, that the table lacks; rows that are there "
        "have null in them. A number becomes wider: `int` to `bigint`, `float` to `double`.",
    ),
    Option(
        name="overwriteSchema",
        use=Use.WRITE,
        parse=_flag,
        help="`true` lets an overwrite replace the columns too, not only the rows.",
    ),
    Option(
        name="maxRowsPerFile",
        use=_WRITES,
        parse=_number(1),
        help="Begin a new file after so many rows. Default 1048576.",
    ),
    Option(
        name="maxBytesPerFile",
        use=_WRITES,
        parse=_number(1),
        help="Begin a new file after about so many bytes. Default 90 GiB.",
    ),
    Option(
        name="vectorColumns",
        use=_WRITES,
        parse=_sizes,
        help="Arrays to store as vectors of one length, in columns that this write creates: "
        "`Embedding:768`. `<column>.arrow.fixed-size-list.size` = `768` says the same.",
    ),
    Option(
        name="into",
        use=Use.SINK,
        parse=_into,
        help="`table` (default) makes one version of each micro-batch. `log` writes each into the "
        "[log](../how-to/stream-into-the-log.md#the-sink-form), and needs the jar of the catalogs; "
        "without it, use `foreachBatch(holdfast.spark.ingest(uri))`.",
    ),
    Option(
        name="deletes",
        use=Use.SINK,
        parse=_text,
        help="With `into=log`: rows that meet this condition, in Spark's SQL, delete their key: "
        "`op = 'D'`.",
    ),
    Option(
        name="orderBy",
        use=Use.SINK,
        parse=_expressions,
        help="With `into=log`: which of several rows of one key in one batch is the newest: one "
        "expression in Spark's SQL that grows, or several with commas between them.",
    ),
    Option(
        name="upkeep",
        use=Use.SINK,
        parse=_text,
        help="With `into=log`: how often the driver flushes and merges the log: `1 minute` "
        "(default); `none` leaves that to `holdfast maintain`.",
    ),
    Option(
        name="entriesPerBatch",
        use=Use.SINK,
        parse=_number(1),
        help="With `into=log`: into how many log entries a shard's rows of one batch are divided. "
        "Default 1.",
    ),
    Option(
        name="shard",
        use=Use.SINK,
        parse=_text,
        help="With `into=log`: the shard to write, of a table whose shards are named by hand.",
    ),
    Option(
        name="readChangeFeed",
        use=_READS,
        parse=_flag,
        help="`true` reads changes instead of rows: inserts, deletes and both images of updates, "
        "each once; see [follow changes](../how-to/follow-changes.md).",
    ),
    Option(
        name="startingVersion",
        use=_READS,
        parse=_parse_start,
        help="Begin with the rows, or changes, of this version, or with `latest` with what comes "
        "after now. Without it a stream begins with all rows there are. Of no effect once "
        "there is a checkpoint. A batch read takes it with `readChangeFeed` only.",
    ),
    Option(
        name="startingTimestamp",
        use=_READS,
        parse=_moment,
        help="With `readChangeFeed`: begin with what came after this time: `2026-11-16T10:00:00Z`; "
        "without a zone it is UTC.",
    ),
    Option(
        name="startingCursor",
        use=_READS,
        parse=_text,
        help="With `readChangeFeed`: begin behind a cursor that `Table.changes` gave.",
    ),
    Option(
        name="endingVersion",
        use=Use.READ,
        parse=_number(1),
        help="With `readChangeFeed`: the last version whose changes are read. Default: all there "
        "are, the log included.",
    ),
    Option(
        name="endingTimestamp",
        use=Use.READ,
        parse=_moment,
        help="With `readChangeFeed`: read what came until this time, the log included: "
        "`2026-11-16T10:00:00Z`; without a zone it is UTC.",
    ),
    Option(
        name="endingCursor",
        use=Use.READ,
        parse=_text,
        help="With `readChangeFeed`: read as far as a cursor that `Table.changes` gave.",
    ),
    Option(
        name="maxFilesPerTrigger",
        use=Use.SOURCE,
        parse=_number(1),
        help="At most so many fragments in one micro-batch. Default: all there are.",
    ),
    Option(
        name="maxEntriesPerTrigger",
        use=Use.SOURCE,
        parse=_number(1),
        help="With `readChangeFeed`: at most so many log entries in one micro-batch, shared evenly "
        "among shards. Default: all there are.",
    ),
    Option(
        name="maxRowsPerTrigger",
        use=Use.SOURCE,
        parse=_number(1),
        help="With `readChangeFeed`: about so many rows in one micro-batch; the fragment, entry or "
        "version that reaches it is read whole. Default: all there are.",
    ),
    Option(
        name="skipChangeCommits",
        use=Use.SOURCE,
        parse=_flag,
        help="`true` passes over versions that deleted, changed or overwrote rows; without it "
        "such a version ends the stream with an error.",
    ),
)
_BY_NAME = {option.name: option for option in OPTIONS}
_BY_LOWER = {option.name.lower(): option for option in OPTIONS}

STORAGE_PREFIX = "storage."
SIZE_SUFFIX = ".arrow.fixed-size-list.size"
# What Spark adds of its own accord.
_OF_SPARK = {"path", "checkpointlocation", "queryname"}
# What Spark's own catalog adds to a load of a table that was created with `USING holdfast`.
_OF_CATALOG = {"location", "owner"}


def parse(options: Mapping[str, str], use: Use) -> SparkOptions:
    """Read what Spark hands over for one use.

    Raises:
        InvalidInputError: no path, an unknown or misplaced option, or a malformed value.
    """
    storage: dict[str, str] = {}
    values: dict[str, Any] = {}  # Any: see `Option.parse`
    sizes: dict[str, int] = {}
    _refuse_catalog(options)
    for key, text in options.items():
        lower = key.lower()
        if lower.startswith(STORAGE_PREFIX):
            storage[lower[len(STORAGE_PREFIX) :]] = text
        elif lower.endswith(SIZE_SUFFIX):
            sizes[lower[: -len(SIZE_SUFFIX)]] = _number(1)(key, text)
        elif lower not in _OF_SPARK:
            option = _find_option(key, use)
            values[option.name] = option.parse(option.name, text)
    _check_together(values)
    _check_changes(values, use)
    _check_log(values)
    for column, size in (values.get("vectorColumns") or {}).items():
        if sizes.setdefault(column.lower(), size) != size:
            raise InvalidInputError("a vector column has two lengths: keep one", column=column)
    return SparkOptions(
        path=_path_of(options), storage=StorageOptions(storage), values=values, sizes=sizes
    )


def _refuse_catalog(options: Mapping[str, str]) -> None:
    if _OF_CATALOG & {key.lower() for key in options}:
        raise InvalidInputError(
            "Spark's own catalog does not tell Holdfast where its tables are when it writes: drop "
            "this one, and name tables in a catalog of Holdfast's (session(catalogs=...)) or by a "
            "temporary view"
        )


def _path_of(options: Mapping[str, str]) -> str:
    lowered = {key.lower(): text for key, text in options.items()}
    if "paths" in lowered:
        raise InvalidInputError("a load reads one table: union two loads to read two")
    if not lowered.get("path", "").strip():
        raise InvalidInputError(
            "no table is named: give its address to load(...), save(...) or start(...). A table "
            "of Spark's catalog does not keep it; use a temporary view"
        )
    return as_s3(lowered["path"].strip())


def as_s3(address: str) -> str:
    """Return an address as other tools write it: Spark's own `s3a://` is `s3://`."""
    scheme, colon, rest = address.partition("://")
    return f"s3://{rest}" if colon and scheme.lower() in {"s3a", "s3n"} else address


def _find_option(key: str, use: Use) -> Option:
    if key.lower() == "paths":
        raise InvalidInputError("a load reads one table: union two loads to read two")
    option = _BY_LOWER.get(key.lower())
    if option is None:
        names = {name.lower(): name for name in _BY_NAME}
        hint = suggestion(key.lower(), [*names, STORAGE_PREFIX])
        for lower, name in names.items():
            hint = hint.replace(f"'{lower}'", f"'{name}'")
        raise InvalidInputError(
            f"unknown option {key!r}{hint}; see docs/reference/spark-options.md"
        )
    if use not in option.use:
        raise InvalidInputError(
            f"option {option.name} is for {_uses(option)}, not for {_WORDS[use]}"
        )
    return option


def _check_together(values: Mapping[str, Any]) -> None:  # Any: see `Option.parse`
    if ("txnAppId" in values) != ("txnVersion" in values):
        raise InvalidInputError("txnAppId and txnVersion come together: give both or neither")
    if ("searchColumn" in values) != ("searchQuery" in values):
        raise InvalidInputError("searchColumn and searchQuery come together: give both or neither")
    if "searchLimit" in values and "searchColumn" not in values:
        raise InvalidInputError("searchLimit is for a search: give searchColumn and searchQuery")
    asked = [name for name in ("versionAsOf", "timestampAsOf", "tag") if name in values]
    if len(asked) > 1:
        raise InvalidInputError("a load reads one version: keep one of " + ", ".join(asked))


_FOR_LOG = ("deletes", "orderBy", "upkeep", "entriesPerBatch", "shard")
_NOT_FOR_LOG = (
    "maxBytesPerFile",
    "maxRowsPerFile",
    "mergeSchema",
    "primaryKey",
    "vectorColumns",
)


def _check_log(values: Mapping[str, Any]) -> None:  # Any: see `Option.parse`
    """Refuse what does not go with writing the log, or only with that."""
    into_log = values.get("into") == "log"
    for name in _NOT_FOR_LOG if into_log else _FOR_LOG:
        if name in values:
            told = "does not go with into=log: leave it out" if into_log else "needs into=log"
            raise InvalidInputError(f"option {name} {told}")


_FOR_CHANGES = (
    "endingCursor",
    "endingTimestamp",
    "endingVersion",
    "maxEntriesPerTrigger",
    "maxRowsPerTrigger",
    "startingCursor",
    "startingTimestamp",
)
_NOT_FOR_CHANGES = (
    "filter",
    "fragmentsPerPartition",
    "searchColumn",
    "skipChangeCommits",
    "tag",
    "timestampAsOf",
    "versionAsOf",
)
_STARTS = ("startingVersion", "startingTimestamp", "startingCursor")
_ENDS = ("endingVersion", "endingTimestamp", "endingCursor")


def _check_changes(values: Mapping[str, Any], use: Use) -> None:  # Any: see `Option.parse`
    """Refuse what does not go with reading changes, or only with that."""
    if not values.get("readChangeFeed"):
        for name in (*_FOR_CHANGES, *(["startingVersion"] if use is Use.READ else [])):
            if name in values:
                raise InvalidInputError(
                    f"option {name} needs readChangeFeed=true"
                    + ("; without it, it is for readStream" if name == "startingVersion" else "")
                )
        if use is Use.SOURCE and values.get("freshness", "base") != "base":
            raise InvalidInputError(
                "a stream follows the log with readChangeFeed=true; without it, the base table"
            )
        return
    for name in _NOT_FOR_CHANGES:
        if name in values:
            raise InvalidInputError(f"option {name} does not go with readChangeFeed: leave it out")
    _check_one_place("begin", [name for name in _STARTS if name in values])
    _check_one_place("end", [name for name in _ENDS if name in values])
    if use is Use.READ and not any(name in values for name in _STARTS):
        raise InvalidInputError(
            "changes begin somewhere: give startingVersion, startingTimestamp or startingCursor"
        )
    if values.get("freshness") == "flushed":
        raise InvalidInputError("changes are read with freshness latest or base")


def _check_one_place(verb: str, given: Sequence[str]) -> None:
    if len(given) > 1:
        raise InvalidInputError(f"changes {verb} at one place: keep one of " + ", ".join(given))


def _uses(option: Option) -> str:
    return ", ".join(word for use, word in _WORDS.items() if use in option.use)


def options_page() -> str:
    """Return the lines of the reference page: every option, from the table above."""
    rows = [f"| `{o.name}` | {_uses(o)} | {o.help} |" for o in OPTIONS]
    storage = (
        f"| `{STORAGE_PREFIX}*` | {_uses(OPTIONS[0])} | The [storage options]"
        "(storage-options.md), each with this prefix: `storage.aws_region`. Give secrets as "
        "`env:NAME`. |"
    )
    return "\n".join(["| option | for | meaning |", "|---|---|---|", *rows, storage]) + "\n"
