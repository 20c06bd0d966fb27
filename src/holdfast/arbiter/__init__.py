"""Decide a name once: conditional put, commit stores, the probe.

    arbiter = create_arbiter("s3://bucket/table", commit_store="postgresql://db/holdfast")
    match arbiter.decide(name, body, token):
        case Won(): ...
        case Lost(body=theirs): ...

`CommitStore` is the interface for a database of your own; `register_commit_store` makes it
known, and `holdfast.testing.CommitStoreSuite` proves it.
"""

from holdfast._ids import new_token
from holdfast.arbiter._accept import accept_shards
from holdfast.arbiter._addresses import address_of
from holdfast.arbiter._commit_store import (
    MAX_SERIES_CHARS,
    MAX_VALUE_BYTES,
    CommitStore,
    Key,
    Replacement,
    StoredEntry,
    SupportsReplaceMany,
    SupportsSetUp,
    scope_of,
)
from holdfast.arbiter._conditional import (
    ConditionalPut,
)
from holdfast.arbiter._decision import (
    Arbiter,
    Decision,
    EndsTurn,
    Lost,
    RetryPolicy,
    SupportsChains,
    SupportsRaces,
    SupportsRetirement,
    SupportsSeries,
    SupportsTurns,
    SupportsVerdict,
    Won,
)
from holdfast.arbiter._decision import Attempts as Attempts
from holdfast.arbiter._lost_store import find_pin as find_pin
from holdfast.arbiter._lost_store import make_pin_anew as make_pin_anew
from holdfast.arbiter._lost_store import put_pin_back as put_pin_back
from holdfast.arbiter._lost_store import refuse_living as refuse_living
from holdfast.arbiter._lost_store import replace_commit_store as replace_commit_store
from holdfast.arbiter._move import (
    move_commit_store,
)
from holdfast.arbiter._open import (
    EMBEDDED,
    create_arbiter,
    open_arbiter,
    remember_store,
)
from holdfast.arbiter._open import URL_VARIABLE as URL_VARIABLE
from holdfast.arbiter._open import connect_pinned as connect_pinned
from holdfast.arbiter._open import connect_store as connect_store
from holdfast.arbiter._open import pinned_address as pinned_address
from holdfast.arbiter._parallel import choose_together as choose_together
from holdfast.arbiter._pinning import check_identity as check_identity
from holdfast.arbiter._pinning import (
    confirm_pin,
    pin_to_commit_store,
    pin_to_condition,
)
from holdfast.arbiter._place import read_pin
from holdfast.arbiter._probe import (
    ProbeReport,
    probe_clients,
)
from holdfast.arbiter._rebuild import Forgotten as Forgotten
from holdfast.arbiter._rebuild import Wrong as Wrong
from holdfast.arbiter._rebuild import compare as compare
from holdfast.arbiter._rebuild import put_back as put_back
from holdfast.arbiter._rebuild import rebuild_records as rebuild_records
from holdfast.arbiter._recorded import (
    MOST_UNFINISHED,
    RecordedDecisions,
    for_reading,
)
from holdfast.arbiter._repin import (
    Repin,
    repin,
)
from holdfast.arbiter._repin import check_repin as check_repin
from holdfast.arbiter._stock_rows import SCHEME as STOCK_DYNAMODB
from holdfast.arbiter._stock_rows import StockRows
from holdfast.arbiter._store_check import (
    StoreReport,
    check_store,
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
from holdfast.arbiter.stores._base import (
    StoreUrl,
    check_changes,
    check_key,
    check_limit,
    check_number,
    check_scope,
    check_series,
    check_value,
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
    "MOST_UNFINISHED",
    "STOCK_DYNAMODB",
    "Arbiter",
    "CommitStore",
    "ConditionalPut",
    "Decision",
    "EndsTurn",
    "Key",
    "Lost",
    "Name",
    "ProbeReport",
    "RecordedDecisions",
    "Repin",
    "Replacement",
    "RetryPolicy",
    "StockRows",
    "StoreReport",
    "StoreUrl",
    "StoredEntry",
    "SupportsChains",
    "SupportsRaces",
    "SupportsReplaceMany",
    "SupportsRetirement",
    "SupportsSeries",
    "SupportsSetUp",
    "SupportsTurns",
    "SupportsVerdict",
    "Verdict",
    "Won",
    "accept_shards",
    "address_of",
    "check_changes",
    "check_key",
    "check_limit",
    "check_number",
    "check_scope",
    "check_series",
    "check_store",
    "check_value",
    "confirm_pin",
    "connect_commit_store",
    "create_arbiter",
    "for_reading",
    "forget",
    "known_schemes",
    "move_commit_store",
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
    "remember_store",
    "repin",
    "scope_of",
    "verdict_of",
]
