"""The packages of the wheel, and the README with links that work on the page of a package index.

The packages are `datasets_rl`, and two folders of the root that become part of it. An editable install adds the root to
the path of Python, which type checkers read too: they do not run the import hook that a table of folders needs.
`datasets_rl` then finds the two folders beside itself.
"""

import re
import sys
from pathlib import Path

from setuptools import find_packages, setup

EDITABLE = "editable_wheel" in sys.argv
FOLDERS = {} if EDITABLE else {"datasets_rl.cli": "cli", "datasets_rl.recipes": "recipes"}
PAGES = "https://github.com/datasets-rl/datasets-rl/blob/main/"
IMAGES = "https://raw.githubusercontent.com/datasets-rl/datasets-rl/main/"


def absolute_link(link: re.Match[str]) -> str:
    """Return the end of a link to a file of the repository with the address of that file."""
    path = link[1]
    return f"]({IMAGES if path.endswith(('.png', '.svg', '.webp')) else PAGES}{path})"


readme = Path(__file__).with_name("README.md").read_text(encoding="utf-8")

setup(
    long_description=re.sub(r"\]\((?!\w+:|#)([^)\s]+)\)", absolute_link, readme),
    long_description_content_type="text/markdown",
    packages=[
        *find_packages(include=["datasets_rl", "datasets_rl.*"]),
        *FOLDERS,
        *(f"{name}.{one}" for name, folder in FOLDERS.items() for one in find_packages(folder)),
    ],
    package_dir={"": "."} if EDITABLE else FOLDERS,
)
