"""The questions of a datasheet, and what the manifest, the lock and the audit answer. No answer is a guess.

The questions follow "Datasheets for Datasets" (Gebru et al., 2021), as far as a dataset of transitions has answers.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from datasets_rl.citing.statement import Statement
from datasets_rl.errors import DatasetsRLError
from datasets_rl.format.manifest import Manifest, converter_version
from datasets_rl.format.schema import Field
from datasets_rl.preprocessing.naming import make_step

_FILES = 5
"""Raw files that are listed. The manifest has all of them."""
_OF_FINALS = frozenset({"final-observation-unknown", "lerobot-final-unknown"})
"""Decisions on the observation after the last action, which the manifest counts by itself."""
_FINDINGS = 20
"""Findings of an audit that are listed."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A question and its answer."""

    section: str
    topic: str
    """The question in a few words, for lists of what is open."""
    question: str
    lines: tuple[str, ...] = ()
    """The answer, plain text, a sentence or an item each. Empty if the answer is not stated."""
    note: str = ""
    """Why the answer is missing, or the value in croissant.json in its place, because Croissant requires a value."""


def open_answers(statement: Statement) -> list[Answer]:
    """Return the questions without an answer."""
    return [one for one in answers_of(statement) if not one.lines]


def answers_of(statement: Statement) -> Iterator[Answer]:
    """Yield all questions in order, with the answers."""
    yield from _motivation(statement)
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
    lines = [f"{one.message.removesuffix('.')} (level: {one.level})" for one in findings[:_FINDINGS]]
    more = len(findings) - _FINDINGS
    return [*lines, f"and {more:,} more"] if more > 0 else lines


def audit_line(statement: Statement) -> str:
    """Return how many checks the audit made, and how many findings there are. Empty without an audit."""
    if statement.audit is None:
        return ""
    count = len(statement.audit.findings)
    found = f"{count:,} findings" if count > 1 else f"{count or 'no'} finding"
    return f"An audit of all steps made {len(statement.audit.checked)} checks and has {found}"


def decision_lines(manifest: Manifest) -> list[str]:
    """Return what the conversion decided, each with how often, a sentence each."""
    return [one.sentence for one in manifest.decisions]


def missing_lines(manifest: Manifest) -> list[str]:
    """Return what is unknown, a sentence each: values after the last action, and what the conversion did not find in the files."""
    missing = [
        one for one in manifest.decisions if one.rule.endswith(("-missing", "-unknown")) and one.rule not in _OF_FINALS
    ]
    return [_final_line(manifest), *(one.sentence for one in missing)]


def _final_line(manifest: Manifest) -> str:
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
    return [*lines, *map(_recording, manifest.recordings)]


def _recording(entry: str) -> str:
    name, _, count = entry.rpartition(":")
    return f"{count} recorded or appended {'episode' if count == '1' else 'episodes'} ({name})"


def recipe_lines(manifest: Manifest) -> list[str]:
    """Return the merges and the recipes since the conversion, in order, each step with its arguments."""
    lines = []
    for run in manifest.history:
        lines += [f"merged with {member.get('id')}" for member in run.get("merged", ())]
        recipe = run.get("recipe", {})
        is_own = run.get("version") == converter_version()
        steps = [_step(step, is_own=is_own) for step in recipe.get("steps", ())]
        if steps:
            name = f"recipe {recipe['name']}, " if recipe.get("name") else ""
            lines.append(f"{', '.join(steps)} ({name}seed {run.get('seed', 0)})")
    return lines


def _motivation(statement: Statement) -> Iterator[Answer]:
    section = "Motivation"
    yield Answer(section, "purpose", "For what purpose was the dataset created?")
    yield Answer(section, "creators", "Who created the dataset?", tuple(_stated(statement.manifest, "author")))
    yield Answer(section, "funding", "Who funded the creation of the dataset?")


def _composition(statement: Statement) -> Iterator[Answer]:
    section, manifest = "Composition", statement.manifest
    fields = [f"{field.name}: {_values(field)} a step" for field in manifest.schema]
    yield Answer(
        section,
        "content",
        "What do the instances represent, and how many are there?",
        (
            f"{content_line(manifest)}, {manifest.bytes:,} bytes in the stored format of datasets-rl.",
            *([statement.description] if statement.description else _stated(manifest, "description")),
            *(
                [f"time limit: an episode is truncated after {manifest.time_limit:,} steps"]
                if manifest.time_limit
                else []
            ),
            *_spreads(manifest),
            *fields,
        ),
    )
    yield Answer(section, "missing values", "Is information missing from instances?", tuple(missing_lines(manifest)))
    yield Answer(section, "splits", "Are there recommended data splits?", statement.splits)
    yield Answer(
        section, "known issues", "Are there known errors, noise or redundancies?", tuple(issue_lines(manifest))
    )
    summary = audit_line(statement)
    lines = (f"{summary}.", *finding_lines(statement)) if summary else ()
    yield Answer(section, "audit", "What did an automatic audit find?", lines, "no audit was made")
    yield Answer(section, "personal data", "Does the dataset contain personal, confidential or offensive data?")


def _collection(statement: Statement) -> Iterator[Answer]:
    section, manifest = "Collection", statement.manifest
    yield Answer(section, "raw data", "From which files were the data made?", tuple(raw_lines(manifest)))
    texts = tuple(_stated(manifest, "algorithm", "policy", "robot"))
    yield Answer(section, "policy", "How were the data acquired: which policy or person acted?", texts)
    yield Answer(section, "time of collection", "Over what time were the data collected?")


def _preprocessing(statement: Statement) -> Iterator[Answer]:
    section, manifest = "Preprocessing", statement.manifest
    decisions = decision_lines(manifest)
    yield Answer(
        section,
        "alignment",
        "Which decisions did the conversion take on alignment and correction?",
        tuple(decisions or ["The conversion took no decision."]) if manifest.converter else (),
    )
    recipes = recipe_lines(manifest) or ["No recipe was applied."]
    yield Answer(section, "recipe", "Was the dataset preprocessed by datasets-rl?", tuple(recipes))


def _uses(statement: Statement) -> Iterator[Answer]:
    section = "Uses"
    score = statement.manifest.score
    task = ["Offline reinforcement learning."]
    if score:
        task.append(
            f"Normalized scores 0 and 1 are the returns {score['low']:,.2f} and {score['high']:,.2f} ({score['origin']})."
        )
    yield Answer(section, "task", "For which task is the stored form made?", tuple(task))
    if statement.shares:
        yield Answer(section, "mixture", "In which mixtures is the dataset used?", statement.shares)
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
        section, "homepage", "Which homepage does the source state?", (manifest.homepage,) if manifest.homepage else ()
    )
    yield Answer(
        section,
        "publication",
        "Which publications does the source cite for the dataset?",
        (
            *([f"as the source states: {manifest.citation}"] if manifest.citation else []),
            *(f"{one.key} in references.bib" for one in statement.citations),
        ),
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


def _values(field: Field) -> str:
    """Return what a step of a field is, as in "64 x 64 x 3 values of uint8"."""
    if field.text:
        return "a text"
    shape = [size for size in field.shape if len(field.shape) > 1 or size > 1]
    count = f"{' x '.join(map(str, shape))} values" if shape else "1 value"
    return f"{count} of {field.read_dtype.name}"


def _stated(manifest: Manifest, *names: str) -> Iterator[str]:
    """Yield what the metadata of a dataset states under names."""
    for name in names:
        text = manifest.stated(name)
        if isinstance(text, str) and text.strip():
            yield f"{name}: {text}"


def _spreads(manifest: Manifest) -> Iterator[str]:
    """Yield the spread of the returns and the lengths of the episodes, a sentence each."""
    for name in ("return", "length"):
        numbers = manifest.statistics.get(name)
        keys = ("mean", "std", "min", "max")
        if isinstance(numbers, Mapping) and all(isinstance(numbers.get(key), (int, float)) for key in keys):
            yield f"{name} of an episode: " + ", ".join(f"{key} {numbers[key]:,.2f}" for key in keys)


def _step(step: Mapping[str, Any], *, is_own: bool) -> str:
    """Return a step of a recipe with the arguments, with the defaults if this version of the package applied the step."""
    arguments = {name: value for name, value in step.items() if name != "use"}
    if is_own:
        with suppress(DatasetsRLError):  # the code of the user
            made = make_step(str(step.get("use")), (), arguments)
            known = inspect.signature(type(getattr(made, "transform", made))).parameters.values()
            arguments |= {
                one.name: [*one.default] if isinstance(one.default, tuple) else one.default
                for one in known
                if one.name not in arguments and one.default not in (inspect.Parameter.empty, None, "", ())
            }
    return f"{step.get('use')}({_entries(arguments)})"


def _entries(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())
