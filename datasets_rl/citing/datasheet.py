"""The datasheet of a dataset in Markdown: each question with the answer, or marked as open."""

from __future__ import annotations

import re
from itertools import groupby

from datasets_rl.citing.answers import Answer, answers_of, open_answers
from datasets_rl.citing.statement import Statement

_OPEN = "**Open.** The answer is not stated."


def datasheet(statement: Statement) -> str:
    """Return the datasheet. Authors answer the open questions in the file."""
    lines = [f"# Datasheet of {_text(statement.id)}", "", "## Left open", ""]
    lines += [f"- {one.topic}{f': {_text(one.note)}' if one.note else ''}" for one in open_answers(statement)]
    for section, answers in groupby(answers_of(statement), lambda one: one.section):
        lines += ["", f"## {section}"]
        for answer in answers:
            lines += ["", f"**{answer.question}**", "", *_lines(answer)]
    return "\n".join(lines) + "\n"


def _lines(answer: Answer) -> list[str]:
    if not answer.lines:
        return [f"{_OPEN} {_text(answer.note)}." if answer.note else _OPEN]
    return (
        [_text(line) for line in answer.lines]
        if len(answer.lines) == 1
        else [f"- {_text(one)}" for one in answer.lines]
    )


_MARKS = re.compile(r"[\\`*\[<|]|(?<!\w)_|_(?!\w)|^(?:[#>+=~-]|\d+(?=[.)]))")


def _text(text: str) -> str:
    """Return a text of an upstream on a single line, as plain Markdown without links, headings and tags."""
    return _MARKS.sub(_escape, " ".join(text.split()))


def _escape(mark: re.Match[str]) -> str:
    return {"<": "&lt;"}.get(mark[0], f"{mark[0]}\\" if mark[0].isdigit() else f"\\{mark[0]}")
