"""Holdfast: an acknowledged write is in the table; retried, it is there once.

    report = holdfast.probe("s3://bucket/table", {"aws_region": "eu-central-1"})
    arbiter = holdfast.create_arbiter("s3://bucket/table", commit_store="postgresql://db/lake")

Errors are in `holdfast.errors`, commit stores in `holdfast.arbiter`, what happens can be
watched through `holdfast.events`, and the tools that prove all this are in
`holdfast.testing`.
"""

from holdfast._version import __version__
from holdfast.arbiter import (
    Lost,
    Name,
    ProbeReport,
    Verdict,
    Won,
    create_arbiter,
    new_token,
    open_arbiter,
    probe,
)
from holdfast.errors import HoldfastError
from holdfast.options import StorageOptions

__all__ = [
    "HoldfastError",
    "Lost",
    "Name",
    "ProbeReport",
    "StorageOptions",
    "Verdict",
    "Won",
    "__version__",
    "create_arbiter",
    "new_token",
    "open_arbiter",
    "probe",
]
