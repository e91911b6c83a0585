"""The table of docs/audit.md: faults that were planted, found and missed, and false alarms in clean recordings.

python tests/auditing/table.py [--clean N] [CHECK ...]
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict

import clean
from planting import STRENGTHS, audited, cases, measure, mixture_audited


def planted_rows(checks: list[str]) -> dict[str, dict[str, list[int]]]:
    """Return by fault and strength: planted, found, falsely named episodes."""
    rows: dict[str, dict[str, list[int]]] = defaultdict(lambda: {strength: [0, 0, 0] for strength in STRENGTHS})
    for fault, kind, strength in cases():
        if checks and fault.check not in checks:
            continue
        counts = measure(fault, kind, strength)
        if counts[1] < counts[0] or counts[2]:
            print(
                f"{fault.name} {kind} {strength}: found {counts[1]} of {counts[0]}, false {counts[2]}", file=sys.stderr
            )
        row = rows[f"{fault.check} | {fault.name}"]
        row[strength] = [one + more for one, more in zip(row[strength], counts, strict=True)]
    return rows


def clean_rows(episodes: int, checks: list[str]) -> tuple[int, dict[str, Counter[str]]]:
    """Return the number of clean episodes, and by check the number of falsely named episodes by level."""
    total, false = 0, defaultdict(Counter)
    for kind in clean.KINDS:
        # Several recordings, because what is usual follows from the recording.
        for seed in range(1, 1 + max(1, episodes // 50)):
            recording = clean.record(kind, min(episodes, 50), seed)
            total += len(recording.episodes)
            for finding in audited(recording, [one for one in checks if one != "conventions"] or None).findings:
                print(f"clean {kind} {seed}: {finding.level} {finding.check}: {finding.message}", file=sys.stderr)
                false[finding.check][finding.level] += max(1, len(finding.episodes))
        if not checks or "conventions" in checks:
            for finding in mixture_audited([clean.record(kind, 50, seed) for seed in (1, 2)]).findings:
                print(f"clean mixture {kind}: {finding.level} {finding.message}", file=sys.stderr)
                false[finding.check][finding.level] += 1
    return total, false


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clean", type=int, default=400, help="clean episodes of each kind")
    parser.add_argument("checks", nargs="*")
    options = parser.parse_args()
    rows = planted_rows(options.checks)
    print("| check | fault | weak | medium | strong | false |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, row in sorted(rows.items()):
        cells = [f"{row[strength][1]} of {row[strength][0]}" for strength in STRENGTHS]
        print(f"| {name} | {' | '.join(cells)} | {sum(one[2] for one in row.values())} |")
    if options.clean:
        total, false = clean_rows(options.clean, options.checks)
        print(f"\nIn {total:,} clean episodes:")
        for check, counts in sorted(false.items()):
            print(f"  {check}: {dict(counts)}")


if __name__ == "__main__":
    main()
