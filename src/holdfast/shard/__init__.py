"""`ShardWriter`: a shard's log, rows in memory and SSTables in one handle."""
