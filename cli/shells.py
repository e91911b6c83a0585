"""What each shell needs to complete the command lines of ``rlds``: a script, and a line in its start-up file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from typer.completion import get_completion_script  # type: ignore[attr-defined]  # Typer re-exports it without a mark

from datasets_rl import disk
from datasets_rl.errors import InvalidArgumentError

COMPLETE = "_RLDS_COMPLETE"
"""The environment variable with which the scripts ask for candidates, as Typer reads it."""
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
"""Typer's own script for bash passes the words as bash splits them, and bash splits an id at an @."""
_ZSH_START = """#compdef rlds
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -u }
"""


def _script_of(shell: str) -> str:
    """Return the script of Typer, which for zsh also starts the completion of zsh."""
    text = get_completion_script(prog_name="rlds", complete_var=COMPLETE, shell=shell)
    return (_ZSH_START + text.removeprefix("#compdef rlds").lstrip() if shell == "zsh" else text) + "\n"


@dataclass(frozen=True)
class ShellFiles:
    """The script for a shell, and the files in the user's home folder that it reads."""

    script: str
    start: str = ""
    """The start-up file that gets a line; empty for a shell that finds the script itself."""
    target: str = ""
    """Where the script goes; by default to the configuration folder of this package."""


SHELLS: Mapping[str, ShellFiles] = {
    "bash": ShellFiles(_BASH, start=".bashrc"),
    "fish": ShellFiles(_script_of("fish"), target="fish/completions/rlds.fish"),
    "zsh": ShellFiles(_script_of("zsh"), start=".zshrc"),
}


def find_shell(name: str) -> str:
    """Return the shell of this name or, without one, the user's.

    Raises:
        InvalidArgumentError: If there is no script for it.
    """
    found = name or Path(os.environ.get("SHELL", "")).name
    if found not in SHELLS:
        raise InvalidArgumentError(
            f"there is no completion for the shell {found!r}; expected {', '.join(SHELLS)}",
            hint="name one of them: rlds completion install bash",
        )
    return found


def install(shell: str) -> list[Path]:
    """Write the script of a shell and the line that reads it; return the files that changed."""
    script, start = _files(shell)
    changed = []
    if _text(script) != SHELLS[shell].script:
        script.parent.mkdir(parents=True, exist_ok=True)
        disk.write_text(script, SHELLS[shell].script)
        changed.append(script)
    if start is not None:
        line = f'[ -f "{script}" ] && . "{script}"  {_MARK}'
        rest = [one for one in _text(start).splitlines() if _MARK not in one]
        changed += _rewrite(start, [*rest, line])
    return changed


def uninstall(shell: str) -> list[Path]:
    """Remove what `install` wrote; return the files that changed."""
    script, start = _files(shell)
    changed = []
    if script.is_file():
        script.unlink()
        changed.append(script)
    if start is not None and start.is_file():
        changed += _rewrite(start, [one for one in _text(start).splitlines() if _MARK not in one])
    return changed


def _files(shell: str) -> tuple[Path, Path | None]:
    files = SHELLS[shell]
    folder = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    # ZDOTDIR is the folder of the start-up files of zsh.
    home = Path(os.environ.get("ZDOTDIR") or Path.home()) if shell == "zsh" else Path.home()
    script = folder / (files.target or f"datasets-rl/completion.{shell}")
    return script, home / files.start if files.start else None


def _text(path: Path) -> str:
    return path.read_text("utf-8", errors="surrogateescape") if path.is_file() else ""


def _rewrite(path: Path, lines: list[str]) -> list[Path]:
    """Replace the lines of a user's file; a link to a file elsewhere stays a link."""
    text = "\n".join(lines) + "\n" * bool(lines)
    if text == _text(path):
        return []
    target = path.resolve()
    mode = target.stat().st_mode & 0o777 if target.exists() else 0o644
    with disk.disk_errors(target):
        temporary = target.with_name(f".{target.name}.rlds.tmp")
        temporary.write_text(text, "utf-8", errors="surrogateescape")
        temporary.chmod(mode)
        disk.publish_file(temporary, target)
    return [path]
