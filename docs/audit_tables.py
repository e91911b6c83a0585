"""The table of the checks of an audit in docs/audit.md, from the classes of the checks: ``python docs/audit_tables.py``."""

from __future__ import annotations

from pathlib import Path

from datasets_rl.auditing import CHECKS, Conventions, SharedEpisodes
from datasets_rl.auditing.base import Check
from datasets_rl.auditing.benefits import training_with
from datasets_rl.auditing.checks import check_class

PAGE = Path(__file__).parent / "audit.md"
START, END = "<!-- written by docs/audit_tables.py -->", "<!-- end of the checks -->"


def updated(text: str) -> str:
    """Return the page with the checks of today.

    Raises:
        ValueError: If the page has no place for the table.
    """
    if START not in text or END not in text:
        raise ValueError(f"{PAGE} has no table of checks, expected the lines {START!r} and {END!r}")
    rows = [
        "| check | finds | why it matters | limits | training |",
        "| --- | --- | --- | --- | --- |",
        *(_row(check_class(name)) for name in CHECKS),
        _row(Conventions),
        _row(SharedEpisodes),
    ]
    before, rest = text.split(START, 1)
    return f"{before}{START}\n\n" + "\n".join(rows) + f"\n\n{END}{rest.split(END, 1)[1]}"


def _row(check: type[Check | Conventions | SharedEpisodes]) -> str:
    texts = (check.rule, check.why, check.limits, training_with(check.name))
    return "| " + " | ".join([f"`{check.name}`", *(text.replace("|", "\\|") for text in texts)]) + " |"


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text("utf-8")), "utf-8")
