"""Building a stored dataset: shard by shard, in one process or several, resumable after a kill."""
