"""Decide a name once: conditional put, commit stores, the probe.

    arbiter = create_arbiter("s3://bucket/table", commit_store="postgresql://db/holdfast")
    match arbiter.decide(name, body, token):
        case Won(): ...
        case Lost(body=theirs): ...

`CommitStore` is the interface for a database of your own; `register_commit_store` makes it
known, and `holdfast.testing.CommitStoreSuite` proves it.
"""

from holdfast._ids import new_token
from holdfast.arbiter._commit_store import (
    MAX_SERIES_CHARS,
    MAX_VALUE_BYTES,
    CommitStore,
    Entry,
    Key,
    SupportsSetUp,
)
from holdfast.arbiter._conditional import (
    ConditionalPut,
)
from holdfast.arbiter._decision import (
    Arbiter,
    Decision,
    Lost,
    RetryPolicy,
    Won,
)
from holdfast.arbiter._open import (
    EMBEDDED,
    create_arbiter,
    open_arbiter,
    repin,
)
from holdfast.arbiter._pinning import (
    confirm_pin,
    pin_to_commit_store,
    pin_to_condition,
    read_pin,
)
from holdfast.arbiter._probe import (
    ProbeReport,
    probe_clients,
)
from holdfast.arbiter._recorded import (
    RecordedDecisions,
)
from holdfast.arbiter._verdict import (
    Verdict,
)
from holdfast.arbiter._verdicts import (
    forget,
    probe,
    remember,
    verdict_of,
)
from holdfast.arbiter.stores._registry import (
    connect_commit_store,
    known_schemes,
    redacted,
    register_commit_store,
)
from holdfast.formats import Name

__all__ = [
    "EMBEDDED",
    "MAX_SERIES_CHARS",
    "MAX_VALUE_BYTES",
    "Arbiter",
    "CommitStore",
    "ConditionalPut",
    "Decision",
    "Entry",
    "Key",
    "Lost",
    "Name",
    "ProbeReport",
    "RecordedDecisions",
    "RetryPolicy",
    "SupportsSetUp",
    "Verdict",
    "Won",
    "confirm_pin",
    "connect_commit_store",
    "create_arbiter",
    "forget",
    "known_schemes",
    "new_token",
    "open_arbiter",
    "pin_to_commit_store",
    "pin_to_condition",
    "probe",
    "probe_clients",
    "read_pin",
    "redacted",
    "register_commit_store",
    "remember",
    "repin",
    "verdict_of",
]
