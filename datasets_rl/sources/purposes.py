"""What papers use datasets for: the words that catalogs state in ``used_for``, and `list_datasets` chooses by."""

from __future__ import annotations

from collections.abc import Mapping

IMAGE = "image"
"""The purpose that follows from the observations, so that no catalog states it."""
PURPOSES: Mapping[str, str] = {
    "bandit": "contextual bandits: an episode is one step",
    "benchmark": "tables that compare offline algorithms",
    "generalization": "levels, backgrounds or dynamics other than in the data",
    "goal-conditioned": "policies that are given a goal",
    IMAGE: "policies that see images",
    "imitation": "policies that copy demonstrations",
    "language": "policies that are given an instruction in words",
    "multi-agent": "several agents that act at once",
    "multi-task": "a policy for several tasks",
    "offline-to-online": "policies that go on learning in the environment",
    "robots": "arms, hands and legs, real or simulated for manipulation",
    "safe": "returns under a limit on costs",
    "sparse-reward": "rewards that say little more than success",
    "stitching": "paths that no single trajectory of the data follows from start to end",
    "unsupervised": "behavior that was explored without a reward",
}
"""What each purpose means."""
