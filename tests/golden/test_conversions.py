"""Every case of tests/raw is converted to the bytes and the decisions that ``conversions.json`` has."""

from __future__ import annotations

import json

import pytest
from golden.conversions import FILE, cases, converted, versions

KNOWN = json.loads(FILE.read_text())
CASES = [pytest.param(name, case, id=name) for name, case in cases()]


@pytest.mark.first(3)
@pytest.mark.parametrize(("name", "case"), CASES)
def test_a_conversion_makes_the_stored_files_and_decisions_that_are_known(name, case, tmp_path):
    made = json.loads(json.dumps(converted(case, tmp_path)))
    exact = KNOWN["versions"] == versions()

    assert {**made, "exact": exact and made["exact"]} == {**KNOWN[name], "exact": exact and KNOWN[name]["exact"]}, (
        "if the change is meant, write the file again: python tests/golden/conversions.py"
    )


def test_every_known_conversion_is_one_of_a_case():
    assert {*KNOWN} - {"versions"} == {name for name, _ in cases()}
