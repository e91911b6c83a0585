"""``hf://datasets/owner/repo[@revision]/path``: a file in a dataset repository on the Hugging Face hub.

A branch or tag is resolved to its commit once, so that an interrupted download goes on with the same file. The digest
and the size of large files come with the answer and are checked. HF_ENDPOINT and HF_TOKEN are honoured. The bytes are
fetched by our own engine: the hub's client does not resume after its process was killed.
"""

from __future__ import annotations

import os
import re

from datasets_rl.fetch.schemes._base import Ask, NotThere, Remote

IN_PLACE = False
_ADDRESS = re.compile(r"hf://datasets/(?P<repo>[^/@]+/[^/@]+)(?:@(?P<revision>[^/]+))?/(?P<path>.+)")
_SHA256 = re.compile(r"[0-9a-f]{64}")


def resolve(url: str, ask: Ask) -> Remote:
    """Return the address of the file in one commit, with what the hub knows about it."""
    # Imported here: only data from the hub needs it.
    from huggingface_hub import hf_hub_url

    found = _ADDRESS.fullmatch(url)
    if found is None:
        raise NotThere("it is not of the form hf://datasets/owner/repo[@revision]/path")
    repo, path = found["repo"], found["path"]
    endpoint = os.environ.get("HF_ENDPOINT")
    headers = _headers()

    def at(revision: str | None) -> str:
        return hf_hub_url(repo, path, repo_type="dataset", revision=revision, endpoint=endpoint)

    try:
        named = at(found["revision"])
    except ValueError as error:
        raise NotThere(f"it does not name a repository: {error}") from error
    facts = ask(named, headers)
    commit = facts.get("x-repo-commit") or found["revision"] or "main"
    size, digest = facts.get("x-linked-size", ""), facts.get("x-linked-etag", "").strip('W/"')
    return Remote(
        at(commit),
        f"hf://datasets/{repo}@{commit}/{path}",
        headers,
        size=int(size) if size.isdecimal() else None,
        sha256=digest if _SHA256.fullmatch(digest) else None,
        etag=digest or None,
    )


def _headers() -> dict[str, str]:
    # Not build_hf_headers: to name the tool at work in its User-Agent, that makes a request of its own.
    from huggingface_hub import constants, get_token

    token = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token()
    return {"Authorization": f"Bearer {token}"} if token else {}
