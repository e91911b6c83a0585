"""``rlds config``: the settings, and where each is from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from datasets_rl.settings import SETTINGS, SettingValue, setting_values

from ...options import Shell
from ...output import Result, Table

GROUP = "Maintain"
HELP = """Print the settings, with the value and the origin of each; change them in a file.

An option takes precedence over an environment variable, a variable over the project's rlds.toml, and that over the
user's file. The home and the mirrors of an rlds.toml are used only after `rlds config trust`.

\b
Examples:
  rlds config
  rlds config set home /data/rl
  rlds config unset jobs --project
"""


def run(shell: Shell) -> Result:
    """Return every setting with value and origin."""
    values = dict(setting_values())
    if shell.root is not None:
        values["home"] = SettingValue(shell.settings.home, "--root")
    rows = tuple((key, _with_tilde(setting_text(one.value)), _with_tilde(one.origin)) for key, one in values.items())
    data = [
        {"key": key, "value": setting_json(one.value), "origin": one.origin, "variable": SETTINGS[key].variable}
        for key, one in values.items()
    ]
    return Result(
        {"settings": data},
        [Table(("setting", "value", "from"), rows)],
        quiet=[f"{key} = {setting_text(one.value)}" for key, one in values.items()],
    )


def _with_tilde(text: str) -> str:
    """Return a text with the user's home folder as a tilde, so that the table fits a terminal."""
    home = str(Path.home())
    return f"~{text[len(home) :]}" if text.startswith(f"{home}/") else text


def setting_text(value: Any) -> str:
    """Return the value of a setting for readers."""
    if isinstance(value, Mapping):
        return "; ".join(f"{source}={','.join(urls)}" for source, urls in value.items()) or "none"
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def setting_json(value: Any) -> Any:
    """Return the value of a setting for a JSON document."""
    if isinstance(value, Mapping):
        return {source: list(urls) for source, urls in value.items()}
    return str(value) if isinstance(value, Path) else value
