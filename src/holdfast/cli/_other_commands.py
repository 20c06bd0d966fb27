"""The commands that tie tables, look at stores, serve, and help shells, as they are declared."""

from __future__ import annotations

from pathlib import Path

import click

from holdfast.cli._declare import (
    COMMIT_STORE,
    CONFIRM,
    OPTIONS,
    PLACES,
    Argument,
    Verb,
    flag,
    one_of,
    several,
    table,
    value,
)

_FILE = click.Path(path_type=Path)
_SIZE_OF = "of all requests together; default: 256m"

ADOPT = Verb(
    "adopt",
    "_table:adopt",
    "tie an existing Lance table to an arbiter",
    *table(),
    value("--accept", "N", "take foreign versions up to N as decided", type=int),
    CONFIRM,
    COMMIT_STORE,
)
RELEASE = Verb(
    "release", "_table:release", "give a plain Lance table back", *table(), CONFIRM, COMMIT_STORE
)
PIN = Verb(
    "pin",
    "_pin:run",
    "show what a table is tied to; let it be opened under a new address",
    *table(),
    *one_of("how", PLACES),
    CONFIRM,
    COMMIT_STORE,
    about="Show the arbiter that a table is tied to. With --alias, --moved or --copied, and "
    "--confirm, let a table be opened whose files are met under an address that its commit store "
    "does not know, and check that all files are here.",
)
COPY = Verb(
    "copy",
    "_copy:run",
    "copy a table to another bucket, endpoint or store, tie it there, and check it",
    *table(),
    value("--to", "URI", "where the copy goes", required=True),
    several(
        "--to-option",
        "KEY=VALUE",
        "a storage option of the copy's place; without any, those of -o",
    ),
    value(
        "--commit-store decider",
        "URL",
        "what decides for the copy, or env:NAME; by default the store of the original",
    ),
    flag(
        "--conditional-put",
        "let the copy's object store decide, whatever decides for the original",
    ),
    CONFIRM,
    about="Copy a table's files to another place, tie the copy to its own way of deciding, and "
    "check that nothing is missing. The original stays as it is. Stop writers first; a table that "
    "was written meanwhile is noticed. Cut off, give the command again.",
)
PROBE = Verb(
    "probe",
    "_probe:run",
    "find out whether a store enforces put-if-absent",
    *table(),
    about="Create objects under _holdfast/probe in several ways, look at what the store makes of "
    "it, and remove them. Takes some eighty requests.",
)
SERVE = Verb(
    "serve",
    "_serve:run",
    "let Lance clients commit, and anything send rows, over HTTP",
    Argument("root", "[ROOT]", "a folder or bucket prefix", required=False, type=click.Path()),
    OPTIONS,
    value(
        "--commit-store",
        "URL",
        "what decides the versions of tables that are created here; may be env:NAME",
    ),
    value("--bind", "HOST:PORT", "default: 127.0.0.1:8181", default="127.0.0.1:8181"),
    value("--root-path", "PATH", "the prefix that a proxy in front takes off", default=""),
    flag("--log-writer", "take rows for tables' logs: ?durable=log"),
    value("--advertise", "URL", "where clients reach this log writer"),
    value(
        "--log-lease",
        "TIME",
        "how long another server waits before it takes over a log; default: 15s",
        default="15s",
    ),
    value("--token-file", "FILE", "lines ROLE SHA256 NAME", type=_FILE),
    value("--tls-cert", "FILE", "serve https", type=_FILE),
    value("--tls-key", "FILE", "the certificate's key", type=_FILE),
    several(
        "--host-name",
        "NAME",
        "another name of this server; without tokens it answers to localhost only",
    ),
    flag("--insecure", "listen beyond this machine without tokens: everybody may read and write"),
    value("--max-body", "SIZE", "default: 64m", default="64m"),
    value("--max-buffered", "SIZE", _SIZE_OF, default="256m"),
    value("--max-answer", "SIZE", "default: 64m", default="64m"),
    value(
        "--max-waiting",
        "N",
        "requests of one kind that wait for a thread; default: 256",
        type=int,
        default=256,
    ),
    value("--upkeep", "TIME", "maintain every table so often: 30s, 1m, 1h"),
    several(
        "--set settings",
        "NAME=VALUE",
        "a setting of the upkeep's policy, as for `holdfast maintain`",
    ),
    flag("--confirm", "let upkeep's vacuum delete"),
    value(
        "--new-token",
        "ROLE",
        "only make a token: read, write or admin; prints it and its line for the file",
        type=click.Choice(("read", "write", "admin")),
    ),
    value("--name", "NAME", "the new token's name, for the log", default="unnamed"),
    about="Serve the tables below ROOT by Lance's REST namespace, with rows over HTTP, metrics "
    "and pages for people. Any number of servers may serve one root.",
)
SPARK_JAR = Verb(
    "spark-jar",
    "_spark_jar:run",
    "print the path of the jar for Spark's class path",
    about='The jar lets Spark know tables by name: spark-submit --jars "$(holdfast spark-jar)".',
)
COMPLETION = Verb(
    "completion",
    "_completion:run",
    "print the completion script of a shell",
    Argument("shell", "bash|zsh|fish", "the shell", type=click.Choice(("bash", "zsh", "fish"))),
    about='Print a script that completes commands, options and files. bash: eval "$(holdfast '
    'completion bash)"; zsh: the same with zsh; fish: holdfast completion fish | source.',
)
TIES = (ADOPT, RELEASE, PIN, COPY)
ALL_COMMANDS = (PROBE, SERVE, SPARK_JAR, COMPLETION)
