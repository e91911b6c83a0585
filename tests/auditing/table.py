"""The table of docs/audit.md: faults that were planted, found and missed, and false alarms in clean recordings.

python tests/auditing/table.py [--clean N] [--seed N] [--kept FILE] [--write] [CHECK ...]

The rules were tuned on the recordings of the seeds 0 to 8, 200 to 250 and 500 to 503. The page has the counts of other seeds.
A run takes about ten minutes on two cores. With a file for what was measured, a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeAlias

import clean
from planting import EPISODES, STRENGTHS, Fault, Strength, audited, cases, measure, mixture_audited
from results import Results

from datasets_rl.auditing.conventions import Conventions
from datasets_rl.auditing.finding import Level

PAGE = Path(__file__).parents[2] / "docs" / "audit.md"
SEED = 600
"""The first seed of the recordings of the page, which no rule was tuned on."""
_RECORDED = 50
"""The most episodes of a clean recording."""
START, END = "<!-- measured by tests/auditing/table.py -->", "<!-- end of the measured tables -->"


Rows: TypeAlias = dict[str, dict[str, list[float]]]
"""By check and fault, and by strength: planted, found, falsely named episodes, kinds, and the sum of the shares that are found."""
Alarms: TypeAlias = dict[str, Counter[str]]
"""By check and level: falsely named episodes."""


def planted_rows(
    planted: Iterable[tuple[Fault, str, Strength]],
    seed: int,
    results: Results,
    *,
    name: str = "",
    episodes: int = EPISODES,
) -> Rows:
    """Return what was counted of faults, kinds and strengths. The name of a table tells its results from others."""
    rows: Rows = defaultdict(lambda: {strength: [0] * 5 for strength in STRENGTHS})
    for fault, kind, strength in planted:
        case = f"{name}{fault.name} {kind} {strength} {seed}"
        one = functools.partial(measure, fault, kind, strength, seed=seed, episodes=episodes)
        counts = results.of(case, one)
        if counts[1] < counts[0] or counts[2]:
            print(f"{case}: found {counts[1]} of {counts[0]}, false {counts[2]}", file=sys.stderr)
        row = rows[f"{fault.check} | {fault.name}"]
        more = [*counts, 1, counts[1] / counts[0]]
        row[strength] = [one + other for one, other in zip(row[strength], more, strict=True)]
    return rows


def clean_rows(episodes: int, checks: list[str], first: int, results: Results) -> tuple[int, Alarms]:
    """Return the number of clean episodes, and the false alarms."""
    total, false = 0, defaultdict(Counter)
    for kind in clean.KINDS:
        # Several recordings, because what is usual follows from the recording.
        for seed in range(first + 1, first + 1 + max(1, episodes // _RECORDED)):
            size = min(episodes, _RECORDED)
            total += size
            case = " ".join(["clean", kind, str(size), str(seed), *checks])
            of_kind = [one for one in checks if one != Conventions.name] or None
            for check, level, named in results.of(case, functools.partial(clean_alarms, kind, size, seed, of_kind)):
                false[check][level] += max(1, named)
        if not checks or Conventions.name in checks:
            case = f"clean mixture {kind} {first}"
            for check, level in results.of(case, functools.partial(_clean_mixture, kind, first)):
                false[check][level] += 1
    return total, false


def clean_alarms(
    kind: str,
    episodes: int,
    seed: int,
    checks: list[str] | None,
    change: Callable[[clean.Recording], clean.Recording] = lambda recording: recording,
) -> list[tuple[str, Level, int]]:
    """Return the check, the level and the number of named episodes of each finding in a clean recording after a change."""
    found = audited(change(clean.record(kind, episodes, seed)), checks)
    for one in found.findings:
        print(f"clean {kind} {seed}: {one.level} {one.check}: {one.message}", file=sys.stderr)
    return [(one.check, one.level, len(one.episodes)) for one in found.findings]


def _clean_mixture(kind: str, first: int) -> list[tuple[str, str]]:
    """Return the check and the level of each finding in a mixture of two clean recordings of a kind."""
    found = mixture_audited([clean.record(kind, _RECORDED, seed) for seed in (first + 1, first + 2)])
    for one in found.findings:
        print(f"clean mixture {kind}: {one.level} {one.message}", file=sys.stderr)
    return [(one.check, one.level) for one in found.findings]


def table_lines(rows: Rows, *, episodes: int = EPISODES) -> list[str]:
    """Return the table of planted faults as Markdown."""
    lines = ["| check | fault | weak | medium | strong | false |", "| --- | --- | ---: | ---: | ---: | ---: |"]
    for name, row in sorted(rows.items()):
        check, fault = (part.strip() for part in name.split("|"))
        cells = [f"{row[strength][1]} of {row[strength][0]}" for strength in STRENGTHS]
        lines.append(
            f"| `{check}` | {fault.replace('_', ' ')} | {' | '.join(cells)} | {sum(one[2] for one in row.values())} |"
        )
    of = {strength: [sum(row[strength][n] for row in rows.values()) for n in range(5)] for strength in STRENGTHS}
    planted, named, others, kinds, _ = (sum(counts) for counts in zip(*of.values(), strict=True))
    shares = [f"{counts[1] / counts[0]:.1%} of the {strength}" for strength, counts in of.items()]
    equally = [f"{counts[4] / counts[3]:.1%}" for counts in of.values()]
    text = (
        f"In all, {named:,} of {planted:,} planted episodes are found: {', '.join(shares)} ones. With each of the {kinds:,} combinations of a "
        f"fault, a kind and a strength counted equally, {', '.join(equally[:-1])} and {equally[-1]} are found. {others:,} others are named. A "
        f"recording has {episodes} episodes before a fault is planted."
    )
    return [*lines, "", text]


def clean_lines(total: int, false: Alarms, *, kinds: int = len(clean.KINDS)) -> list[str]:
    """Return the false alarms in clean episodes as Markdown."""
    sure, hints = (
        sum(one[level] for one in false.values() for level in levels) for levels in (("proof", "strong"), ("hint",))
    )
    counts = (
        f"{sure:,} have a finding by mistake that is strong or a proof, which is {1000 * sure / total:.1f} of 1,000"
    )
    hinted = f"{hints:,} a hint, which is {50 * hints / total:.1f} of 50"
    lines = [
        "",
        f"Of {total:,} clean episodes, {total // kinds} of each of {kinds} kinds, {counts}, and {hinted}:",
        "",
        "| check | proof | strong | hint |",
        "| --- | ---: | ---: | ---: |",
    ]
    return lines + [
        f"| `{check}` | {one['proof']} | {one['strong']} | {one['hint']} |" for check, one in sorted(false.items())
    ]


def write(lines: list[str], start: str, end: str) -> None:
    """Write a table into the page, between two comments."""
    before, rest = PAGE.read_text("utf-8").split(f"{start}\n", 1)
    PAGE.write_text(f"{before}{start}\n\n" + "\n".join(lines) + f"\n\n{end}{rest.split(end, 1)[1]}", "utf-8")


def arguments() -> argparse.ArgumentParser:
    """Return the arguments of the programs that write a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=SEED, help="first seed of the recordings")
    parser.add_argument("--kept", type=Path, help="file of what was measured before the run was stopped")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/audit.md")
    parser.add_argument("checks", nargs="*")
    return parser


def main() -> None:
    parser = arguments()
    parser.add_argument("--clean", type=int, default=150, help="clean episodes of each kind")
    options = parser.parse_args()
    results = Results(options.kept)
    chosen = (one for one in cases() if not options.checks or one[0].check in options.checks)
    lines = table_lines(planted_rows(chosen, options.seed, results))
    if options.clean:
        lines += clean_lines(*clean_rows(options.clean, options.checks, options.seed, results))
    print("\n".join(lines))
    if options.write:
        write(lines, START, END)


if __name__ == "__main__":
    main()
