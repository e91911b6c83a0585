"""``hf://datasets/owner/repo[@revision]/path``: a file in a dataset repository on the Hugging Face hub.

A branch or tag is resolved to a commit once, so that an interrupted download resumes with the same file. An address that
names a commit needs no request. The response includes the digest of large files, which is checked. HF_ENDPOINT and
HF_TOKEN are supported. The HTTP engine of this package fetches the bytes, because the client of the hub cannot resume a
download in another process.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, urljoin

from datasets_rl.fetch.asset import Asset, Folder
from datasets_rl.fetch.schemes.base import Ask, Get, NotServedError, Remote, header_bytes, listed_entries, stated_bytes

IN_PLACE = False
_ADDRESS = re.compile(r"hf://datasets/(?P<repo>[^/@]+/[^/@]+)(?:@(?P<revision>[^/]+))?/(?P<path>.+)")
_FOLDER = re.compile(r"hf://datasets/(?P<repo>[^/@]+/[^/@]+)(?:@(?P<revision>[^/]+))?(?:/(?P<path>.*))?")
_NEXT = re.compile(r'<([^>]*)>;\s*rel="?next"?')
_SHA256 = re.compile(r"[0-9a-f]{64}")
_COMMIT = re.compile(r"[0-9a-f]{40}")


def resolve(url: str, ask: Ask) -> Remote:
    """Return the address of the file in a commit, with the size and digest that the hub reports."""
    # Imported here because only data from the hub needs the package.
    from huggingface_hub import hf_hub_url

    match = _ADDRESS.fullmatch(url)
    if match is None:
        raise NotServedError("the address is not of the form hf://datasets/owner/repo[@revision]/path")
    repo, path = match["repo"], match["path"]
    endpoint = os.environ.get("HF_ENDPOINT")
    headers = _auth_headers()

    def file_url_at(revision: str | None) -> str:
        return hf_hub_url(repo, path, repo_type="dataset", revision=revision, endpoint=endpoint)

    try:
        file_url = file_url_at(match["revision"])
    except ValueError as error:
        raise NotServedError(f"the address does not name a repository: {error}") from error
    if _COMMIT.fullmatch(match["revision"] or ""):
        return Remote(file_url, url, headers)
    reported = ask(file_url, headers)
    commit = reported.get("x-repo-commit") or match["revision"] or "main"
    digest = reported.get("x-linked-etag", "").strip('W/"')
    return Remote(
        file_url_at(commit),
        f"hf://datasets/{repo}@{commit}/{path}",
        headers,
        size=header_bytes(reported, "x-linked-size"),
        sha256=digest if _SHA256.fullmatch(digest) else None,
        etag=digest or None,
    )


def folder(url: str, get: Get) -> Folder:
    """List all files below a folder of a commit, with the sizes and digests that the hub reports."""
    from huggingface_hub import constants

    match = _FOLDER.fullmatch(url)
    if match is None:
        raise NotServedError("the address is not of the form hf://datasets/owner/repo[@revision]/path")
    repo, below = match["repo"], (match["path"] or "").strip("/")
    api = f"{os.environ.get('HF_ENDPOINT') or constants.ENDPOINT}/api/datasets/{repo}"
    try:
        commit: str = get(f"{api}/revision/{quote(match['revision'] or 'main', safe='')}", _auth_headers())[0]["sha"]
        tree = f"{api}/tree/{commit}{f'/{quote(below)}' if below else ''}?recursive=true"
        files = [entry for entry in _listed(tree, get, key="path") if entry["type"] == "file"]
        start = f"{below}/" if below else ""
        assets = tuple(_asset_from_entry(entry, f"hf://datasets/{repo}@{commit}", start) for entry in files)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise NotServedError(f"the answer of the Hugging Face API cannot be parsed: {error!r}") from error
    return Folder(f"hf://datasets/{repo}@{commit}/{below}", commit, assets)


def repositories(owner: str, get: Get) -> list[str]:
    """List the dataset repositories of an owner, as ``owner/repo``."""
    from huggingface_hub import constants

    url = f"{os.environ.get('HF_ENDPOINT') or constants.ENDPOINT}/api/datasets?author={quote(owner, safe='')}&limit=500"
    try:
        return [str(entry["id"]) for entry in _listed(url, get, key="id")]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise NotServedError(f"the answer of the Hugging Face API cannot be parsed: {error!r}") from error


def _listed(url: str, get: Get, *, key: str) -> Iterator[Mapping[str, Any]]:
    host = url.partition("/api/")[0]

    def read_page(address: str) -> tuple[Sequence[Mapping[str, Any]], str | None]:
        entries, headers = get(address, _auth_headers())
        link = _NEXT.search(headers.get("link", ""))
        following = urljoin(url, link[1]) if link else None
        if following is not None and following.partition("/api/")[0] != host:
            # The request carries the token of the hub, which no other host may receive.
            raise NotServedError(
                "the Hugging Face API continues the list of files on another host, which may not receive the token: "
                f"{following}"
            )
        return entries, following

    return listed_entries(url, read_page, key=key)


def _asset_from_entry(entry: Mapping[str, Any], base: str, start: str) -> Asset:
    path: str = entry["path"]
    if not path.startswith(start):
        raise NotServedError(f"the hub lists {path!r}, which is not below the folder")
    large = entry.get("lfs") or {}
    digest = str(large.get("oid", "")).removeprefix("sha256:")
    return Asset(
        (f"{base}/{path}",),
        path[len(start) :],
        size=stated_bytes(large.get("size", entry["size"]), f"the size of {path}"),
        sha256=digest if _SHA256.fullmatch(digest) else None,
    )


def _auth_headers() -> dict[str, str]:
    # Not build_hf_headers, which sends a request to determine the tool for the User-Agent.
    from huggingface_hub import constants, get_token

    token = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token()
    return {"Authorization": f"Bearer {token}"} if token else {}
