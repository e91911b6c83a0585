"""Change notes: check the files of `changes/`, or write them into CHANGELOG.md under a new version.

python changes.py            # list all errors of the notes
python changes.py 0.2.0      # the notes become the section of this version, dated today, and their files are deleted
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).parent
NOTES = ROOT / "changes"
CHANGELOG = ROOT / "CHANGELOG.md"
SECTIONS = {
    "datasets": "Datasets",
    "buffers": "Replay buffers",
    "preprocessing": "Preprocessing",
    "commands": "Command line",
    "training": "Training",
    "fixed": "Fixed",
}


def notes(folder: Path) -> list[Path]:
    """Return the files of all notes, sorted by name."""
    return sorted(path for path in folder.iterdir() if path.name != "README.md")


def errors(folder: Path) -> Iterator[str]:
    """Yield what is wrong with the notes."""
    for path in notes(folder):
        parts = path.name.split(".")
        if len(parts) != 3 or parts[2] != "md" or parts[1] not in SECTIONS:
            yield f"{path.name}: expected NAME.SECTION.md, with one of the sections {', '.join(SECTIONS)}"
        elif not path.read_text(encoding="utf-8").strip():
            yield f"{path.name}: expected one or two sentences; the file is empty"


def version_text(folder: Path, version: str, date: str) -> str:
    """Return the section of a version: the notes below the headings of their sections."""
    lines = [f"## {version}, {date}", ""]
    for section, heading in SECTIONS.items():
        found = [path for path in notes(folder) if path.name.split(".")[1] == section]
        if found:
            lines += [f"### {heading}", "", *(_item(path) for path in found), ""]
    return "\n".join(lines)


def _item(path: Path) -> str:
    return "* " + "\n  ".join(path.read_text(encoding="utf-8").strip().splitlines())


def main(arguments: list[str]) -> int:
    """Check the notes; with the number of a version, write them into the changelog.

    Returns:
        0, or 1 if a note is wrong.
    """
    if found := list(errors(NOTES)):
        print("\n".join(found), file=sys.stderr)
        return 1
    if arguments:
        text = CHANGELOG.read_text(encoding="utf-8")
        head, mark, rest = text.partition("\n## ")
        section = version_text(NOTES, arguments[0], datetime.now(timezone.utc).date().isoformat())
        CHANGELOG.write_text(f"{head}\n{section}{mark}{rest}", encoding="utf-8")
        for path in notes(NOTES):
            path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
