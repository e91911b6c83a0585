"""The table of docs/audit.md: faults that were planted, found and missed, and false alarms in clean recordings.

python tests/auditing/table.py [--clean N] [--seed N] [--write] [CHECK ...]

The rules were tuned on the recordings of the seeds 0 to 8 and 200 to 250. The page has the counts of other seeds.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from pathlib import Path

import clean
from planting import STRENGTHS, audited, cases, measure, mixture_audited

PAGE = Path(__file__).parents[2] / "docs" / "audit.md"
SEED = 500
"""The first seed of the recordings of the page, which no rule was tuned on."""
START, END = "<!-- measured by tests/auditing/table.py -->", "<!-- end of the measured tables -->"


def planted_rows(checks: list[str], seed: int) -> dict[str, dict[str, list[int]]]:
    """Return by fault and strength: planted, found, falsely named episodes."""
    rows: dict[str, dict[str, list[int]]] = defaultdict(lambda: {strength: [0, 0, 0] for strength in STRENGTHS})
    for fault, kind, strength in cases():
        if checks and fault.check not in checks:
            continue
        counts = measure(fault, kind, strength, seed=seed)
        if counts[1] < counts[0] or counts[2]:
            print(
                f"{fault.name} {kind} {strength}: found {counts[1]} of {counts[0]}, false {counts[2]}", file=sys.stderr
            )
        row = rows[f"{fault.check} | {fault.name}"]
        row[strength] = [one + more for one, more in zip(row[strength], counts, strict=True)]
    return rows


def clean_rows(episodes: int, checks: list[str], first: int) -> tuple[int, dict[str, Counter[str]]]:
    """Return the number of clean episodes, and by check the number of falsely named episodes by level."""
    total, false = 0, defaultdict(Counter)
    for kind in clean.KINDS:
        # Several recordings, because what is usual follows from the recording.
        for seed in range(first + 1, first + 1 + max(1, episodes // 50)):
            recording = clean.record(kind, min(episodes, 50), seed)
            total += len(recording.episodes)
            for finding in audited(recording, [one for one in checks if one != "conventions"] or None).findings:
                print(f"clean {kind} {seed}: {finding.level} {finding.check}: {finding.message}", file=sys.stderr)
                false[finding.check][finding.level] += max(1, len(finding.episodes))
        if not checks or "conventions" in checks:
            for finding in mixture_audited([clean.record(kind, 50, seed) for seed in (first + 1, first + 2)]).findings:
                print(f"clean mixture {kind}: {finding.level} {finding.message}", file=sys.stderr)
                false[finding.check][finding.level] += 1
    return total, false


def table_lines(rows: dict[str, dict[str, list[int]]]) -> list[str]:
    """Return the table of planted faults as Markdown."""
    lines = ["| check | fault | weak | medium | strong | false |", "| --- | --- | ---: | ---: | ---: | ---: |"]
    for name, row in sorted(rows.items()):
        check, fault = (part.strip() for part in name.split("|"))
        cells = [f"{row[strength][1]} of {row[strength][0]}" for strength in STRENGTHS]
        lines.append(
            f"| `{check}` | {fault.replace('_', ' ')} | {' | '.join(cells)} | {sum(one[2] for one in row.values())} |"
        )
    total = [sum(row[strength][n] for row in rows.values() for strength in STRENGTHS) for n in range(3)]
    shares = [
        f"{sum(row[strength][1] for row in rows.values()) / sum(row[strength][0] for row in rows.values()):.1%} of the {strength}"
        for strength in STRENGTHS
    ]
    found = f"In all, {total[1]:,} of {total[0]:,} planted episodes are found: {', '.join(shares)} ones."
    return [*lines, "", f"{found} {total[2]:,} others are named."]


def clean_lines(total: int, false: dict[str, Counter[str]]) -> list[str]:
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
        f"Of {total:,} clean episodes of {len(clean.KINDS)} kinds, {counts}, and {hinted}:",
        "",
        "| check | proof | strong | hint |",
        "| --- | ---: | ---: | ---: |",
    ]
    return lines + [
        f"| `{check}` | {one['proof']} | {one['strong']} | {one['hint']} |" for check, one in sorted(false.items())
    ]


def write(lines: list[str]) -> None:
    """Write the tables into the page."""
    text = PAGE.read_text("utf-8")
    before, rest = text.split(f"{START}\n", 1)
    PAGE.write_text(f"{before}{START}\n\n" + "\n".join(lines) + f"\n\n{END}{rest.split(END, 1)[1]}", "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clean", type=int, default=150, help="clean episodes of each kind")
    parser.add_argument("--seed", type=int, default=SEED, help="first seed of the recordings")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/audit.md")
    parser.add_argument("checks", nargs="*")
    options = parser.parse_args()
    lines = table_lines(planted_rows(options.checks, options.seed))
    if options.clean:
        lines += clean_lines(*clean_rows(options.clean, options.checks, options.seed))
    print("\n".join(lines))
    if options.write:
        write(lines)


if __name__ == "__main__":
    main()
