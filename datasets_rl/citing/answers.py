"""The questions of a datasheet, and what the manifest, the lock and the audit answer. No answer is a guess.

The questions follow "Datasheets for Datasets" (Gebru et al., 2021), as far as a dataset of transitions has answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from datasets_rl.citing.statement import Statement
from datasets_rl.format.manifest import Manifest

_FILES = 5
"""Raw files that are listed. The manifest has all of them."""
_FINDINGS = 20
"""Findings of an audit that are listed."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A question, and what is known."""

    section: str
    topic: str
    """The question in a few words, for lists of what is open."""
    question: str
    lines: tuple[str, ...] = ()
    """The answer, plain text, a sentence or an item each. Empty if nobody stated the answer."""
    note: str = ""
    """What stands in croissant.json in place of the answer, because Croissant requires a value."""


def open_answers(statement: Statement) -> list[Answer]:
    """Return the questions that nobody answered."""
    return [one for one in answers_of(statement) if not one.lines]


def answers_of(statement: Statement) -> Iterator[Answer]:
    """Yield all questions in order, with the answers."""
    yield from _motivation()
    yield from _composition(statement)
    yield from _collection(statement)
    yield from _preprocessing(statement)
    yield from _uses(statement)
    yield from _distribution(statement)
    yield from _maintenance(statement)


def content_line(manifest: Manifest) -> str:
    """Return what the dataset holds, in a sentence."""
    environment = f" of the environment {manifest.environment}" if manifest.environment else ""
    return f"{manifest.steps:,} steps of {manifest.episodes:,} episodes{environment}"


def issue_lines(manifest: Manifest) -> list[str]:
    """Return known issues and values that are probably errors of a recording, a sentence each."""
    return [*manifest.known_issues, *manifest.spikes]


def finding_lines(statement: Statement) -> list[str]:
    """Return the findings of the audit, the surest first, a sentence each. Empty without an audit."""
    findings = () if statement.audit is None else statement.audit.findings
    lines = [f"{one.message} ({one.level})" for one in findings[:_FINDINGS]]
    more = len(findings) - _FINDINGS
    return [*lines, f"and {more:,} more findings"] if more > 0 else lines


def audit_line(statement: Statement) -> str:
    """Return how many checks the audit made, and how many findings there are. Empty without an audit."""
    if statement.audit is None:
        return ""
    count = len(statement.audit.findings)
    found = f"{count:,} findings" if count > 1 else f"{count or 'no'} finding"
    return f"An audit of all steps made {len(statement.audit.checked)} checks and has {found}"


def missing_line(manifest: Manifest) -> str:
    """Return how many values after the last action are unknown, in a sentence."""
    if not any(field.shared for field in manifest.schema):
        return "No field has a value after the last action of an episode."
    if not manifest.final_unknown:
        return "The observation after the last action of each episode is known."
    return (
        f"The observation after the last action is unknown in {manifest.final_unknown:,} of {manifest.episodes:,} "
        "episodes, and reads as zeros with a mark."
    )


def raw_lines(manifest: Manifest) -> list[str]:
    """Return the raw files with their digests. Paths of this machine are left out."""
    total = sum(file.bytes for file in manifest.raw)
    files = "1 raw file" if len(manifest.raw) == 1 else f"{len(manifest.raw):,} raw files"
    lines = [f"{files}, {total:,} bytes"] if manifest.raw else []
    for file in manifest.raw[:_FILES]:
        place = file.url if file.url.startswith(("http:", "https:")) else file.path
        lines.append(f"{place} (sha256 {file.sha256})")
    if len(manifest.raw) > _FILES:
        lines.append(f"and {len(manifest.raw) - _FILES:,} more, which manifest.json lists")
    if manifest.revision:
        lines.append(f"revision {manifest.revision} of the upstream")
    if manifest.selection:
        lines.append("a part of the upstream's dataset: " + _entries(manifest.selection))
    if isinstance(address := manifest.copied_from.get("address"), str):
        lines.append(f"a copy of {address}")
    return [*lines, *(f"recorded or appended: {text}" for text in manifest.recordings)]


def recipe_lines(manifest: Manifest) -> list[str]:
    """Return the merges and the recipes since the conversion, in order, each step with its arguments."""
    lines = []
    for run in manifest.history:
        lines += [f"merged with {member.get('id')}" for member in run.get("merged", ())]
        recipe = run.get("recipe", {})
        steps = [_step(step) for step in recipe.get("steps", ())]
        if steps:
            name = f"recipe {recipe['name']}, " if recipe.get("name") else ""
            lines.append(f"{', '.join(steps)} ({name}seed {run.get('seed', 0)})")
    return lines


def _motivation() -> Iterator[Answer]:
    section = "Motivation"
    yield Answer(section, "purpose", "For what purpose was the dataset created?")
    yield Answer(section, "creators", "Who created the dataset?")
    yield Answer(section, "funding", "Who funded the creation of the dataset?")


def _composition(statement: Statement) -> Iterator[Answer]:
    section, manifest = "Composition", statement.manifest
    fields = [
        f"{field.name}: {'text' if field.text else field.read_dtype.name}, shape of a step {list(field.shape)}"
        for field in manifest.schema
    ]
    yield Answer(
        section,
        "content",
        "What do the instances represent, and how many are there?",
        (f"{content_line(manifest)}, {manifest.bytes:,} bytes in the stored format of datasets-rl.", *fields),
    )
    yield Answer(section, "missing values", "Is information missing from instances?", (missing_line(manifest),))
    yield Answer(section, "splits", "Are there recommended data splits?", statement.parts)
    yield Answer(
        section, "known issues", "Are there known errors, noise or redundancies?", tuple(issue_lines(manifest))
    )
    summary = audit_line(statement)
    lines = (f"{summary}.", *finding_lines(statement)) if summary else ()
    yield Answer(section, "audit", "What did an automatic audit find?", lines)
    yield Answer(section, "personal data", "Does the dataset contain personal, confidential or offensive data?")


def _collection(statement: Statement) -> Iterator[Answer]:
    section, manifest = "Collection", statement.manifest
    yield Answer(section, "raw data", "From which files were the data made?", tuple(raw_lines(manifest)))
    stated = ("algorithm", "policy", "robot", "author", "description")
    texts = [f"{name}: {one}" for name in stated if isinstance(one := manifest.stated(name), str) and one.strip()]
    yield Answer(section, "policy", "How were the data acquired: which policy or person acted?", tuple(texts))
    yield Answer(section, "time of collection", "Over what time were the data collected?")


def _preprocessing(statement: Statement) -> Iterator[Answer]:
    section, manifest = "Preprocessing", statement.manifest
    decisions = [f"{one.text} ({one.count:,})" for one in manifest.decisions]
    yield Answer(
        section,
        "alignment",
        "Which decisions did the conversion take on alignment and correction?",
        tuple(decisions or ["The conversion took no decision."]) if manifest.converter else (),
    )
    recipes = recipe_lines(manifest) or ["No recipe was applied to the converted data."]
    yield Answer(section, "recipe", "Was the dataset preprocessed after the conversion?", tuple(recipes))


def _uses(statement: Statement) -> Iterator[Answer]:
    section = "Uses"
    score = statement.manifest.score
    task = ["Offline reinforcement learning."]
    if score:
        task.append(
            f"Normalized scores 0 and 1 are the returns {score['low']:,.2f} and {score['high']:,.2f} ({score['origin']})."
        )
    yield Answer(section, "task", "For which task is the stored form made?", tuple(task))
    yield Answer(section, "biases", "Which biases of the data could affect uses?")
    yield Answer(section, "social impact", "For what should the dataset not be used, and whom could uses harm?")


def _distribution(statement: Statement) -> Iterator[Answer]:
    section, manifest = "Distribution", statement.manifest
    license_text = (manifest.license,) if statement.is_license_stated else ()
    yield Answer(
        section,
        "license",
        "Under which license is the dataset distributed?",
        license_text,
        'croissant.json has the text "not stated"',
    )
    yield Answer(
        section, "homepage", "Where is the dataset described?", (manifest.homepage,) if manifest.homepage else ()
    )
    yield Answer(
        section,
        "publication",
        "Which publications describe the dataset?",
        tuple(f"{one.key} in references.bib" for one in statement.citations),
        "croissant.json cites the id and the digest",
    )
    date = (
        f"{statement.year}, the year of the last publication in references.bib"
        if statement.year
        else f"{statement.stored}, the day on which the version was stored"
    )
    yield Answer(section, "date of publication", "When was the dataset published?", note=f"croissant.json has {date}")


def _maintenance(statement: Statement) -> Iterator[Answer]:
    section, manifest = "Maintenance", statement.manifest
    number = (f"{statement.upstream_version}, by the name of the dataset",) if statement.upstream_version else ()
    yield Answer(section, "version", "Which version is it?", number, "croissant.json has 0.0.0 with the digest")
    digests = [f"digest of the files: {manifest.files_digest}", f"digest of the manifest: {manifest.digest}"]
    digests += [f"written by datasets-rl {manifest.converter}"] if manifest.converter else []
    digests += [f"locked by {statement.lock}"] if statement.lock else []
    yield Answer(section, "digests", "How are the bytes identified?", tuple(digests))
    yield Answer(section, "maintenance", "Who maintains the dataset, and how are errors corrected?")


def _step(step: Mapping[str, Any]) -> str:
    return f"{step.get('use')}({_entries({name: value for name, value in step.items() if name != 'use'})})"


def _entries(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())
