"""Verification: a stored dataset against digests, invariants, and upstream files."""

from datasets_rl.verification.run import Verification, verify

__all__ = ["Verification", "verify"]
