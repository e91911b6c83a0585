"""Fingerprints of episodes: digests of their values, sketches for near copies, and how much information they have."""
