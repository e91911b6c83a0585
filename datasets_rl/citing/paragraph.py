"""A paragraph on a dataset for the appendix of a paper, in LaTeX."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from datasets_rl.citing.answers import (
    audit_line,
    content_line,
    decision_lines,
    finding_lines,
    issue_lines,
    missing_lines,
    open_answers,
    raw_lines,
    recipe_lines,
)
from datasets_rl.citing.statement import Statement

_ESCAPES = {
    "`": r"\char96{}",
    '"': r"\char34{}",  # babel gives it a meaning in some languages
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
}


_HEX = re.compile(r"\b[0-9a-f]{40,}\b")
"""Digests and commits, which are too long for a line."""
_OTHER = re.compile(
    r"[^\x20-\x7e\u00a1-\u00ff\u2013\u2014\u2018\u2019\u201c\u201d]|[\u00ab\u00bb\u00d0\u00de\u00f0\u00fe]"
)
"""Letters that pdfLaTeX does not have in every encoding of fonts."""
PREAMBLE = (
    "% A letter that only XeLaTeX and LuaLaTeX have: the letter there, and the code point in pdfLaTeX.\n"
    r"\providecommand{\rldsletter}[2]{\ifdefined\Umathchar#2\else[U+#1]\fi}"
    "\n"
)
"""The beginning of a file with paragraphs."""


def paragraph(statement: Statement) -> str:
    """Return the paragraph. The keys of the citations are those of references.bib."""
    return "\n".join([f"\\paragraph{{{_code(statement.id)}.}}", *_sentences(statement)]) + "\n"


def _sentences(statement: Statement) -> Iterator[str]:
    """Yield the sentences, a line each, so that an author can edit and compare them."""
    manifest = statement.manifest
    keys = ",".join(one.key for one in statement.citations)
    yield f"The dataset {_code(statement.id)} holds {latex(content_line(manifest))}."
    if keys:  # of the dataset, of a member or of the environment: nobody states which
        yield f"Publications that the source cites:~\\cite{{{keys}}}."
    yield f"License: {_joined([manifest.license] if statement.is_license_stated else ['not stated'])}."
    if raw := raw_lines(manifest):
        yield f"Source: {_joined(raw)}."
    if decisions := decision_lines(manifest):
        yield f"Alignment: {_joined(decisions)}."
    yield latex(missing_lines(manifest)[0])
    yield f"Preprocessing: {_joined(recipe_lines(manifest)) or 'none'}."
    yield f"Splits: {_joined(statement.splits) or 'none stated'}."
    if statement.shares:
        yield f"Mixtures: {_joined(statement.shares)}."
    yield f"Known issues: {_joined(issue_lines(manifest)) or 'none stated'}."
    if summary := audit_line(statement):
        findings = _joined(finding_lines(statement))
        yield f"{latex(summary)}{f': {findings}' if findings else ''}."
    version = f", written by datasets-rl {latex(manifest.converter)}," if manifest.converter else ""
    yield f"The files with the data{version} have the digest {_code(manifest.files_digest)}, which is the SHA-256 of their paths and digests."
    yield f"Left open: {_joined([one.topic for one in open_answers(statement)])}."


def _joined(lines: Iterable[str]) -> str:
    return latex("; ".join(line.removesuffix(".") for line in lines))


def latex(text: str) -> str:
    """Return a text for LaTeX on a single line, without effect on the rest of the document."""
    plain = "".join(letter for letter in " ".join(text.split()) if letter.isprintable())
    parts, last = [], 0
    for found in _HEX.finditer(plain):
        parts += [_escaped(plain[last : found.start()]), _breakable(found[0])]
        last = found.end()
    return "".join([*parts, _escaped(plain[last:])])


def _escaped(text: str) -> str:
    escaped = "".join(
        f"\\rldsletter{{{ord(letter):04X}}}{{{letter}}}" if _OTHER.match(letter) else _ESCAPES.get(letter, letter)
        for letter in text
    )
    return escaped.replace("--", "-{}-").replace("--", "-{}-")  # two would become a dash


def _code(text: str) -> str:
    """Return a name in typewriter letters."""
    return _breakable(text) if _HEX.fullmatch(text) else f"\\texttt{{{latex(text)}}}"


def _breakable(digits: str) -> str:
    """Return the digits of a digest in typewriter letters, which may break after every eight."""
    groups = r"\allowbreak ".join(digits[first : first + 8] for first in range(0, len(digits), 8))
    return f"\\texttt{{{groups}}}"
