"""How a stored dataset is built: shard by shard, in one process or several, resumable after a kill."""
