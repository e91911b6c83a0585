"""Decisions of a conversion, of which every shard makes some."""

from __future__ import annotations

from datasets_rl.build.conversion import merge_decisions
from datasets_rl.sources.base import Decision


def test_a_decision_on_the_whole_dataset_counts_once_and_rows_are_summed_over_shards():
    left_out = Decision("left-out sound", "sound was left out", of_dataset=True)
    shards = [[Decision("same-row", "rows", 5), left_out], [Decision("same-row", "rows", 7), left_out], [left_out]]

    merged = merge_decisions(decision for shard in shards for decision in shard)

    assert {rule: one.count for rule, one in merged.items()} == {"same-row": 12, "left-out sound": 1}
