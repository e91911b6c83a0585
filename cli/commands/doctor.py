"""``rlds doctor``: does this machine have what a download and a training run need?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from datasets_rl.errors import DatasetsRLError, InvalidArgumentError

from .. import candidates
from ..errors import EXIT_CODES, SOME_FAILED, Explanation
from ..options import Shell
from ..output import Block, Facts, Lines, Result, Table, size_text

if TYPE_CHECKING:
    from datasets_rl.settings import Settings

    from ..machine import Check, Reachability

GROUP = "Maintain"
_AREAS = ("environment", "packages", "disk", "network")


def run(
    shell: Shell,
    dataset: Annotated[
        str,
        typer.Argument(
            metavar="[ID|SOURCE]",
            help="Probe every address of this dataset or source. By default, of a dataset of each source.",
            autocompletion=candidates.all_ids,
        ),
    ] = "",
) -> Result:
    """Check settings, packages, the disk and the network, and print what to do about each problem.

    Nothing is downloaded and nothing is changed. The exit code is 0 if there is no problem, and otherwise the code of
    a command with the same problem: 2 settings, 4 network, 5 a changed file, 6 disk space, 7 packages. 1 for several.

    \b
    Examples:
      rlds doctor
      rlds doctor d4rl/hopper-medium-v2
      rlds doctor minari --json
    """
    from .. import machine

    settings, checks = _settings(shell)
    reached, errors, needed = machine.reachability(dataset, settings)
    checks += [
        *machine.environment_checks(),
        *machine.package_checks(),
        *machine.disk_checks(settings.home, needed),
        *machine.network_checks(settings),
    ]
    problems = [_check_problem(one) for one in checks if one.problem is not None]
    network = [_reach_problem(one) for one in reached if one.problem is not None]
    network += [_listing_problem(name, shell.explained(error)) for name, error in errors.items()]
    # If other upstreams answer, the cause is not this machine.
    remarks = [] if dataset or len(network) == len(reached) + len(errors) else network
    problems += [] if remarks else network
    codes = {one["code"] for one in problems}
    return Result(
        {
            "dataset": dataset or None,
            "healthy": not problems,
            "problems": problems,
            "remarks": remarks,
            "checks": checks,
            "files": reached,
        },
        [*_blocks(checks, reached), *_verdict(problems, remarks)],
        quiet=[f"{one['what']}: {one['hint']}" for one in problems],
        code=codes.pop() if len(codes) == 1 else SOME_FAILED * bool(codes),
    )


def _settings(shell: Shell) -> tuple[Settings, list[Check]]:
    """Return the settings and the check of the settings. For invalid settings, return the defaults and the problem."""
    from datasets_rl.settings import Settings

    from ..machine import Check

    try:
        return shell.settings, [Check("environment", "settings", "valid, and listed by `rlds config`")]
    except InvalidArgumentError as error:
        problem = Check("environment", "settings", error.message, InvalidArgumentError, str(error.remedy))
        return Settings.from_env({}, files=()), [problem]


def _code(problem: type[Exception]) -> int:
    return next((row.code for row in EXIT_CODES if issubclass(problem, row.kinds)), SOME_FAILED)


def _check_problem(check: Check) -> dict[str, Any]:
    code = _code(check.problem or DatasetsRLError)
    return {"what": f"{check.name}: {check.found}", "hint": check.hint, "code": code}


def _reach_problem(one: Reachability) -> dict[str, Any]:
    why = "; ".join(f"{probe.url}: {one.misfit(probe)}" for probe in one.probes)
    hint = f"try again later, check the proxy, or name a mirror: rlds config set mirrors.{one.dataset.partition('/')[0]} URL"
    code = _code(one.problem or DatasetsRLError)
    return {"what": f"{one.dataset}: no address serves {one.file}: {why}", "hint": hint, "code": code}


def _listing_problem(dataset: str, explanation: Explanation) -> dict[str, Any]:
    return {
        "what": ": ".join(filter(None, (dataset, explanation.what, explanation.why))),
        "hint": explanation.hint,
        "code": explanation.code,
    }


def _blocks(checks: list[Check], reached: list[Reachability]) -> list[Block]:
    blocks: list[Block] = []
    for area in _AREAS:
        pairs = tuple((one.name, _marked(one)) for one in checks if one.area == area)
        blocks.append(Facts(pairs, title=area))
    rows = tuple(_probe_row(one, number) for one in reached for number in range(len(one.probes)))
    if rows:
        blocks.append(Table(("dataset", "address", "answer", "time", "size", "resumes"), rows, title="addresses"))
    return blocks


def _marked(check: Check) -> str:
    hint = f" [{check.hint}]" if check.hint else ""
    return f"{'PROBLEM: ' if check.problem else ''}{check.found}{hint}"


def _probe_row(one: Reachability, number: int) -> tuple[str, ...]:
    probe = one.probes[number]
    stands_for = f" (1 of {one.of:,} files)" if one.of > 1 and not number else ""
    answer = one.misfit(probe) or ("ok" if probe.status is None else str(probe.status))
    size, resumes = (size_text(probe.size), "yes" if probe.ranges else "no") if not probe.problem else ("-", "-")
    name = one.dataset if not number else ""
    return (f"{name}{stands_for}", probe.url, answer, f"{probe.seconds * 1e3:.0f} ms", size, resumes)


def _verdict(problems: list[dict[str, Any]], remarks: list[dict[str, Any]]) -> list[Block]:
    count = f"{len(problems)} problem{'s' * (len(problems) > 1)}" if problems else "no problem"
    lines = [f"{one['what']}; next: {one['hint']}" for one in problems]
    left = Lines(tuple(f"{one['what']}; next: {one['hint']}" for one in remarks), title="upstreams that do not answer")
    return [*([left] if remarks else []), Lines((f"{count} found", *lines), title="verdict")]
