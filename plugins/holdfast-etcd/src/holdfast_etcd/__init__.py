"""etcd v3 as a commit store for Holdfast."""

from holdfast_etcd._store import EtcdCommitStore, connect

__all__ = ["EtcdCommitStore", "connect"]
