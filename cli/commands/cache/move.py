"""``rlds cache move``: the data folder in another place."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...options import Shell
from ...output import Lines, Result, size_text


def run(
    shell: Shell,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The new folder, on this disk or another one.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be moved, and move nothing.")] = False,
) -> Result:
    """Move the data folder to another place, and leave a link to it. Prints the new folder.

    Run the same command again to resume it. Every file is copied and compared before the link takes the old folder's place, and the old folder is deleted last,
    so that nothing is lost if the command is killed. Programs that name the old place keep working.

    \b
    Examples:
      rlds cache move /mnt/disk2/rl --dry-run
      rlds cache move /mnt/disk2/rl
      rlds --root /data cache move /mnt/disk2/rl --json
    """
    from datasets_rl.progress import report
    from datasets_rl.store.move import move, plan_move

    plan = plan_move(shell.settings.home, folder)
    target = str(folder.expanduser().absolute())
    data = {
        "from": None if plan is None else str(plan.source),
        "to": target,
        "bytes": None if plan is None else plan.bytes,
        "free_bytes": None if plan is None else plan.free,
        "dry_run": dry_run,
    }
    if plan is None:
        shell.printer.note("the data folder is there already")
    elif dry_run:
        shell.printer.note(
            f"{size_text(plan.bytes)} would be moved from {plan.source}; {size_text(plan.free)} are free"
        )
    else:
        with report("moving", plan.bytes, show=shell.settings.progress) as advance:
            move(shell.settings.home, folder, advance=advance)
        shell.printer.note(f"{plan.source} is a link to it now; RLDS_HOME={target} names it without the link")
    return Result(data, [Lines((target,))], quiet=[target])
