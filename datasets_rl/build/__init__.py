"""Building a stored dataset: shard by shard, in a single process or several, resumable after a kill."""
