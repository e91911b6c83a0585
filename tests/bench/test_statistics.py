"""What the quantiles and the spikes of the manifest cost a conversion."""

from __future__ import annotations

import shutil

import pytest
from bench_data import converted

from datasets_rl.format import statistics as stats
from datasets_rl.format import writer
from datasets_rl.format.spikes import spikes as find_spikes


@pytest.mark.first(1)
@pytest.mark.parametrize("file", ["plain_file", "raw_file"])
def test_a_conversion_is_not_noticeably_slower_with_quantiles_and_spikes(
    file, request, tmp_path, compare, expect, monkeypatch
):
    """Of 1M steps of HalfCheetah, without infos and with them."""
    path = request.getfixturevalue(file)

    def convert(quantiles, spikes):
        monkeypatch.setattr(writer, "field_quantiles", quantiles)
        monkeypatch.setattr(writer, "spikes", spikes)
        converted(path, tmp_path / "root")
        shutil.rmtree(tmp_path / "root")

    calls = {
        "with": lambda: convert(stats.field_quantiles, find_spikes),
        "without": lambda: convert(lambda *_: {}, lambda *_: ()),
    }
    taken = compare(calls, rounds=7, repeat=1)

    expect("conversion with quantiles and spikes, of that without", taken["with"] / taken["without"], at_most=1)
