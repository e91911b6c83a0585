"""Parts of the slow tests that take about the same time: ``make slow PART=3/9`` runs the third of nine.

A part is tests that follow each other, so that most modules are in one part. `slow_seconds.json` has the mean seconds
of a case of each test that takes a second or more, or has `MANY` cases; other tests count as `SHORT`. The seconds of a busy machine do, as only
their ratios matter. The nightly run keeps its times, and this program makes the table of them:

    python tests/slow_parts.py REPORT.xml ...     reports of pytest, of runs with --junitxml
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree as ET

TABLE = Path(__file__).with_name("slow_seconds.json")
SHORT = 0.5
MANY = 20
"""Of so many cases, the seconds are known well enough, and `SHORT` for each would move the bounds of the parts."""


def name_of(nodeid):
    """Return the name of a test without the values of its parameters, as reports spell it."""
    return nodeid.partition("[")[0].replace(".py::", ".").replace("::", ".").replace("/", ".")


def parts_of(seconds, count):
    """Return the part of each test, 0 to count - 1, for the seconds of all tests in their order."""
    total, before, parts = sum(seconds), 0.0, []
    for one in seconds:
        parts.append(min(int((before + one / 2) * count / total), count - 1))
        before += one
    return parts


def selected(items, part):
    """Return which tests are in a part such as ``3/9``."""
    number, _, count = part.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise ValueError(f"the part is {part!r}, expected a number and how many there are, such as 3/9")
    table = json.loads(TABLE.read_text("utf-8"))
    parts = parts_of([table.get(name_of(item.nodeid), SHORT) for item in items], int(count))
    return [one == int(number) - 1 for one in parts]


def main(reports):
    taken = defaultdict(list)
    for report in reports:
        for case in ET.parse(report).iter("testcase"):
            taken[f"{case.get('classname')}.{case.get('name').partition('[')[0]}"].append(float(case.get("time")))
    means = {name: sum(seconds) / len(seconds) for name, seconds in sorted(taken.items())}
    table = {name: round(mean, 1 + (mean < 1)) for name, mean in means.items() if mean >= 1 or len(taken[name]) >= MANY}
    TABLE.write_text(json.dumps(table, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
