"""The commands on parts of tables and on commit stores, as they are declared."""

from __future__ import annotations

from holdfast.cli._declare import (
    COMMIT_STORE,
    CONFIRM,
    SHARD,
    URL_HELP,
    Argument,
    Noun,
    Verb,
    flag,
    one_of,
    several,
    table,
    value,
)

_TABLE = (*table(), COMMIT_STORE)
_SHARD = (*table(), SHARD, COMMIT_STORE)
_BUILD = (
    value("--tasks", "N", "build in N steps, resumable", type=int),
    value("--memory-mb", "MIB", "what a step may build with", type=int),
)
_INDEX = Argument("name", "NAME", "the index")
_AFTER = value("--after", "POSITION", "only later entries", type=int)
_URL = Argument("url", "URL", URL_HELP)

INDEX = Noun(
    "index",
    "build, list and search full-text indexes",
    Verb(
        "create",
        "_index:create",
        "index a text column",
        *_TABLE,
        Argument("column", "COLUMN", "a column of text"),
        value("--name", "NAME", "COLUMN_idx by default"),
        flag("--replace", "replace one built otherwise"),
        several(
            "-p --parameter",
            "KEY=VALUE",
            "how text becomes words, by Lance's name: with_position=true",
        ),
        *_BUILD,
    ),
    Verb("refresh", "_index:refresh", "index what was added since", *_TABLE, _INDEX, *_BUILD),
    Verb(
        "finalize",
        "_index:finalize",
        "bring a build to its end",
        *_TABLE,
        Argument("build", "BUILD", "the build's id, from `index ls`"),
    ),
    Verb("ls", "_index:ls", "list indexes and open builds", *_TABLE),
    Verb("show", "_index:show", "show one index", *_TABLE, _INDEX),
    Verb(
        "search",
        "_index:search",
        "search a text column",
        *_TABLE,
        Argument("column", "COLUMN", "where to look"),
        Argument("query", "QUERY", 'words with AND, OR, NOT, "phrases"'),
        value("-n --limit", "N", "how many rows", type=int, default=10),
        value("--columns", "A,B", "which columns; all by default"),
        value("--filter condition", "SQL", "a condition that rows must meet, too"),
    ),
)
SHARDS = Noun(
    "shard",
    "look at a table's shards",
    Verb("ls", "_shard:run_ls", "list the shards", *_TABLE),
    Verb("stats", "_shard:run_stats", "show what waits in the shards' logs and SSTables", *_TABLE),
    Verb("show", "_shard:run_show", "show one shard's state", *_SHARD),
    Verb(
        "repair",
        "_shard:run_repair",
        "replace generations that cannot be read",
        *_SHARD,
        CONFIRM,
        about="Find flushed generations with rows that nobody can read, or with lost files, and "
        "put SSTables of their other rows in their places. Their files are kept. Says what it "
        "would do until --confirm is given.",
    ),
)
WAL = Noun(
    "wal",
    "look into a shard's log",
    Verb("ls", "_wal:run_ls", "list the entries", *_SHARD, _AFTER),
    Verb(
        "show",
        "_wal:run_show",
        "show one entry with its rows",
        *_SHARD,
        Argument("position", "POSITION", "where it stands", type=int),
    ),
    Verb(
        "tail",
        "_wal:run_tail",
        "print entries as they are written",
        *_SHARD,
        _AFTER,
        value("--timeout", "SECONDS", "end after so long without an entry", type=float),
        about="Follow the log: one line per entry, with --json one JSON object per line. Never "
        "fences.",
    ),
    Verb(
        "repair",
        "_wal:run_repair",
        "close holes in a damaged log",
        *_SHARD,
        CONFIRM,
        about="Find missing and damaged entries and put fences in their places, and of entries "
        "with values that nobody can read the other rows, after locking all writers out. Says "
        "what it would do until --confirm is given.",
    ),
    Verb(
        "reset",
        "_wal:run_reset",
        "say what becomes of a log after the table was overwritten past Holdfast",
        *_TABLE,
        *one_of(
            "waiting",
            {
                "keep": "the rows that wait go over what the table holds now",
                "discard": "the rows that wait are given up",
            },
            required=True,
        ),
        CONFIRM,
        about="The way out of LogLostError: lock all writers out and say anew how far the log is "
        "merged. Says what it would do until --confirm is given.",
    ),
)
STORE = Noun(
    "store",
    "commit stores: set one up, check one, change a table's",
    Verb(
        "init",
        "_store:init",
        "create the schema and the store's identity; safe to repeat",
        _URL,
    ),
    Verb(
        "check",
        "_store:check",
        "tell whether the store is set up and fit to decide: settings, rights, times, races",
        _URL,
    ),
    Verb(
        "move",
        "_store:move",
        "let another commit store decide for a table; its files stay where they are",
        *table(),
        value("--to new", "URL", "the other store, or env:NAME", required=True),
        value(
            "--from old",
            "URL",
            "another address of the store that it leaves, with credentials, say; or env:NAME",
        ),
        CONFIRM,
    ),
)
ALL_COMMANDS = (INDEX, SHARDS, WAL)
