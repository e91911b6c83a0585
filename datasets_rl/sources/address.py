"""Addresses of datasets, and the ids under which the datasets are stored: an id for each address, and back.

hf://user/name, hf://datasets/user/name       hf/user/name
hf://datasets/user/name@revision/a.hdf5       hf/user/name/a.hdf5, and the revision
https://host/folder/a.npz                     url/https/host/folder/a.npz
/home/me/data                                 url/file/home/me/data

A path has the id of the folder that the links in the path lead to, so that a folder has one id.
Characters that a folder's name should not have are percent-encoded.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote, unquote
from urllib.request import url2pathname

from datasets_rl.disk import TRASH_NAME, real_path
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.format.current import CURRENT_FILE, VERSION_NAME

SCHEMES = ("file", "gs", "http", "https", "s3")
"""Schemes of the source ``url``. The scheme of the hub is ``hf``."""
_LOCAL = "url/file/"
_SCHEME = re.compile(rf"({'|'.join((*SCHEMES, 'hf'))})://")
_REPOSITORY = re.compile(r"[A-Za-z0-9][-\w.]*/[A-Za-z0-9][-\w.]*", re.ASCII)
_HUB = re.compile(r"hf://(?:datasets/)?(?P<repository>[^/@]*/[^/@]*)(?:@(?P<revision>[^/]*))?(?:/(?P<path>.*))?")
_RESERVED = re.compile(rf"{VERSION_NAME.pattern}|{TRASH_NAME.pattern}|(build|trash)-.*|raw|recorded|{CURRENT_FILE}")
"""Names of entries in the folder of a dataset, below which the folder of another dataset would be taken for a part of
the dataset."""


def is_address(dataset: str) -> bool:
    """Return whether a text begins with the scheme of an address."""
    return _SCHEME.match(dataset) is not None


def id_of_address(address: str | Path) -> tuple[str, str]:
    """Return the id of the dataset at an address, and the revision in the address, which may be empty.

    Args:
        address: An address, ``https://host/a.npz``, or the path of a file or a folder.

    Raises:
        InvalidArgumentError: If the text is not an address, has a user name or a password, or is the address of a file
            and names another machine.
    """
    text = real_path(address).as_uri() if isinstance(address, Path) else address
    if text.startswith("hf://"):
        repository, revision, path = _split_hub_address(text)
        return "/".join(filter(None, ("hf", repository, _quote_path(path, text)))), revision
    scheme, mark, rest = text.partition("://")
    if scheme not in SCHEMES or not mark or not rest.strip("/"):
        raise InvalidArgumentError(f"{text!r} is not an address, expected one that begins with {_schemes_text()}")
    host = rest.partition("/")[0]
    if "@" in host:
        raise InvalidArgumentError(
            f"the address of {host.rpartition('@')[2]} has a user name or a password, which would be stored with the data",
            hint="give the address as a mirror of an id: the credentials of mirrors are not stored",
        )
    # An address of a file may have escaped characters, and the id is the same.
    name = _quote_path((unquote(rest) if scheme == "file" else rest).strip("/"), text)
    if scheme == "file" and isinstance(address, str):
        if host not in {"", "localhost"}:
            raise InvalidArgumentError(
                f"{text!r} names the host {host!r}, expected file:///path for files of this machine"
            )
        return id_of_address(Path(url2pathname(rest.removeprefix(host))))
    return f"url/{scheme}/{name}", ""


def address_of_name(name: str) -> str:
    """Return the address of a name of the source ``url``: ``https://host/a.npz`` of ``https/host/a.npz``."""
    scheme, _, rest = name.partition("/")
    path = unquoted_path(rest)
    return Path(f"/{path}").as_uri() if scheme == "file" else f"{scheme}://{path}"


def path_of_id(dataset_id: str) -> Path | None:
    """Return the path of the files of an id, if the id is the id of a path of this machine, or else None."""
    return Path(f"/{unquoted_path(dataset_id[len(_LOCAL) :])}") if dataset_id.startswith(_LOCAL) else None


def hub_address(name: str, revision: str = "") -> str:
    """Return the address of a name of the source ``hf``, at a revision."""
    user, repository, *path = name.split("/", 2)
    at = f"@{revision}" if revision else ""
    return "/".join((f"hf://datasets/{user}/{repository}{at}", *map(unquoted_path, path)))


def is_quoted(path: str) -> bool:
    """Return whether `id_of_address` returns a path, so that each address has a single id."""
    try:
        return bool(path) and _quote_path(unquoted_path(path), path) == path
    except InvalidArgumentError:
        return False


def repository_of(address: str) -> tuple[str, str]:
    """Split ``hf://user/name@revision`` into the repository and the revision, or an empty text without a revision.

    Raises:
        InvalidArgumentError: If the text is not the address of a repository.
    """
    repository, revision, path = _split_hub_address(address)
    if path or address.startswith("hf://datasets/"):
        raise _not_on_hub(address)
    return repository, revision


def _split_hub_address(address: str) -> tuple[str, str, str]:
    match = _HUB.fullmatch(address.rstrip("/"))
    revision = "" if match is None else match["revision"]
    if match is None or revision == "" or not _REPOSITORY.fullmatch(match["repository"]):
        raise _not_on_hub(address)
    return match["repository"], revision or "", match["path"] or ""


def _not_on_hub(address: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{address!r} is not an address of a dataset, expected hf://USER/NAME[@REVISION]")


def _quote_path(path: str, address: str) -> str:
    parts = path.strip("/").split("/") if path.strip("/") else []
    if odd := [part for part in parts if part in {"", ".", ".."}]:
        raise InvalidArgumentError(f"{address!r} has the part {odd[0]!r} between two slashes, expected a name")
    return "/".join(map(_quote_name, parts))


def unquoted_path(path: str) -> str:
    """Return the path of which an id has the quoted form: ``lab/raw/x`` of ``lab/=raw/x``."""
    return "/".join(unquote(part.removeprefix(_ODD)) for part in path.split("/"))


def _quote_name(name: str) -> str:
    quoted = _ESCAPED.sub(lambda found: quote(found[0], safe=""), name)
    is_odd = quoted.startswith(".") or _RESERVED.fullmatch(quoted) is not None
    return f"{_ODD}{quoted}" if is_odd else quoted


_ESCAPED = re.compile(r"[^\w.~-]+")
"""Characters that are percent-encoded: letters of every alphabet stay as people wrote the letters."""
_ODD = "="
"""The beginning of a hidden or reserved name in an id. A quoted name has no such character."""


def _schemes_text() -> str:
    return ", ".join(f"{scheme}://" for scheme in (*SCHEMES[:-1], "hf")) + f" or {SCHEMES[-1]}://"
