"""Files at any address: on this machine, on a web server, or in a bucket.

    download("https://host/antmaze.npz")     url/https/host/antmaze.npz
    download("~/data/gripper")               url/file/home/me/data/gripper

The files have the layout of another source, which is recognized from the files and reads the files.
"""

from __future__ import annotations

from typing_extensions import override

from datasets_rl.sources.address import SCHEMES, address_of_name, is_quoted
from datasets_rl.sources.addressed import Addressed
from datasets_rl.sources.base import Selection

__all__ = ["SOURCE", "Url"]


class Url(Addressed):
    """Source of addresses other than addresses of the Hugging Face hub."""

    name = "url"
    names = "addresses and paths, such as https://host/file.npz"

    @override
    def address(self, name: str, selection: Selection) -> str:
        return address_of_name(name)

    @override
    def is_name(self, name: str) -> bool:
        scheme, _, rest = name.partition("/")
        return scheme in SCHEMES and is_quoted(rest)


SOURCE = Url()
