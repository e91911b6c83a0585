"""``rlds push``: publishes a stored dataset on the Hugging Face hub."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ..options import Dataset, Shell, dataset_arguments
from ..output import Facts, Result, count_text, size_text

GROUP = "Share"


def run(
    shell: Shell,
    dataset: Dataset,
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="hf://USER/NAME, or hf://USER/NAME@BRANCH.")],
    private: Annotated[bool, typer.Option("--private", help="Make a new repository private.")] = False,
    message: Annotated[str, typer.Option("--message", "-m", metavar="TEXT", help="The commit message.")] = "",
    statement: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Folder of the dataset in a statement of `rlds cite --statement`, to publish beside it."
        ),
    ] = None,
) -> Result:
    """Publish a stored dataset on the Hugging Face hub, with a README. Prints its address.

    A token with write access is needed: HF_TOKEN, or the token of `hf auth login`. All files appear in a single commit.
    Run the same command again to resume it.

    \b
    Examples:
      rlds push demo/pendulum hf://me/pendulum
      rlds push d4rl/hopper-medium-v2@td3_bc hf://me/hopper-td3-bc --private
      rlds push ./hopper-td3 hf://me/hopper-td3 -m "Second run"
      rlds push demo/pendulum hf://me/pendulum --statement statement/demo-pendulum
    """
    from datasets_rl.fetch.asset import LOCAL
    from datasets_rl.format.manifest import Manifest
    from datasets_rl.hub.push import push
    from datasets_rl.store.find import locate

    place = dataset_arguments(shell, dataset)
    manifest = Manifest.read(locate(**place))
    if local := sorted({file.url for file in manifest.raw if file.url.startswith(LOCAL)}):
        shell.printer.note(
            f"its manifest, which is published, names {count_text(len(local), 'file')} of this machine: {local[0]}"
        )
    pushed = push(address=address, private=private, message=message, statement=statement, **place)
    shell.printer.note(f"license: {manifest.license or 'not stated'}. Make sure that you may publish the dataset")
    facts = (
        ("published", pushed.address),
        ("page", pushed.url),
        ("files", f"{pushed.files:,}"),
        ("size", size_text(pushed.bytes)),
        ("load", f'load("hf://{pushed.address.removeprefix("hf://").partition("@")[0]}")'),
    )
    return Result({"id": dataset, **asdict(pushed)}, [Facts(facts)], quiet=[pushed.address])
