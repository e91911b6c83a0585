"""A long measurement that was stopped goes on, and the counts of auditors and of lossy video are right."""

from __future__ import annotations

import lossy
import pytest
import results
import table
from peers import Name, found_cell, others_cell
from planting import load_faults, measure
from results import Results


def test_a_run_that_was_stopped_has_the_table_of_one_run(tmp_path, monkeypatch):
    of_texts = [(load_faults()["text_empty"], "texts", strength) for strength in table.STRENGTHS]
    whole, measured = table.planted_rows(of_texts, 600, Results(None)), []

    def stopped(fault, kind, strength, **sizes):
        measured.append(strength)
        if measured == ["weak", "medium"]:
            raise KeyboardInterrupt
        return measure(fault, kind, strength, **sizes)

    monkeypatch.setattr(table, "measure", stopped)
    with pytest.raises(KeyboardInterrupt):
        table.planted_rows(of_texts, 600, Results(tmp_path / "kept.json"))
    rows = table.planted_rows(of_texts, 600, Results(tmp_path / "kept.json"))

    assert measured == ["weak", "medium", "medium", "strong"]
    assert table.table_lines(rows) == table.table_lines(whole)
    assert rows["texts_unlike | text_empty"]["strong"] == [3, 3, 0, 1, 1.0]


def test_results_of_other_code_are_measured_again(tmp_path, monkeypatch):
    path = tmp_path / "kept.json"
    assert Results(path).of("case", lambda: [1]) == [1]
    assert Results(path).of("case", lambda: [2]) == [1]
    monkeypatch.setattr(results, "code", lambda: "another")
    assert Results(path).of("case", lambda: [3]) == [3]


def test_an_auditor_finds_a_fault_by_what_names_few_other_episodes():
    named = {Name("jump", True): {1, 2, 7}, Name("flicker", True): {3, 4, 5, 6}, Name("spikes", False): {1, 2, 3}}

    assert found_cell(named, {1, 2, 3}) == "3, hints"
    assert found_cell(named, {1, 2}) == "2"
    assert found_cell(named, {4}) == "0"
    assert others_cell(named, {1, 2, 4, 5, 6, 7}) == "1"
    assert others_cell({Name("spikes", False): {1, 2, 3}}, {1}) == "0, and 2 as hints"


@pytest.mark.slow
def test_a_fault_is_planted_before_the_images_become_video():
    (fault,) = (one for one in lossy.faults() if one.name == "red_is_blue")

    assert measure(fault, "arm", "strong", episodes=lossy.EPISODES, seed=0) == (3, 3, 0)
    assert set(fault.kinds) <= set(lossy.KINDS)
