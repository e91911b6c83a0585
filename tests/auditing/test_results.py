"""A long measurement that was stopped goes on, and has the results of one run."""

from __future__ import annotations

import pytest
import results
import table
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
    assert rows["texts_unlike | text_empty"]["strong"] == [3, 3, 0]


def test_results_of_other_code_are_measured_again(tmp_path, monkeypatch):
    path = tmp_path / "kept.json"
    assert Results(path).of("case", lambda: [1]) == [1]
    assert Results(path).of("case", lambda: [2]) == [1]
    monkeypatch.setattr(results, "code", lambda: "another")
    assert Results(path).of("case", lambda: [3]) == [3]
