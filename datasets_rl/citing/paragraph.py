"""A paragraph on a dataset for the appendix of a paper, in LaTeX."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from datasets_rl.citing.answers import (
    audit_line,
    content_line,
    finding_lines,
    issue_lines,
    missing_line,
    open_answers,
    raw_lines,
    recipe_lines,
)
from datasets_rl.citing.statement import Statement

_ESCAPES = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
}


def paragraph(statement: Statement) -> str:
    """Return the paragraph. The keys of the citations are those of references.bib."""
    return "\n".join([f"\\paragraph{{{_code(statement.id)}.}}", *_sentences(statement)]) + "\n"


def _sentences(statement: Statement) -> Iterator[str]:
    """Yield the sentences, a line each, so that an author can edit and compare them."""
    manifest = statement.manifest
    keys = ",".join(one.key for one in statement.citations)
    cited = f"~\\cite{{{keys}}}" if keys else ""
    yield f"The dataset {_code(statement.id)}{cited} holds {latex(content_line(manifest))}."
    if raw := raw_lines(manifest):
        yield f"Source: {_joined(raw)}."
    if manifest.decisions:
        decisions = _joined(f"{one.text} ({one.count:,})" for one in manifest.decisions)
        yield f"Alignment: {decisions}."
    yield latex(missing_line(manifest))
    yield f"Preprocessing: {_joined(recipe_lines(manifest)) or 'none'}."
    yield f"Splits: {_joined(statement.parts) or 'none stated'}."
    yield f"Known issues: {_joined(issue_lines(manifest)) or 'none stated'}."
    if summary := audit_line(statement):
        findings = _joined(finding_lines(statement))
        yield f"{latex(summary)}{f': {findings}' if findings else ''}."
    version = f" by datasets-rl {latex(manifest.converter)}" if manifest.converter else ""
    yield f"The files, written{version}, have the SHA-256 digest {_code(manifest.files_digest)}."
    yield f"Left open: {_joined([one.topic for one in open_answers(statement)])}."


def _joined(lines: Iterable[str]) -> str:
    return latex("; ".join(line.removesuffix(".") for line in lines))


def latex(text: str) -> str:
    """Return a text for LaTeX on a single line, without effect on the rest of the document."""
    return "".join(_ESCAPES.get(letter, letter) for letter in " ".join(text.split()))


def _code(text: str) -> str:
    """Return a name in typewriter letters. Digests are long, and may break anywhere."""
    escaped = latex(text)
    if len(text) > 40 and text.isalnum():
        escaped = r"\allowbreak ".join(text[first : first + 8] for first in range(0, len(text), 8))
    return f"\\texttt{{{escaped}}}"
