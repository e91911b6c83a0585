"""``rlds help``: what belongs to no single command."""

from __future__ import annotations

from typing import Annotated

import typer

from datasets_rl.errors import InvalidArgumentError

from .. import candidates
from ..errors import EXIT_CODES
from ..options import Shell
from ..output import Result, Table

GROUP = "Maintain"

_ENVIRONMENT = (
    ("RLDS_HOME", "the folder of all datasets, after --root"),
    ("RLDS_CONFIG", "the user's file of settings, by default as in `rlds config path`"),
    ("RLDS_OFFLINE", "1: no network request at all"),
    ("RLDS_MIRRORS", "addresses tried before the upstream's: d4rl=URL[,URL...];SOURCE=URL"),
    ("RLDS_JOBS", "files, and ranges of a big file, fetched at once (4)"),
    (
        "RLDS_IMAGE_CACHE",
        "megabytes of decoded PNG and JPEG images that each opened dataset keeps in memory, 0 for none (256)",
    ),
    (
        "RLDS_TIMEOUT",
        "seconds without a byte, or without complete headers, after which a connection counts as stalled (30)",
    ),
    (
        "RLDS_MIN_RATE",
        "bytes per second below which a server counts as too slow, on average over RLDS_TIMEOUT, 0 for no limit (100)",
    ),
    ("RLDS_MAX_RETRIES", "further tries at an address (5)"),
    ("RLDS_NO_PROGRESS", "1: no progress bars and lines"),
    ("RLDS_LOCK", "the lock that every dataset must fit that a program opens with load"),
    ("RLDS_DEBUG", "1: tracebacks, as -vv"),
    ("NO_COLOR", "any value: no colors"),
    ("HTTPS_PROXY", "and HTTP_PROXY, NO_PROXY: as everywhere"),
)
_TOPICS = ("environment", "exit-codes")


def run(
    shell: Shell,
    topic: Annotated[
        str,
        typer.Argument(
            metavar="TOPIC|COMMAND",
            help="environment, exit-codes, or the name of a command.",
            autocompletion=candidates.help_topics,
        ),
    ],
) -> Result:
    """Explain exit codes, environment variables, or a command.

    \b
    Examples:
      rlds help exit-codes
      rlds help environment
      rlds help download
    """
    shell.detail(f"topics: {', '.join(_TOPICS)}")
    if topic == "exit-codes":
        data = {"exit_codes": [{"code": row.code, "meaning": row.meaning} for row in EXIT_CODES]}
        codes = tuple((str(row.code), row.meaning) for row in EXIT_CODES)
        return Result(data, [Table(("code", "meaning"), codes)], quiet=[" ".join(row) for row in codes])
    if topic == "environment":
        data = {"environment": [{"name": name, "meaning": meaning} for name, meaning in _ENVIRONMENT]}
        return Result(data, [Table(("variable", "meaning"), _ENVIRONMENT)], quiet=[name for name, _ in _ENVIRONMENT])
    raise InvalidArgumentError(
        f"no topic or command {topic!r}: the topics are {', '.join(_TOPICS)}", hint="rlds --help"
    )
