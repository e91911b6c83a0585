"""Verification: a stored dataset against its digests, its invariants, and its upstream files."""

from datasets_rl.verification.run import Verification, verify

__all__ = ["Verification", "verify"]
