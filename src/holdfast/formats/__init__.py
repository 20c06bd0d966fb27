"""Bytes and names only, no I/O: how everything on storage is called and laid out."""

from typing import TYPE_CHECKING

from holdfast._lazy import load_names

if TYPE_CHECKING:
    from holdfast.formats._append import AppendBase, AppendTransaction, Shape
    from holdfast.formats._bloom import bloom_filter, hash_rows, may_contain
    from holdfast.formats._content import (
        Content,
        check_log_types,
        check_types,
        check_values,
        parts_of,
        rebuild_type,
        widen_type,
    )
    from holdfast.formats._entry import (
        MAX_ENTRY_BYTES,
        MAX_FENCE_BYTES,
        MIN_ENTRY_BYTES,
        Entry,
        EntryDraft,
        decode_entry,
        draft_entry,
        draft_fence,
        log_schema,
    )
    from holdfast.formats._fields import (
        Field,
        arrow_field,
        counterpart,
        fit_array,
        fit_column,
        lance_fields,
    )
    from holdfast.formats._index import (
        BUILDS_FOLDER,
        INDICES_FOLDER,
        MARKER_FILE,
        PART_FILES,
        attempt_of,
        attempt_path,
        attempts_folder,
        build_folder,
        build_id_of,
        build_id_of_record,
        build_record_path,
        check_index_id,
        index_folder,
        index_id,
        is_plan_path,
        is_task_path,
        marker_name,
        part_file,
        part_path,
        plan_name,
        staging_folder,
        task_name,
    )
    from holdfast.formats._index_records import (
        BuildRecord,
        Details,
        Part,
        PartFile,
        Plan,
        TaskManifest,
        decode_build,
        decode_plan,
        decode_task,
        encode_index_record,
    )
    from holdfast.formats._key_index import PAGE_ROWS, key_index_data, key_index_lookup
    from holdfast.formats._keys import (
        add_key,
        check_key_types,
        hashed_bytes,
        key_columns,
        key_hashes,
        key_values,
        mark_key,
        newest_per_key,
    )
    from holdfast.formats._lance_messages import CHECKED_RELEASE, SUPPORTED_PYLANCE, is_supported
    from holdfast.formats._ledger import (
        RECENT_KEPT,
        applied_here,
        carried_ledger,
        check_gaps,
        creation_mark,
        digest_txn,
        is_created_by,
        is_in_config,
        name_older,
        numbers_of,
        older_files,
        record_txns,
    )
    from holdfast.formats._log_entry import LogEntry, put_log_entry, read_log_entry
    from holdfast.formats._log_txns import (
        TXNS_TAG,
        decode_memory,
        encode_memory,
        log_txns_folder,
        memory_path,
        memory_position,
        merge_memory,
        txns_of,
        txns_tag,
    )
    from holdfast.formats._manifest import (
        TOKEN_KEY,
        Column,
        Head,
        base_roots,
        carries_mark,
        decision_mark,
        edit_config,
        index_files,
        is_made_here,
        is_of_table,
        read_config,
        shown_elsewhere,
        shown_files,
    )
    from holdfast.formats._mem_wal_details import (
        DETAILS_TYPE,
        LOG_ID_KEY,
        MEM_WAL_INDEX,
        MemWalDetails,
        ShardingField,
        ShardingSpec,
        encode_details,
        read_details,
    )
    from holdfast.formats._mem_wal_marker import MergedAlreadyError, mark_merged
    from holdfast.formats._names import (
        BOUNDARY_FOLDER,
        EMBEDDED_PATH,
        LOG_OWNER_PATH,
        NAMESPACE_MARKER,
        PIN_PATH,
        PROBE_FOLDER,
        QUEUE_PATH,
        STAGED_FOLDER,
        TABLE_SUFFIX,
        TEMPORARY_FOLDER,
        UPKEEP_LEASE_PATH,
        VERSIONS_SERIES,
        Name,
        belongs_to_table,
        check_name,
        check_path,
        check_shard_id,
        is_left_by_lance,
        is_path,
        is_staged_manifest,
        probe_path,
        set_aside_path,
        staged_path,
        temporary_path,
        version_name,
        version_of,
        versions_boundary_of,
        versions_boundary_path,
    )
    from holdfast.formats._pin import ArbiterKind, Pin, decode_pin, encode_pin
    from holdfast.formats._ragged import ragged_bytes
    from holdfast.formats._ranges import Ranges
    from holdfast.formats._record import (
        Record,
        RecordState,
        decode_record,
        encode_record,
        make_record,
        pack_body,
    )
    from holdfast.formats._salvage import find_good, good_rows, only_rows, readable_rows
    from holdfast.formats._shard_manifest import (
        ShardManifest,
        SsTable,
        decode_shard_manifest,
        encode_shard_manifest,
    )
    from holdfast.formats._sharding import (
        MAX_BUCKETS,
        bucket,
        scalar_bytes,
        shard_id_of_bucket,
        shard_id_of_value,
        shard_id_unsharded,
    )
    from holdfast.formats._slim import Reference
    from holdfast.formats._snapshot import (
        SNAPSHOT_PINS_FOLDER,
        ShardRecord,
        SnapshotRecord,
        decode_snapshot,
        encode_snapshot,
        snapshot_pin_of,
        snapshot_pin_path,
    )
    from holdfast.formats._sql import check_names, quote_name, whole_sql, write_literals
    from holdfast.formats._sstable import (
        BLOOM_FILE,
        KEY_INDEX_DATA,
        KEY_INDEX_LOOKUP,
        SSTABLE_MANIFEST,
        TOMBSTONE,
        column_ids,
        generation_of,
        renumber_columns,
        sstable_folder,
        sstable_path,
        text_as_bytes,
    )
    from holdfast.formats._transaction import (
        DATA_FOLDER,
        DELETIONS_FOLDER,
        TRANSACTIONS_FOLDER,
        DataFileEntry,
        FieldEntry,
        FragmentEntry,
        FragmentState,
        Transaction,
        VersionFacts,
        data_path,
        decode_transaction,
        is_transaction_path,
        transaction_path,
    )
    from holdfast.formats._txn_file import (
        DIGEST_BYTES,
        TXNS_FOLDER,
        Directory,
        TxnFile,
        decode_file,
        encode_file,
        files_to_merge,
        split,
    )
    from holdfast.formats._vacuum_mark import (
        NO_MARK,
        VACUUM_FOLDER,
        VacuumMark,
        decode_list,
        encode_list,
        number_of_list,
        read_mark,
    )
    from holdfast.formats._version_files import HINT_PATH, VERSIONS_FOLDER, hint_of, newest_version
    from holdfast.formats._wal_names import (
        MEM_WAL_FOLDER,
        BoundaryKind,
        boundary_folder,
        boundary_of,
        boundary_path,
        boundary_stamp_path,
        entry_name,
        log_folder,
        number_of,
        position_of,
        quarantine_folder,
        quarantine_path,
        shard_folder,
        shard_manifest_folder,
        shard_manifest_name,
        shard_of,
        shard_version_of,
        version_hint_path,
    )

__all__ = [
    "BLOOM_FILE",
    "BOUNDARY_FOLDER",
    "BUILDS_FOLDER",
    "CHECKED_RELEASE",
    "DATA_FOLDER",
    "DELETIONS_FOLDER",
    "DETAILS_TYPE",
    "DIGEST_BYTES",
    "EMBEDDED_PATH",
    "HINT_PATH",
    "INDICES_FOLDER",
    "KEY_INDEX_DATA",
    "KEY_INDEX_LOOKUP",
    "LOG_ID_KEY",
    "LOG_OWNER_PATH",
    "MARKER_FILE",
    "MAX_BUCKETS",
    "MAX_ENTRY_BYTES",
    "MAX_FENCE_BYTES",
    "MEM_WAL_FOLDER",
    "MEM_WAL_INDEX",
    "MIN_ENTRY_BYTES",
    "NAMESPACE_MARKER",
    "NO_MARK",
    "PAGE_ROWS",
    "PART_FILES",
    "PIN_PATH",
    "PROBE_FOLDER",
    "QUEUE_PATH",
    "RECENT_KEPT",
    "SNAPSHOT_PINS_FOLDER",
    "SSTABLE_MANIFEST",
    "STAGED_FOLDER",
    "SUPPORTED_PYLANCE",
    "TABLE_SUFFIX",
    "TEMPORARY_FOLDER",
    "TOKEN_KEY",
    "TOMBSTONE",
    "TRANSACTIONS_FOLDER",
    "TXNS_FOLDER",
    "TXNS_TAG",
    "UPKEEP_LEASE_PATH",
    "VACUUM_FOLDER",
    "VERSIONS_FOLDER",
    "VERSIONS_SERIES",
    "AppendBase",
    "AppendTransaction",
    "ArbiterKind",
    "BoundaryKind",
    "BuildRecord",
    "Column",
    "Content",
    "DataFileEntry",
    "Details",
    "Directory",
    "Entry",
    "EntryDraft",
    "Field",
    "FieldEntry",
    "FragmentEntry",
    "FragmentState",
    "Head",
    "LogEntry",
    "MemWalDetails",
    "MergedAlreadyError",
    "Name",
    "Part",
    "PartFile",
    "Pin",
    "Plan",
    "Ranges",
    "Record",
    "RecordState",
    "Reference",
    "Shape",
    "ShardManifest",
    "ShardRecord",
    "ShardingField",
    "ShardingSpec",
    "SnapshotRecord",
    "SsTable",
    "TaskManifest",
    "Transaction",
    "TxnFile",
    "VacuumMark",
    "VersionFacts",
    "add_key",
    "applied_here",
    "arrow_field",
    "attempt_of",
    "attempt_path",
    "attempts_folder",
    "base_roots",
    "belongs_to_table",
    "bloom_filter",
    "boundary_folder",
    "boundary_of",
    "boundary_path",
    "boundary_stamp_path",
    "bucket",
    "build_folder",
    "build_id_of",
    "build_id_of_record",
    "build_record_path",
    "carried_ledger",
    "carries_mark",
    "check_gaps",
    "check_index_id",
    "check_key_types",
    "check_log_types",
    "check_name",
    "check_names",
    "check_path",
    "check_shard_id",
    "check_types",
    "check_values",
    "column_ids",
    "counterpart",
    "creation_mark",
    "data_path",
    "decision_mark",
    "decode_build",
    "decode_entry",
    "decode_file",
    "decode_list",
    "decode_memory",
    "decode_pin",
    "decode_plan",
    "decode_record",
    "decode_shard_manifest",
    "decode_snapshot",
    "decode_task",
    "decode_transaction",
    "digest_txn",
    "draft_entry",
    "draft_fence",
    "edit_config",
    "encode_details",
    "encode_file",
    "encode_index_record",
    "encode_list",
    "encode_memory",
    "encode_pin",
    "encode_record",
    "encode_shard_manifest",
    "encode_snapshot",
    "entry_name",
    "files_to_merge",
    "find_good",
    "fit_array",
    "fit_column",
    "generation_of",
    "good_rows",
    "hash_rows",
    "hashed_bytes",
    "hint_of",
    "index_files",
    "index_folder",
    "index_id",
    "is_created_by",
    "is_in_config",
    "is_left_by_lance",
    "is_made_here",
    "is_of_table",
    "is_path",
    "is_plan_path",
    "is_staged_manifest",
    "is_supported",
    "is_task_path",
    "is_transaction_path",
    "key_columns",
    "key_hashes",
    "key_index_data",
    "key_index_lookup",
    "key_values",
    "lance_fields",
    "log_folder",
    "log_schema",
    "log_txns_folder",
    "make_record",
    "mark_key",
    "mark_merged",
    "marker_name",
    "may_contain",
    "memory_path",
    "memory_position",
    "merge_memory",
    "name_older",
    "newest_per_key",
    "newest_version",
    "number_of",
    "number_of_list",
    "numbers_of",
    "older_files",
    "only_rows",
    "pack_body",
    "part_file",
    "part_path",
    "parts_of",
    "plan_name",
    "position_of",
    "probe_path",
    "put_log_entry",
    "quarantine_folder",
    "quarantine_path",
    "quote_name",
    "ragged_bytes",
    "read_config",
    "read_details",
    "read_log_entry",
    "read_mark",
    "readable_rows",
    "rebuild_type",
    "record_txns",
    "renumber_columns",
    "scalar_bytes",
    "set_aside_path",
    "shard_folder",
    "shard_id_of_bucket",
    "shard_id_of_value",
    "shard_id_unsharded",
    "shard_manifest_folder",
    "shard_manifest_name",
    "shard_of",
    "shard_version_of",
    "shown_elsewhere",
    "shown_files",
    "snapshot_pin_of",
    "snapshot_pin_path",
    "split",
    "sstable_folder",
    "sstable_path",
    "staged_path",
    "staging_folder",
    "task_name",
    "temporary_path",
    "text_as_bytes",
    "transaction_path",
    "txns_of",
    "txns_tag",
    "version_hint_path",
    "version_name",
    "version_of",
    "versions_boundary_of",
    "versions_boundary_path",
    "whole_sql",
    "widen_type",
    "write_literals",
]

__getattr__ = load_names(
    __name__,
    {
        "_append": "AppendTransaction AppendBase Shape",
        "_bloom": "bloom_filter hash_rows may_contain",
        "_content": (
            "Content check_log_types check_types check_values parts_of rebuild_type widen_type"
        ),
        "_entry": (
            "MAX_ENTRY_BYTES MAX_FENCE_BYTES MIN_ENTRY_BYTES Entry EntryDraft decode_entry "
            "draft_entry draft_fence log_schema"
        ),
        "_fields": "Field arrow_field counterpart fit_array fit_column lance_fields",
        "_index": (
            "BUILDS_FOLDER INDICES_FOLDER MARKER_FILE PART_FILES attempt_of attempt_path "
            "attempts_folder build_folder build_id_of build_id_of_record build_record_path "
            "check_index_id index_folder index_id is_plan_path is_task_path marker_name "
            "part_file part_path plan_name staging_folder task_name"
        ),
        "_index_records": (
            "BuildRecord Details Part PartFile Plan TaskManifest decode_build decode_plan "
            "decode_task encode_index_record"
        ),
        "_key_index": "PAGE_ROWS key_index_data key_index_lookup",
        "_keys": (
            "add_key check_key_types hashed_bytes key_columns key_hashes key_values mark_key "
            "newest_per_key"
        ),
        "_lance_messages": "CHECKED_RELEASE SUPPORTED_PYLANCE is_supported",
        "_ledger": (
            "RECENT_KEPT applied_here carried_ledger check_gaps creation_mark digest_txn "
            "is_created_by is_in_config name_older numbers_of older_files record_txns"
        ),
        "_log_entry": "LogEntry put_log_entry read_log_entry",
        "_log_txns": (
            "TXNS_TAG decode_memory encode_memory log_txns_folder memory_path memory_position "
            "merge_memory txns_of txns_tag"
        ),
        "_manifest": (
            "TOKEN_KEY Column Head base_roots carries_mark decision_mark edit_config "
            "index_files is_made_here is_of_table read_config shown_elsewhere shown_files"
        ),
        "_mem_wal_details": (
            "DETAILS_TYPE LOG_ID_KEY MEM_WAL_INDEX MemWalDetails ShardingField ShardingSpec "
            "encode_details read_details"
        ),
        "_mem_wal_marker": "MergedAlreadyError mark_merged",
        "_names": (
            "BOUNDARY_FOLDER EMBEDDED_PATH LOG_OWNER_PATH NAMESPACE_MARKER PIN_PATH "
            "PROBE_FOLDER QUEUE_PATH STAGED_FOLDER TABLE_SUFFIX TEMPORARY_FOLDER "
            "UPKEEP_LEASE_PATH VERSIONS_SERIES Name belongs_to_table check_name check_path "
            "check_shard_id is_left_by_lance is_path is_staged_manifest probe_path "
            "set_aside_path staged_path temporary_path version_name version_of "
            "versions_boundary_of versions_boundary_path"
        ),
        "_pin": "ArbiterKind Pin decode_pin encode_pin",
        "_ragged": "ragged_bytes",
        "_ranges": "Ranges",
        "_record": "Record RecordState decode_record encode_record make_record pack_body",
        "_salvage": "find_good good_rows only_rows readable_rows",
        "_shard_manifest": "ShardManifest SsTable decode_shard_manifest encode_shard_manifest",
        "_sharding": (
            "MAX_BUCKETS bucket scalar_bytes shard_id_of_bucket shard_id_of_value "
            "shard_id_unsharded"
        ),
        "_slim": "Reference",
        "_snapshot": (
            "SNAPSHOT_PINS_FOLDER ShardRecord SnapshotRecord decode_snapshot encode_snapshot "
            "snapshot_pin_of snapshot_pin_path"
        ),
        "_sql": "check_names write_literals quote_name whole_sql",
        "_sstable": (
            "BLOOM_FILE KEY_INDEX_DATA KEY_INDEX_LOOKUP SSTABLE_MANIFEST TOMBSTONE column_ids "
            "generation_of renumber_columns sstable_folder sstable_path text_as_bytes"
        ),
        "_transaction": (
            "DATA_FOLDER DELETIONS_FOLDER TRANSACTIONS_FOLDER DataFileEntry FieldEntry "
            "FragmentEntry FragmentState Transaction VersionFacts data_path decode_transaction "
            "is_transaction_path transaction_path"
        ),
        "_txn_file": (
            "DIGEST_BYTES TXNS_FOLDER Directory TxnFile decode_file encode_file "
            "files_to_merge split"
        ),
        "_vacuum_mark": (
            "NO_MARK VACUUM_FOLDER VacuumMark decode_list encode_list number_of_list read_mark"
        ),
        "_version_files": "HINT_PATH VERSIONS_FOLDER hint_of newest_version",
        "_wal_names": (
            "MEM_WAL_FOLDER BoundaryKind boundary_folder boundary_of boundary_path "
            "boundary_stamp_path entry_name log_folder number_of position_of "
            "quarantine_folder quarantine_path shard_folder shard_manifest_folder "
            "shard_manifest_name shard_of shard_version_of version_hint_path"
        ),
    },
)
