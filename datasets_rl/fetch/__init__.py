"""From addresses to files that are whole and checked; knows nothing of what is in them."""

from __future__ import annotations

from datasets_rl.fetch.asset import Asset, Fetched
from datasets_rl.fetch.download import fetch, fetch_local, mirrored, remaining_bytes

__all__ = ["Asset", "Fetched", "fetch", "fetch_local", "mirrored", "remaining_bytes"]
