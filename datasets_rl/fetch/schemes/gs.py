"""``gs://bucket/object``: a public Google Cloud Storage object over plain HTTPS.

Needs no SDK, no account and no permission to list the bucket. ``STORAGE_EMULATOR_HOST`` names another endpoint, as it
does for Google's own libraries.
"""

from __future__ import annotations

import os
from urllib.parse import quote

from datasets_rl.fetch.schemes._base import Ask, NotThere, Remote

IN_PLACE = False
_ENDPOINT = "https://storage.googleapis.com"


def resolve(url: str, ask: Ask) -> Remote:
    """Return the plain address of an object; '$' and spaces in its name are percent-encoded, slashes stay."""
    del ask
    bucket, _, name = url.partition("://")[2].partition("/")
    if not bucket or not name:
        raise NotThere("it has no object; write gs://bucket/object")
    endpoint = os.environ.get("STORAGE_EMULATOR_HOST") or _ENDPOINT
    if "://" not in endpoint:
        endpoint = f"http://{endpoint}"
    return Remote(f"{endpoint.rstrip('/')}/{quote(bucket)}/{quote(name)}", url)
