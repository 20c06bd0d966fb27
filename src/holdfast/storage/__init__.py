"""Object stores: a URL and options in, one small port out.

`ObjectStore` is the interface for a store of your own; `register_object_store` makes it known
by its URLs' scheme, and `holdfast.testing.ObjectStoreSuite` proves it.
"""

from holdfast.formats import check_path
from holdfast.storage._handle import Handle
from holdfast.storage._local import LocalStore, sync_file
from holdfast.storage._memory import MemoryStore
from holdfast.storage._open import backend_of, open_store
from holdfast.storage._port import (
    FullDiskError,
    NotDurableError,
    ObjectInfo,
    ObjectStore,
    SupportsDistrust,
    SupportsFileIds,
    SupportsFirstNames,
    SupportsFirstObjects,
    SupportsFolders,
    SupportsLanceAddress,
    SupportsLocalFiles,
    SupportsReadAhead,
    SupportsSync,
)
from holdfast.storage._registry import OpenObjectStore, register_object_store
from holdfast.storage._remote import RemoteStore

__all__ = [
    "FullDiskError",
    "Handle",
    "LocalStore",
    "MemoryStore",
    "NotDurableError",
    "ObjectInfo",
    "ObjectStore",
    "OpenObjectStore",
    "RemoteStore",
    "SupportsDistrust",
    "SupportsFileIds",
    "SupportsFirstNames",
    "SupportsFirstObjects",
    "SupportsFolders",
    "SupportsLanceAddress",
    "SupportsLocalFiles",
    "SupportsReadAhead",
    "SupportsSync",
    "backend_of",
    "check_path",
    "open_store",
    "register_object_store",
    "sync_file",
]
