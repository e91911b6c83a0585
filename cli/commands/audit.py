"""``rlds audit``: look for faults in the data of stored datasets."""

from __future__ import annotations

import itertools
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from datasets_rl import disk
from datasets_rl.disk import expand_home
from datasets_rl.errors import InvalidArgumentError

from .. import candidates
from ..errors import SOME_FAILED
from ..options import Outcome, Shell, TargetsOrNone, apply_to_each, combined_exit_code, dataset_arguments, is_id
from ..output import Lines, Result, Table, count_text
from .verify import members_of

if TYPE_CHECKING:
    from datasets_rl.auditing import Audit, Finding
    from datasets_rl.auditing.base import Check

GROUP = "Look"

_DOCUMENT: dict[str, Any] = {"steps": 0, "episodes": 0, "findings": (), "checked": (), "skipped": {}, "lengths": ()}
_TOGETHER = " + "
_SHOWN = 20
"""Findings of a dataset that are printed. `--json` and `--markdown` have all findings."""
_MARKS = re.compile(r"[\\`*|<]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|(?<=\])\(")
"""Marks of Markdown in a text. An underscore inside a word is not a mark."""
_WIDE = 160
"""Letters of a remedy that are printed."""


def run(
    shell: Shell,
    datasets: TargetsOrNone = None,
    fail_on: Annotated[
        str,
        typer.Option(
            "--fail-on",
            metavar="LEVEL",
            help="Exit with 1 if a finding is at least as sure: proof, strong or hint.",
            autocompletion=candidates.audit_levels,
        ),
    ] = "",
    checks: Annotated[
        str,
        typer.Option(
            metavar="NAMES", help="Checks to make, joined by commas. All by default.", autocompletion=candidates.checks
        ),
    ] = "",
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the report as Markdown, for a pull request.")
    ] = False,
    remedies: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.toml", help="Write a recipe with the remedies of strong findings, for `rlds preprocess`."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace an existing file of remedies.")] = False,
    listed: Annotated[
        bool,
        typer.Option(
            "--list", help="List the checks: what each finds, what each misses, and whether training gets better by it."
        ),
    ] = False,
) -> Result:
    """Look for faults in the data: frozen cameras, joined or duplicate episodes, shifted actions, outliers, and more.

    Each finding has the episodes and rows, the evidence in numbers, and the remedy. A finding is a proof, strong, or a
    hint. In clean data, at most one in 1,000 episodes has a strong finding. The members of a mixture are audited alone, and
    their conventions are compared. Episodes that are in two of several datasets, such as of training and validation, are found.
    Nothing is changed. To check that the stored files are intact, use rlds verify. Run the same command again to resume.

    \b
    Examples:
      rlds audit demo/pendulum
      rlds audit ./my-dataset --fail-on strong
      rlds audit ./train ./validation --checks shared_episodes
      rlds audit mix.toml --markdown
      rlds audit ./my-dataset --remedies corrected.toml
      rlds audit demo/pendulum --checks duplicate_episodes,idle_spans --json
      rlds audit --list
    """
    from datasets_rl.auditing import LEVELS, Conventions, SharedEpisodes, audit

    if listed:
        return _list_checks()
    if not datasets:
        raise InvalidArgumentError("no dataset is given", hint="rlds audit demo/pendulum, or rlds audit --list")
    if fail_on and fail_on not in LEVELS:
        raise InvalidArgumentError(f"--fail-on is {fail_on!r}, expected one of {', '.join(LEVELS)}")
    members = members_of(datasets)
    mixtures = [one for one in datasets if one.endswith(".toml")]
    file = None if remedies is None else _file_of_remedies(remedies, members, force=force)
    names = [name.strip() for name in checks.split(",") if name.strip()] or None
    _check_comparisons(names or (), len(mixtures), len(members))
    together = {Conventions.name, SharedEpisodes.name}
    compared = together if names is None else together.intersection(names)
    of_members = None if names is None else [name for name in names if name not in together]
    found: list[Outcome[Audit]] = []
    if of_members is None or of_members:
        found += apply_to_each(
            shell, members, lambda dataset: audit(**dataset_arguments(shell, dataset), checks=of_members)
        )
    # A member that cannot be read has its own error.
    if not any(one.error for one in found):
        if Conventions.name in compared:
            found += apply_to_each(shell, mixtures, lambda file: _compared(shell, file))
        if SharedEpisodes.name in compared and len(members) > 1:
            found += apply_to_each(shell, [_TOGETHER.join(datasets)], lambda _: _shared(shell, members))
    failed = [bool(fail_on and one.value and one.value.of_level(fail_on)) for one in found]
    reports = [one.value for one in found if one.value]
    named = [(_name(shell, one.item, one.value), one.value) for one in found if one.value]
    written = file is not None and bool(reports) and _write_remedies(shell, file, reports[0], members[0])
    if file is None and not markdown:
        for line in _how_to_apply(shell, reports, members):
            shell.printer.note(line)
    return Result(
        {"datasets": [_document(shell, one) for one in found], "remedies": str(remedies) if written else None},
        [Lines(tuple(_markdown(shell, named)))] if markdown else [Lines(tuple(_lines(*one))) for one in named],
        quiet=[f"{name}\t{finding.level}\t{finding.check}" for name, one in named for finding in one.findings],
        code=combined_exit_code([one.code or SOME_FAILED * fails for one, fails in zip(found, failed, strict=True)]),
    )


def _list_checks() -> Result:
    from datasets_rl.auditing import CHECKS, Conventions, SharedEpisodes
    from datasets_rl.auditing.benefits import training_with
    from datasets_rl.auditing.checks import check_class

    classes: list[type[Check | Conventions | SharedEpisodes]] = [
        *map(check_class, CHECKS),
        Conventions,
        SharedEpisodes,
    ]
    return Result(
        {
            "checks": [
                {"name": one.name, "rule": one.rule, "why": one.why, "limits": one.limits}
                | {"training": training_with(one.name)}
                for one in classes
            ]
        },
        [Table(("check", "training", "rule"), tuple((one.name, training_with(one.name), one.rule) for one in classes))],
        quiet=[one.name for one in classes],
    )


def _check_comparisons(names: Sequence[str], mixtures: int, members: int) -> None:
    """Check that there is something to compare for each named check that compares datasets.

    Raises:
        InvalidArgumentError: If there is not. The audit would pass without a look at the data.
    """
    from datasets_rl.auditing import Conventions, SharedEpisodes

    if Conventions.name in names and not mixtures:
        raise InvalidArgumentError(
            f"the check {Conventions.name} compares the members of a mixture, and no mixture is given",
            hint="name the file of a mixture, MIX.toml",
        )
    if SharedEpisodes.name in names and members < 2:
        raise InvalidArgumentError(
            f"the check {SharedEpisodes.name} compares datasets, and 1 is given, expected 2 or more",
            hint="name another dataset, too",
        )


def _compared(shell: Shell, file: str) -> Audit:
    from datasets_rl.auditing import audit_mixture
    from datasets_rl.store.find import locate

    members: Sequence[str] = members_of([file])
    return audit_mixture(
        [locate(**dataset_arguments(shell, member)) for member in members], name=file, settings=shell.settings
    )


def _shared(shell: Shell, members: Sequence[str]) -> Audit:
    from datasets_rl.auditing import audit_parts
    from datasets_rl.store.find import locate

    folders = [locate(**dataset_arguments(shell, member)) for member in members]
    return audit_parts(folders, name=_TOGETHER.join(members), settings=shell.settings)


def _file_of_remedies(file: Path, datasets: list[str], *, force: bool) -> Path:
    """Return the path of the recipe to write.

    Raises:
        InvalidArgumentError: If there are several datasets, the file is not a TOML file, or the file exists.
    """
    if len(datasets) != 1:
        raise InvalidArgumentError(
            f"--remedies is for one dataset, and {len(datasets)} are given",
            hint="audit each dataset alone: the remedies name its episodes",
        )
    if file.suffix != ".toml":
        raise InvalidArgumentError(f"--remedies is {file}, expected FILE.toml")
    found = expand_home(file)
    disk.check_outside_versions(found)
    if found.exists() and not force:
        raise InvalidArgumentError(f"{file} is not replaced: it exists", hint="add --force to overwrite it")
    return found


def _steps(report: Audit) -> int:
    """Return the number of findings for a recipe: proofs and strong findings that a step corrects."""
    return sum(not isinstance(one.remedy, str) for one in report.of_level("strong"))


def _how_to_apply(shell: Shell, reports: Sequence[Audit], datasets: Sequence[str]) -> Iterator[str]:
    """Yield how the printed remedies are applied, if one is a step."""
    remedies = [str(one.remedy) for report in reports for one in report.findings[:_SHOWN]]
    steps = [remedy for remedy in remedies if remedy.startswith("-t ")]
    if not steps:
        return
    if len(reports) > 1:
        yield f"{shell.rlds('preprocess', 'DATASET')} -t STEP --out corrected applies a remedy to the dataset that it is for"
        return
    (report,), (dataset, *_) = reports, datasets
    shown = next((one for one in steps if len(one) <= _WIDE), "-t STEP")
    if _steps(report):
        yield f"{shell.rlds('audit', dataset, '--remedies', 'corrected.toml')} writes the remedies of proofs and strong findings into a recipe"
    yield f"{shell.rlds('preprocess', dataset)} {shown} {shlex.join(_result(dataset))} applies one remedy"
    yield "episodes and rows are numbered from 0, rows over all episodes. A result has other numbers: apply several remedies in one command"


def _result(dataset: str) -> tuple[str, str]:
    """Return the option for the result, with a name that neither the dataset nor a folder here has."""
    names = itertools.chain(["corrected"], (f"corrected{number}" for number in itertools.count(2)))
    if is_id(dataset):
        return "--as", next(name for name in names if not dataset.endswith(f"@{name}"))
    return "--out", next(name for name in names if not os.path.lexists(name))


def _write_remedies(shell: Shell, file: Path, report: Audit, dataset: str) -> bool:
    """Write the recipe of an audit, and return True. An audit without a step to take writes nothing."""
    if not _steps(report):
        shell.printer.note(f"{file} is not written: no finding of level proof or strong has a step as its remedy")
        return False
    disk.write_text(file, report.remedies())
    shell.printer.note(
        f"the remedies are in {file}: read them, then {shell.rlds('preprocess', dataset, '--recipe', file, *_result(dataset))}"
    )
    return True


def _document(shell: Shell, outcome: Outcome[Audit]) -> dict[str, Any]:
    document, found = outcome.document(_DOCUMENT), outcome.value
    return document if found is None else {**document, **found.to_json(), "id": _name(shell, outcome.item, found)}


def _name(shell: Shell, item: str, found: Audit) -> str:
    """Return the name of an audited dataset in the report: the id, or the folder elsewhere than below the home.

    Such a folder may hold a dataset of any id, such as the corrected dataset beside the audited dataset.
    """
    from datasets_rl.store.find import shown_id

    is_folder = not is_id(item) and _TOGETHER not in item
    return shown_id(Path(item), item, settings=shell.settings) if is_folder else found.id


def _lines(name: str, found: Audit) -> Iterator[str]:
    yield f"{name}: {_verdict(found)} ({_extent(found)})"
    for finding in found.findings[:_SHOWN]:
        yield f"  {finding.level}: {finding.check}: {finding.message}"
        if finding.remedy:
            text = str(finding.remedy)
            yield f"    remedy: {text if len(text) <= _WIDE else f'{text[:_WIDE]}... --json and --remedies have all of it'}"
    if len(found.findings) > _SHOWN:
        yield f"  {len(found.findings) - _SHOWN:,} more: --json has all findings"
    yield from (f"  length: {one}" for one in found.lengths if one.named)


def _extent(found: Audit) -> str:
    counts = {"step": found.steps, "episode": found.episodes, "check": len(found.checked)}
    return ", ".join(count_text(number, unit) for unit, number in counts.items())


def _verdict(found: Audit) -> str:
    counts = {level: sum(one.level == level for one in found.findings) for level in ("proof", "strong", "hint")}
    words = [f"{count} {level}" for level, count in counts.items() if count]
    return f"findings: {', '.join(words)}" if words else "no findings"


def _markdown(shell: Shell, named: Sequence[tuple[str, Audit]]) -> Iterator[str]:
    for name, found in named:
        yield f"## Audit of {_plain(name)}"
        yield ""
        yield f"{_extent(found)}: {_verdict(found)}."
        yield ""
        if found.findings:
            yield "| level | check | finding | remedy |"
            yield "| --- | --- | --- | --- |"
            yield from map(_markdown_row, found.findings)
            yield ""
            if _steps(found) and _TOGETHER not in name:
                command = shell.rlds("audit", name, "--remedies", "corrected.toml")
                yield (
                    f"A remedy `-t ...` is a step of `rlds preprocess`. `{command}` writes the remedies of all proofs and strong "
                    "findings into a recipe. Numbers of episodes and rows start from 0."
                )
                yield ""
        if lengths := [f"* {_plain(str(one))}" for one in found.lengths if one.named]:
            yield from (*lengths, "")


def _markdown_row(finding: Finding) -> str:
    return f"| {finding.level} | {finding.check} | {_plain(finding.message)} | {_remedy(finding)} |"


def _remedy(finding: Finding) -> str:
    """Return a remedy as Markdown: a step as code, a sentence as a sentence."""
    text = str(finding.remedy)
    return f"`{text.replace('|', chr(92) + '|')}`" if text.startswith("-t ") else _plain(text)


def _plain(text: str) -> str:
    """Return a text as Markdown that shows the text: what names and texts of a dataset have of its marks is no mark."""
    return _MARKS.sub(r"\\\g<0>", " ".join(text.split()))
