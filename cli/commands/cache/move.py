"""``rlds cache move``: the data folder in another place."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from datasets_rl.disk import expand_home
from datasets_rl.settings import setting_values, user_file

from ...config_file import set_value
from ...options import Shell
from ...output import Lines, Result, size_text


def run(
    shell: Shell,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The new folder, on this disk or another disk.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be moved, and move nothing.")] = False,
) -> Result:
    """Move the data folder to another place, and change the setting of its place. Prints the new folder.

    Run the same command again to resume it. Every file is copied and compared before the setting changes, and the old files are deleted last,
    so that nothing is lost if the command is killed. Where RLDS_HOME, a project or --root names the old place, change
    this setting and run the same command again, which deletes the old files.

    \b
    Examples:
      rlds cache move /mnt/disk2/rl --dry-run
      rlds cache move /mnt/disk2/rl
      rlds --root /data cache move /mnt/disk2/rl --json
    """
    from datasets_rl.progress import report
    from datasets_rl.store.move import move, plan_move

    plan = plan_move(shell.settings.home, folder)
    target = str(expand_home(folder).absolute())
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
            f"{size_text(plan.bytes)} would be moved from {plan.source}, and {size_text(plan.free)} are free"
        )
    else:
        with report("moving", plan.bytes, show=shell.settings.progress) as advance:
            move(shell.settings.home, folder, switch=lambda place: _set_home(shell, place), advance=advance)
        if not plan.is_switched and (origin := _fixed_origin(shell)):
            change = f"RLDS_HOME={target}" if origin == "RLDS_HOME" else f"home = {target}"
            change = f"--root {target}" if origin == "--root" else change
            shell.printer.note(
                f"everything is copied, and {origin} names the old place: use {change}, and run the same command again, "
                f"which deletes {plan.source}"
            )
        elif plan.source.exists():
            shell.printer.note(
                f"{plan.source} has other files, which are not of datasets or differ from the files at the new place, and stay"
            )
    return Result(data, [Lines((target,))], quiet=[target])


def _set_home(shell: Shell, place: Path) -> bool:
    """Change the place in the user's file. Return False if another setting takes precedence over this file."""
    if _fixed_origin(shell):
        return False
    set_value(user_file(), "home", str(place))
    return True


def _fixed_origin(shell: Shell) -> str:
    """Return what names the place and cannot be changed here: an option, a variable or a project's file."""
    if shell.root is not None:
        return "--root"
    origin = setting_values()["home"].origin
    return "" if origin == "default" or origin.startswith(f"{user_file()}:") else origin
