"""``rlds mix``: several datasets in a batch, as a file that a training script loads."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from datasets_rl.disk import expand_home
from datasets_rl.errors import InvalidArgumentError

from .. import candidates
from ..options import Shell, Targets, dataset_arguments, is_id, write_file
from ..output import Lines, Result, Table

if TYPE_CHECKING:
    from datasets_rl.buffers.mixture import Mixture
    from datasets_rl.format.copies import Shared

GROUP = "Prepare"
_SHARE = re.compile(r"(?P<name>.+):(?P<share>[0-9]*\.?[0-9]+)")


def run(
    shell: Shell,
    datasets: Targets,
    weights: Annotated[
        str, typer.Option(metavar="NUMBERS", help="Share of each dataset, on any scale, such as 0.7,0.3.")
    ] = "",
    temperature: Annotated[
        float | None,
        typer.Option(
            metavar="T", help="Make the shares proportional to steps ** (1 / T). With 1, every step is equally likely."
        ),
    ] = None,
    final_weights: Annotated[
        str, typer.Option(metavar="NUMBERS", help="Shares to move to during --anneal batches.")
    ] = "",
    anneal: Annotated[
        int, typer.Option(min=0, metavar="N", help="Number of batches until --final-weights are reached.")
    ] = 0,
    batch_size: Annotated[int, typer.Option(min=1, metavar="N", help="Number of steps in a batch.")] = 256,
    slice_len: Annotated[
        int | None, typer.Option(min=1, metavar="T", help="Draw slices of T consecutive steps of an episode.")
    ] = None,
    drawn: Annotated[
        bool,
        typer.Option(
            "--drawn", help="Draw the dataset of each step at random. By default every batch has the exact shares."
        ),
    ] = False,
    transforms: Annotated[
        list[str] | None,
        typer.Option(
            "-t",
            "--transform",
            metavar="STEP",
            help="Transform of every dataset. Can be repeated.",
            autocompletion=candidates.step_names,
        ),
    ] = None,
    missing: Annotated[
        Literal["refuse", "drop", "zero"], typer.Option(help="What to do with keys that only some datasets have.")
    ] = "refuse",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="File to write. By default the text goes to stdout."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Overwrite an existing file.")] = False,
) -> Result:
    """Write a mixture of stored datasets as TOML for `load_mixture`, and print the contents of a batch to stderr.

    \b
    Examples:
      rlds mix d4rl/hopper-medium-v2 d4rl/hopper-expert-v2 --weights 0.7,0.3 > mix.toml
      rlds mix ./mine demo/pendulum --temperature 2 --slice-len 16 -o mix.toml
      rlds mix demo/pendulum ./mine --weights 9,1 --final-weights 1,9 --anneal 10000 -o mix.toml
    """
    from datasets_rl.catalog.mixture_file import Member, mixture_toml
    from datasets_rl.preprocessing.naming import check_batch_transforms
    from datasets_rl.preprocessing.recipe import parse_inline
    from datasets_rl.store.find import locate

    if out is not None:
        _check_writable(expand_home(out))
    shares, final = _parse_numbers(weights, datasets), _parse_numbers(final_weights, datasets)
    _check_shares_are_apart(shell, datasets)
    folders = [locate(**dataset_arguments(shell, one)) for one in datasets]
    for one in datasets:
        check_batch_transforms([*map(parse_inline, transforms or ())], one)
    shell.import_torch()
    from datasets_rl.datasets.open_mixture import mixture
    from datasets_rl.format.copies import shared_episodes, telling_fingerprints
    from datasets_rl.format.reader import StoredDataset

    settings: dict[str, Any] = {
        "batch_size": batch_size,
        "temperature": temperature,
        "anneal": anneal or None,
        "exact": False if drawn else None,
        "missing": None if missing == "refuse" else missing,
        "sampler": None if slice_len is None else {"use": "slices", "slice_len": slice_len},
    }
    settings = {name: value for name, value in settings.items() if value is not None}
    steps = tuple(transforms or ())
    parts = list(zip(datasets, folders, shares, final, strict=True))
    mixed = mixture([Member(str(folder), one, last, steps) for _, folder, one, last in parts], **settings)
    members = [
        Member(_dataset_reference(name, folder, out, shell.root), one, last, steps) for name, folder, one, last in parts
    ]
    text = mixture_toml(members, settings)
    if out is not None:
        write_file(out, text.encode(), force=force)
    shared = shared_episodes([telling_fingerprints(StoredDataset(folder)) for folder in folders])
    return Result(
        {
            "file": out,
            "toml": text,
            "members": _members_json(mixed, datasets, folders),
            "keys": mixed.keys_of_members,
            "shared": [
                {"datasets": [datasets[one.first], datasets[one.second]], "episodes": len(one)} for one in shared
            ],
        },
        [Lines((text.rstrip("\n") if out is None else str(out),))],
        quiet=[text.rstrip("\n") if out is None else str(out)],
        asides=[
            _member_table(mixed, datasets, batch_size),
            _key_table(mixed, datasets),
            *([_shared_table(shared, datasets)] if shared else []),
        ],
    )


def _shared_table(shared: Sequence[Shared], datasets: list[str]) -> Table:
    rows = tuple((datasets[one.first], datasets[one.second], f"{len(one):,}") for one in shared)
    return Table(("dataset", "other dataset", "episodes in both"), rows)


def _check_shares_are_apart(shell: Shell, datasets: list[str]) -> None:
    """Refuse ``ID:0.8``, where other programs take the share of a dataset."""
    parts = [_SHARE.fullmatch(one) for one in datasets]
    if any(match is not None and (is_id(match["name"]) or Path(match["name"]).exists()) for match in parts):
        names = [one if match is None else match["name"] for one, match in zip(datasets, parts, strict=True)]
        shares = ",".join("1" if match is None else match["share"] for match in parts)
        raise InvalidArgumentError(
            f"{', '.join(datasets)} have shares in them, expected names alone",
            hint=f"give the shares together: {shell.rlds('mix', *names, '--weights', shares)}",
        )


def _check_writable(out: Path) -> None:
    """Refuse a place that no file can be written to, before the datasets are opened."""
    if not out.absolute().parent.is_dir():
        folder = out.absolute().parent
        raise InvalidArgumentError(
            f"{out} cannot be written: {folder} is not a folder", hint=f"create the folder: mkdir -p {folder}"
        )
    if out.is_dir():
        raise InvalidArgumentError(
            f"{out} cannot be written: the path is a folder", hint="give the path of a file, as in mix.toml"
        )


def _parse_numbers(text: str, datasets: list[str]) -> list[float | None]:
    if not text:
        return [None] * len(datasets)
    try:
        found: list[float | None] = [float(one) for one in text.split(",")]
    except ValueError as error:
        raise InvalidArgumentError(
            f"{text!r} is not a list of numbers, expected numbers with commas, as in 0.7,0.3"
        ) from error
    if len(found) != len(datasets):
        raise InvalidArgumentError(
            f"{text!r} has {len(found)} numbers for {len(datasets)} datasets, expected {len(datasets)}"
        )
    return found


def _dataset_reference(name: str, folder: Path, out: Path | None, root: Path | None) -> str:
    """Return the name of a dataset in the file: the id, or the folder relative to the file.

    The reader of the file does not know the root of this command line.
    """
    if root is None and not expand_home(name).exists():
        return name
    return str(folder) if out is None else Path(os.path.relpath(folder, out.absolute().parent)).as_posix()


def _members_json(mixed: Mixture, datasets: list[str], folders: list[Path]) -> list[dict[str, Any]]:
    shares = mixed.sampler.shares.tolist()
    return [
        {"dataset": name, "folder": folder, "steps": len(mixed[number]), "share": share}
        for number, (name, folder, share) in enumerate(zip(datasets, folders, shares, strict=True))
    ]


def _member_table(mixed: Mixture, datasets: list[str], batch_size: int) -> Table:
    rows = tuple(
        (name, f"{len(mixed[number]):,}", f"{share:.4f}", f"{share * batch_size:,.1f}")
        for number, (name, share) in enumerate(zip(datasets, mixed.sampler.shares.tolist(), strict=True))
    )
    return Table(("dataset", "steps", "share", f"of a batch of {batch_size:,}"), rows)


def _key_table(mixed: Mixture, datasets: list[str]) -> Table:
    rows = tuple((one.key, *(kind or "-" for kind in one.kinds)) for one in mixed.keys_of_members)
    return Table(("key", *datasets), rows)
