"""The page of `rlds info`: what the catalog states before a download, and what the members of a mixture have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from datasets_rl.sources import split_derived

from .options import Shell
from .output import Block, Facts, Lines, Result, Table, short_count_text, size_text

if TYPE_CHECKING:
    from datasets_rl.catalog.listing import DatasetInfo

_KNOWN = {"exact": "{}", "estimated": "about {}", "recorded": "{}, as recorded"}


def catalog_blocks(info: DatasetInfo, asked: str, state: str, size: str = "unknown size") -> Iterator[Block]:
    """Yield the page of a dataset that is not stored. The page of a derived dataset describes its input.

    Args:
        info: What the catalog states.
        asked: The id of the dataset.
        state: Why the dataset cannot be read, and what to do next.
        size: Size of the download, if the catalog does not state the size.
    """
    title = f"{info.id}, of which {asked} is made" if split_derived(asked)[1] else info.id
    yield Facts(catalog_facts(info, size), title=title)
    if info.known_issues:
        yield Lines(info.known_issues, title="known issues")
    yield Facts((("folder", state),), title="stored")


def catalog_facts(info: DatasetInfo, size: str = "unknown size") -> tuple[tuple[str, str], ...]:
    """Return the facts about a dataset before the download, with `size` in place of an unknown size. Unknown facts are empty."""
    figures = (
        ("steps", figure_text(info, "steps")),
        ("episodes", figure_text(info, "episodes")),
        ("download", figure_text(info, "bytes") or size),
        ("from", " or ".join(info.addresses)),
    )
    return description_facts(info, figures)


def description_facts(info: DatasetInfo, figures: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Return what a dataset is, the same before and after its download, with the figures that are known by then."""
    limit = f", at most {_counted_steps(info.time_limit)} an episode" if info.time_limit else ""
    return (
        ("title", info.title),
        ("deprecated", "yes" if info.deprecated else ""),
        ("description", info.description),
        ("environment", f"{info.environment}{limit}" if info.environment else limit.removeprefix(", ")),
        ("observation", "" if info.observation is None else info.observation.text),
        ("action", "" if info.action is None else info.action.text),
        *figures,
        *score_facts(info),
        ("tags", ", ".join(info.tags)),
        ("used for", ", ".join(info.used_for)),
        ("license", info.license),
        ("citation", info.citation),
        ("homepage", info.homepage),
    )


def _counted_steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"


def score_facts(info: DatasetInfo) -> tuple[tuple[str, str], ...]:
    """Return the returns with the normalized scores 0 and 1, and the origin of the returns."""
    if info.score is None:
        return ()
    return (
        ("score 0", f"return {info.score.low:,.2f}"),
        ("score 1", f"return {info.score.high:,.2f} ({info.score.origin})"),
    )


def figure_text(info: DatasetInfo, name: str) -> str:
    """Return a figure with its accuracy and origin. Empty for an unknown figure."""
    value = {"bytes": info.download_bytes, "steps": info.steps, "episodes": info.episodes}[name]
    if value is None:
        return ""
    basis = info.basis[name]
    number = size_text(value) if name == "bytes" else f"{value:,}"
    origin = f" ({basis.origin})" if basis.origin else ""
    return f"{_KNOWN[basis.kind].format(number)}{origin}"


def catalog_json(info: DatasetInfo) -> dict[str, Any]:
    """Return what a catalog states, as JSON values."""
    described = info.to_json()
    stated = ("environment", "observation", "action", "steps", "episodes", "basis", "tags", "used_for")
    return {
        **{name: described[name] for name in stated},
        "description": info.description,
        "addresses": list(info.addresses),
    }


def mixture_result(shell: Shell, info: DatasetInfo) -> Result:
    """Return the members of a mixture, and the facts that all members share."""
    total = sum(one.weight or 0 for one in info.members)
    members = [
        {
            **one.info.to_json(),
            "weight": one.weight,
            "share": one.weight / total if one.weight is not None and total else None,
        }
        for one in info.members
    ]
    rows = tuple(
        (
            one["id"],
            "-" if one["share"] is None else f"{one['share']:.1%}",
            short_count_text(one["steps"]),
            short_count_text(one["episodes"]),
            "-" if member.info.observation is None else member.info.observation.short,
            "-" if member.info.action is None else member.info.action.short,
            "yes" if one["downloaded"] else "-",
        )
        for one, member in zip(members, info.members, strict=True)
    )
    absent = [one.info for one in info.members if one.info.folder is None]
    missing = [one.id for one in absent]
    sizes = [one.download_bytes for one in absent]
    size = "of unknown size" if None in sizes else size_text(sum(filter(None, sizes)))
    facts = (
        ("members", f"{len(members)}"),
        ("environment", info.environment),
        ("observation", "differs between members" if info.observation is None else info.observation.text),
        ("action", "differs between members" if info.action is None else info.action.text),
        ("steps", figure_text(info, "steps")),
        ("episodes", figure_text(info, "episodes")),
        *score_facts(info),
        ("license", info.license),
        ("not downloaded", f"{size}: {shell.rlds('download', *missing)}" if missing else ""),
    )
    blocks: list[Block] = [
        Facts(facts, title=f"{info.id}, a mixture"),
        Table(("id", "share", "steps", "episodes", "obs", "action", "here"), rows, title="members"),
    ]
    if info.known_issues:
        blocks.append(Lines(info.known_issues, title="known issues"))
    data = {
        "id": info.id,
        "members": members,
        "steps": info.steps,
        "episodes": info.episodes,
        "basis": info.basis,
        "score": info.score,
    }
    return Result(data, blocks, quiet=[one["id"] for one in members])
