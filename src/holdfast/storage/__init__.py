"""Object stores: a URL and options in, one small port out."""

from holdfast.storage._handle import Handle
from holdfast.storage._local import LocalStore
from holdfast.storage._memory import MemoryStore
from holdfast.storage._open import backend_of, open_store
from holdfast.storage._port import ObjectInfo, ObjectStore
from holdfast.storage._remote import RemoteStore

__all__ = [
    "Handle",
    "LocalStore",
    "MemoryStore",
    "ObjectInfo",
    "ObjectStore",
    "RemoteStore",
    "backend_of",
    "open_store",
]
