"""What each shell needs to complete the command lines of ``rlds``: a script, and a line in its start-up file."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from typer.completion import get_completion_script  # type: ignore[attr-defined]  # re-exported by Typer without a mark

from datasets_rl import disk
from datasets_rl.errors import InvalidArgumentError

COMPLETE = "_RLDS_COMPLETE"
"""The environment variable with which the scripts ask Typer for candidates."""
_MARK = "# completion of rlds"

_BASH = r"""# Completion of rlds for bash: rlds completion install bash
_rlds_completion() {
    local line="${COMP_LINE:0:COMP_POINT}" words current prefix="" mark cut candidate
    read -ra words <<< "$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    current="${words[${#words[@]}-1]}"
    # Bash replaces only what follows the last of these characters; an @ is replaced, too.
    for mark in : = @; do
        [[ $COMP_WORDBREAKS == *$mark* && $current == *$mark* ]] || continue
        cut="${current%"$mark${current##*$mark}"}"
        [[ $mark == @ ]] || cut+="$mark"
        if (( ${#cut} > ${#prefix} )); then prefix="$cut"; fi
    done
    COMPREPLY=()
    while read -r candidate; do
        COMPREPLY+=("$(printf %q "${candidate#"$prefix"}")")
    done < <(COMP_WORDS="${words[*]}" COMP_CWORD=$((${#words[@]} - 1)) COMPLETE=complete_bash "${words[0]}" 2>/dev/null)
    # A source is followed by a name, and not by a blank.
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == */ ]]; then compopt -o nospace 2>/dev/null; fi
}
complete -o default -F _rlds_completion rlds
""".replace("COMPLETE=", f"{COMPLETE}=")
"""Typer's script for bash passes the words as bash splits them, and bash splits an id at an @."""
_ZSH_START = """#compdef rlds
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -u }
"""


def _script_of(shell: str) -> str:
    """Return the script of Typer, which for zsh also starts the completion of zsh."""
    text = get_completion_script(prog_name="rlds", complete_var=COMPLETE, shell=shell)
    return (_ZSH_START + text.removeprefix("#compdef rlds").lstrip() if shell == "zsh" else text) + "\n"


@dataclass(frozen=True)
class ShellFiles:
    """The script for a shell, and the start-up files of the shell in the user's home folder."""

    script: str
    start: str = ""
    """The start-up file that gets a line. Empty for a shell that finds the script itself."""
    target: str = ""
    """The path of the script. By default in the configuration folder of this package."""


SHELLS: Mapping[str, ShellFiles] = {
    "bash": ShellFiles(_BASH, start=".bashrc"),
    "fish": ShellFiles(_script_of("fish"), target="fish/completions/rlds.fish"),
    "zsh": ShellFiles(_script_of("zsh"), start=".zshrc"),
}


def find_shell(name: str) -> str:
    """Return the shell of this name. By default the user's shell.

    Raises:
        InvalidArgumentError: If there is no script for the shell.
    """
    found = name or Path(os.environ.get("SHELL", "")).name
    if found not in SHELLS:
        raise InvalidArgumentError(
            f"there is no completion for the shell {found!r}, expected {', '.join(SHELLS)}",
            hint="name a shell: rlds completion install bash",
        )
    return found


def install(shell: str) -> list[Path]:
    """Write the script of a shell and the line that reads the script, and return the changed files.

    Raises:
        InvalidArgumentError: If a script of the user already exists there.
    """
    script, start = _files(shell)
    changed = []
    if _text(script) != SHELLS[shell].script:
        if os.path.lexists(script) and not _is_own(script):
            raise InvalidArgumentError(
                f"{script} is not replaced: the file is not a script of rlds",
                hint=f"move the file. `rlds completion show {shell}` prints the script",
            )
        script.parent.mkdir(parents=True, exist_ok=True)
        disk.write_text(script, SHELLS[shell].script)
        changed.append(script)
    if start is not None:
        before = _text(start)
        rest = _without_own_line(before)
        end = "" if not rest or rest.endswith("\n") else "\n"
        changed += _rewrite(start, before, f'{rest}{end}[ -f "{script}" ] && . "{script}"  {_MARK}\n')
    return changed


def uninstall(shell: str) -> list[Path]:
    """Remove the lines and files of `install`, and return the changed files."""
    script, start = _files(shell)
    changed = []
    if _is_own(script):
        disk.remove_file(script)
        changed.append(script)
    if start is not None and start.is_file():
        before = _text(start)
        changed += _rewrite(start, before, _without_own_line(before))
    return changed


def _is_own(script: Path) -> bool:
    """Return whether a file is a script of this package, perhaps of another version."""
    return COMPLETE in _text(script)


def _without_own_line(text: str) -> str:
    # Only "\n" ends a line: text of the user may hold other characters at which `str.splitlines` splits.
    return re.sub(rf'^\[ -f ".*{re.escape(_MARK)}\r?(\n|\Z)', "", text, flags=re.MULTILINE)


def _files(shell: str) -> tuple[Path, Path | None]:
    files = SHELLS[shell]
    folder = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    # ZDOTDIR is the folder of the start-up files of zsh.
    home = Path(os.environ.get("ZDOTDIR") or Path.home()) if shell == "zsh" else Path.home()
    script = folder / (files.target or f"datasets-rl/completion.{shell}")
    return script, home / files.start if files.start else None


def _text(path: Path) -> str:
    """Return the text of a file with the original line ends, so that the bytes can be restored. Empty without a file."""
    return path.read_bytes().decode("utf-8", "surrogateescape") if path.is_file() else ""


def _rewrite(path: Path, before: str, text: str) -> list[Path]:
    if text == before:
        return []
    disk.rewrite_file(path, text.encode("utf-8", "surrogateescape"))
    return [path]
