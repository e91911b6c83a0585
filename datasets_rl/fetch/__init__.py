"""Download of files: turns addresses into complete, checked files of any format."""

from datasets_rl.fetch.asset import Asset, Fetched
from datasets_rl.fetch.download import fetch, fetch_local, remaining_bytes, with_mirrors

__all__ = ["Asset", "Fetched", "fetch", "fetch_local", "remaining_bytes", "with_mirrors"]
