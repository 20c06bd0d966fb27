"""The commands on whole tables, as they are declared."""

from __future__ import annotations

import click

from holdfast.cli._declare import (
    ALL,
    COMMIT_STORE,
    CONFIRM,
    PLACES,
    Argument,
    Verb,
    flag,
    one_of,
    several,
    table,
    value,
)

# Known to modules that take a second to load; a test compares.
TYPES = (
    *(f"int{bits}" for bits in (8, 16, 32, 64)),
    *(f"uint{bits}" for bits in (8, 16, 32, 64)),
    *("float32", "float64", "bool", "string", "large_string", "binary", "large_binary"),
    *("date", "timestamp", "vector[N]"),
)
LEFTOVERS = (
    *("versions", "data", "deletions", "transactions", "staged", "manifests", "temporary"),
    *("probes", "log", "sstables", "indexes", "branches", "txns"),
)
SETTINGS = (
    *("log_bytes", "log_age", "generations", "generation_bytes", "generation_age", "idle"),
    *("small_fragments", "small_rows", "index_rows", "grace", "keep_versions_for"),
)
FORMATS = ("arrow", "csv", "jsonl", "parquet")

CREATE = Verb(
    "create",
    "_create:create",
    "create an empty table",
    *table(),
    Argument(
        "columns",
        "COLUMN:TYPE...",
        f"a column; {', '.join(TYPES)}; with ! behind the type it is never null",
        nargs=-1,
        required=True,
    ),
    value("--key", "COLUMN[,COLUMN]", "the columns that identify a row"),
    value("--txn", "ID", "makes a repeat harmless"),
    COMMIT_STORE,
    about="Create an empty table and tie it to its way of deciding, for good.",
)
TABLES = Verb("tables", "_create:tables", "list the tables below a root", *table("ROOT"))
INGEST = Verb(
    "ingest",
    "_ingest:run",
    "write rows from files into a table's shards",
    *table(),
    Argument(
        "files",
        "FILE...",
        "Arrow, Parquet, CSV or JSON lines; - is stdin",
        nargs=-1,
        required=True,
        type=click.Path(),
    ),
    value(
        "--format kind",
        "|".join(FORMATS),
        "what the files are; by default their names tell; needed for -",
        type=click.Choice(FORMATS),
    ),
    value(
        "--shard",
        "SHARD",
        "unsharded, bucket-N or a shard id; as the table divides its rows by default",
    ),
    value("--batch-rows", "N", "rows in one put, 5000 by default", type=int),
    value(
        "--txn",
        "ID",
        "a name for these very rows: run again under it, what is in the log is not written "
        "a second time",
    ),
    several(
        "--null",
        "WORD",
        "in CSV, a word without quotes that is null, such as NA. An empty "
        "field without quotes is null always",
    ),
    flag("--no-flush", "leave the rows in the log; flush nothing"),
    COMMIT_STORE,
)
STATUS = Verb(
    "status",
    "_status:run",
    "show how a table is doing",
    *table(),
    COMMIT_STORE,
    flag("--check", "exit code 1 if something is foreign, regressed, missing, stuck or overdue"),
    ALL,
    value(
        "--watch",
        "[TIME]",
        "show it again and again until Ctrl-C, every 2s or as given",
        is_flag=False,
        flag_value="2s",
    ),
    about="Show how a table is doing: versions, shards, indexes, what waits for upkeep and what "
    "needs a person. Reads only.",
)
HISTORY = Verb(
    "history",
    "_table:history",
    "show a table's versions, newest first",
    *table(),
    value("-n --limit", "N", "how many versions, 20 by default", type=int, default=20),
    COMMIT_STORE,
)
DOCTOR = Verb(
    "doctor",
    "_upkeep:run_doctor",
    "find what is wrong with a table, and appends that were lost",
    *table(),
    COMMIT_STORE,
    ALL,
    about="Examine a table, Holdfast's or a plain Lance table; changes nothing. Exit code 0 when "
    "there is nothing but notes, 1 when somebody should look.",
)
REPAIR = Verb(
    "repair",
    "_repair:run",
    "put right what is damaged: pin, address, commit store, objects, records, logs",
    *table(),
    COMMIT_STORE,
    *one_of("place", PLACES),
    value(
        "--new-commit-store",
        "URL",
        "the table's commit store is lost for good: this one decides from now on",
    ),
    flag("--conditional-put", "for a damaged pin: this table decides by its object store"),
    CONFIRM,
    about="Find what can be put right of a table, and say what it would do until --confirm is "
    "given. Stop all writers first. Exit code 0 when nothing is left to do, 1 when something is.",
)
RESCUE = Verb(
    "rescue",
    "_upkeep:run_rescue",
    "bring back appends that stock writers lost",
    *table(),
    COMMIT_STORE,
    several("--id ids", "UUID", "a candidate that doctor named"),
    flag("--all everything", "all candidates that nothing speaks against"),
    CONFIRM,
    about="Commit lost appends again, each exactly once: those of --id, or --all. Says what it "
    "would do until --confirm is given.",
)
MAINTAIN = Verb(
    "maintain",
    "_maintain:run",
    "flush, merge, compact, refresh indexes; with --confirm, vacuum",
    *table(),
    several(
        "--set settings",
        "NAME=VALUE",
        "a setting of the policy, such as generations=2 or log_age=10m: " + ", ".join(SETTINGS),
    ),
    flag("--dry-run", "only say what would be done"),
    flag("--confirm", "let vacuum delete"),
    value(
        "--every",
        "TIME",
        "go on: again so long after each run began, such as 30s or 5m, until Ctrl-C",
    ),
    ALL,
    COMMIT_STORE,
    about="Do what a table needs now. Safe anywhere, at any time, in several places at the same "
    "time. Exit code 1 when a step failed; steps that wait are done by the next run.",
)
VACUUM = Verb(
    "vacuum",
    "_vacuum:run",
    "show what nobody needs in a table; with --confirm, delete it",
    *table(),
    several("--what", "KIND", f"only leftovers of this kind: {', '.join(LEFTOVERS)}"),
    value(
        "--older-than",
        "TIME",
        "how old a leftover must be: 7d, 12h, 90m; 7d by default, 1h at least",
        default="7d",
    ),
    value(
        "--keep-versions-for",
        "TIME",
        "let go of versions, too: those that a newer one replaced longer ago than this; 7d "
        "at least; tagged ones stay. Without it all versions stay",
    ),
    CONFIRM,
    COMMIT_STORE,
)
ALL_COMMANDS = (CREATE, TABLES, INGEST, STATUS, HISTORY, DOCTOR, REPAIR, RESCUE, MAINTAIN, VACUUM)
