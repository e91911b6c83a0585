"""TorchRL Episode Data (TED) in memory: keys, episodes, the episode table, and the shift from T + 1 states to steps."""
