"""docs/audit.md has the checks of today, and remedies that can be applied."""

from __future__ import annotations

import re
import shlex

import pytest
from audit_tables import PAGE, updated

from datasets_rl import Recipe

TEXT = PAGE.read_text("utf-8")


def test_the_table_of_checks_is_of_today():
    assert updated(TEXT) == TEXT, "run: python docs/audit_tables.py"


def test_a_page_without_a_place_for_the_table_is_refused():
    with pytest.raises(ValueError, match="has no table of checks"):
        updated("# Audits\n")


def test_every_step_that_the_page_names_can_be_read():
    steps = re.findall(r"`-t ([^`]+)`", TEXT)

    assert len(steps) >= 8
    for step in steps:
        Recipe.inline(shlex.split(step))
