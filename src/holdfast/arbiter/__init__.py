"""Decide a name once: conditional put, commit stores, the probe."""

from holdfast.arbiter._commit_store import CommitStore, Entry, Key, SupportsSetUp
from holdfast.arbiter._conditional import ConditionalPut
from holdfast.arbiter._decision import Arbiter, Decision, Lost, RetryPolicy, Won
from holdfast.arbiter._recorded import RecordedDecisions
from holdfast.arbiter._verdict import Verdict

__all__ = [
    "Arbiter",
    "CommitStore",
    "ConditionalPut",
    "Decision",
    "Entry",
    "Key",
    "Lost",
    "RecordedDecisions",
    "RetryPolicy",
    "SupportsSetUp",
    "Verdict",
    "Won",
]
