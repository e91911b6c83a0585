"""The tutorials run as printed, and print what they show.

A page is a series of fenced blocks, which run one after the other in a folder and with a home of their own:

* `python` is a cell of one program. A block `text` after it is what it prints.
* `console` has commands after `$ `, each with what it prints at a terminal. A command that shows `next: ` fails.
* A block with a title is a file: `toml title="dataset.toml"`.

Words and integers that a page shows must be printed in their order. Decimals are figures of one run: any decimal may
stand in their place, and any number in a line of a training program, `step 1,000  value 0.1 ...`. `...` is any text.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
import threading
from pathlib import Path

import gymnasium
import pytest
import torch

import datasets_rl
from datasets_rl.cli.app import main
from datasets_rl.recipes.results import point_maze, push

if sys.platform == "win32":
    pytest.skip("the tutorials show a terminal of Linux", allow_module_level=True)

import fcntl
import struct
import termios

FOLDER = Path(datasets_rl.__file__).parents[1] / "docs" / "tutorials"
PAGES = sorted(path.stem for path in FOLDER.glob("*.md") if path.stem != "README")
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
DECIMAL, SPACE = r"-?\d[\d,]*\.\d+(?:e[-+]\d+)?", r"\s+"
PLACES = ("/home/me", "/scratch/me")
"""Folders of the pages, which are in the folder of the test here."""
LONG = {"cluster", "goals", "offline-to-online", "robot-images"}
"""Pages that take long with fewer updates, too."""
FEWER: dict[str, dict[str, str]] = {
    "offline-rl": {"updates = 5000": "updates = 50"},
    "goals": {
        "--episodes 300": "--episodes 12",
        "30,000 steps, 300 episodes": "1,200 steps, 12 episodes",
        "updates=300": "updates=10",
    },
    "cluster": {"--jobs 2": "--jobs 1"},
    "images": {"updates=200": "updates=5"},
    "robot-images": {
        "--episodes 200": "--episodes 4",
        "200 episodes, 100%": "4 episodes, 100%",
        "4,474 steps in 200 episodes, 2.8 MB": "75 steps in 4 episodes, 285.5 kB",
    },
    "offline-to-online": {
        "steps=2000": "steps=300",
        ", -1183.3, -1511.0, -1536.9, -1066.9, -2.2, -131.1, -136.5, -253.1]": "]",
        ", -1439.9, -1535.9, -1202.1, -1065.4, -779.0, -647.4, -530.9, -662.0]": "]",
    },
}
"""Numbers of the pages that the default tests replace by smaller ones."""
LONG = {
    "offline-rl": ("rlds train",),
    "goals": ("rlds train",),
    "robot-images": ("rlds train",),
    "offline-to-online": ("rlds train",),
    "cluster": (
        "RLDS_OFFLINE=1 rlds doctor",
        "SLURM_ARRAY_TASK_ID",
        "STOP=50",
        "OMP_NUM_THREADS=1 python",
        "for ",
        "python",
    ),
}
"""Beginnings of commands that only the slow tests run: they take longer than a second, or start processes."""
CLAIMS = {
    "offline-rl": "scores.mean() > 85 and error < 10",
    "goals": "success_rate(train(1.0)) > 90 > 30 > success_rate(train(0.0))",
    "images": "evaluate(train(3, Compose(stack, shift)), 3) > evaluate(train(1, None), 1) + 4",
    "offline-to-online": "recorded.episodes['return'].max() > -400",
}
"""What the text of a page says of its figures, in the names of its program."""


class Terminal:
    """A terminal that stdout and stderr are redirected to; `text` is what it has shown.

    It is wider than 100 columns by the length of the folder of the test, so that no path is broken.
    """

    def __init__(self, folder):
        self.columns = 100 + len(str(folder))

    def __enter__(self):
        self._master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, self.columns, 0, 0))
        self._read: list[bytes] = []
        self._reader = threading.Thread(target=self._collect)
        self._reader.start()
        self.stream = os.fdopen(slave, "w", buffering=1, encoding="utf-8")
        self._redirected = contextlib.ExitStack()
        self._redirected.enter_context(contextlib.redirect_stdout(self.stream))
        self._redirected.enter_context(contextlib.redirect_stderr(self.stream))
        return self

    def __exit__(self, *_):
        self._redirected.close()
        self.stream.close()
        self._reader.join()
        os.close(self._master)
        self.text = b"".join(self._read).decode().replace("\r\n", "\n")

    def _collect(self):
        with contextlib.suppress(OSError):  # which ends a terminal that is closed on the other side
            while data := os.read(self._master, 4096):
                self._read.append(data)


class Page:
    """A tutorial that is run block by block.

    Attributes:
        names: The variables of its program.
    """

    def __init__(self, stem, folder, *, whole):
        self.stem, self.folder, self.whole = stem, folder, whole
        self.names = {"__name__": "__main__"}
        self.printed = ""
        text = (FOLDER / f"{stem}.md").read_text(encoding="utf-8")
        for old, new in {} if whole else FEWER.get(stem, {}).items():
            assert old in text, f"{stem}.md has no {old!r}"
            text = text.replace(old, new)
        for long in LONG.get(stem, ()):
            assert f"$ {long}" in text, f"{stem}.md has no command {long!r}"
        self.blocks = BLOCK.findall(text)

    def run(self):
        for language, title, code in self.blocks:
            if title:
                Path(title).parent.mkdir(parents=True, exist_ok=True)
                Path(title).write_text(self.here(code), encoding="utf-8")
            elif language == "python":
                self.run_program(code)
            elif language == "console":
                self.run_commands(code)
            elif language == "text":
                self.compare(code, "the program above")
            else:
                pytest.fail(f"{self.stem}.md has a block of {language!r}, which nothing runs")
        assert not self.printed, f"the page does not show {self.printed!r}"

    def here(self, text):
        for place in PLACES:
            text = text.replace(place, f"{self.folder}{place}")
        return text

    def run_program(self, code):
        assert not self.printed, f"the page does not show {self.printed!r}"
        with Terminal(self.folder) as terminal:
            exec(compile(self.here(code), f"{self.stem}.md", "exec"), self.names)
        self.printed = terminal.text

    def run_commands(self, block):
        for one in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, shown = re.fullmatch(r"((?:[^\n]*\\\n)*[^\n]*)\n(.*)", one, re.DOTALL).groups()
            command = command.replace("\\\n", " ")
            if self.whole or not command.startswith(LONG.get(self.stem, ("-",))):
                with Terminal(self.folder) as terminal:
                    status = run_command(self.here(command), terminal)
                self.printed = terminal.text
                assert (status != 0) == ("  next: " in shown), f"{command} ended with {status}: {self.printed}"
                self.compare(shown, command)

    def compare(self, shown, what):
        printed, self.printed = self.printed.replace(str(self.folder), ""), ""
        assert pattern(shown).fullmatch(printed), f"{what} printed\n{printed}\nand the page shows\n{shown}"


def pattern(shown):
    """Return the expression for what may be printed where a page shows `shown`."""
    lines = [line_pattern(line) for line in shown.strip().splitlines()]
    return re.compile(rf"\s*{SPACE.join(lines)}\s*")


def line_pattern(line):
    step, rest = re.fullmatch(r"(step [\d,]+)?(.*)", line).groups("")
    figure = rf"(?:{DECIMAL}|-?\d[\d,]*)" if step else DECIMAL
    parts = re.split(rf"(\.\.\.|\s+|(?<![\w.]){figure})", rest)
    for place, part in enumerate(parts):
        if place % 2 == 0:
            parts[place] = re.escape(part)
        elif part == "...":
            parts[place] = r"(?:.|\n)*?"
        else:
            parts[place] = SPACE if part.isspace() else figure
    return "".join([re.escape(step), *parts])


def run_command(command, terminal):
    """Run a line of a shell and return its status; `rlds` and what gathers data run in this process, where that is the same."""
    words = shlex.split(os.path.expandvars(command))
    settings = dict(word.split("=", 1) for word in words[: next(i for i, one in enumerate(words) if "=" not in one)])
    words = words[len(settings) :]
    is_simple = not re.search(r"[|&;<>*]|\$\(", re.sub(r"'[^']*'", "", command))
    if is_simple and words[0] == "export":
        os.environ.update(word.split("=", 1) for word in words[1:])
        return 0
    if is_simple and words[0] == "rlds":
        with pytest.MonkeyPatch.context() as patch:
            for name, value in settings.items():
                patch.setenv(name, value)
            return main(words[1:])
    for gather in (point_maze, push):
        if is_simple and words[:3] == ["python", "-m", gather.__name__]:
            gather.main(words[3:])
            return 0
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    shell = ["bash", "-o", "pipefail", "-c", command]
    return subprocess.call(shell, stdout=terminal.stream, stderr=terminal.stream, env=environment)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the home of a user who has set nothing."""
    for name in [name for name in os.environ if name.startswith(("RLDS_", "XDG_"))]:
        monkeypatch.delenv(name)
    for name in ("CI", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    home = tmp_path / "home" / "me"
    home.mkdir(parents=True)
    monkeypatch.chdir(home)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USER", "me")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("RLDS_NO_PROGRESS", "1")
    environment, threads = dict(os.environ), torch.get_num_threads()
    torch.set_num_threads(1)
    yield tmp_path
    torch.set_num_threads(threads)
    for name, spec in list(gymnasium.registry.items()):
        if getattr(spec.entry_point, "__module__", None) == "__main__":  # a class of a page
            del gymnasium.registry[name]
    os.environ.clear()
    os.environ.update(environment)


@pytest.mark.parametrize("stem", [pytest.param(one, marks=[pytest.mark.slow] * (one in LONG)) for one in PAGES])
def test_a_tutorial_runs_as_printed(stem, folder):
    Page(stem, folder, whole=False).run()


@pytest.mark.slow
@pytest.mark.parametrize("stem", PAGES)
def test_a_tutorial_runs_as_printed_with_all_its_updates(stem, folder):
    page = Page(stem, folder, whole=True)
    page.run()

    assert eval(CLAIMS.get(stem, "True"), page.names)


@pytest.mark.parametrize(
    ("shown", "printed", "is_shown"),
    [
        ("score 0.5, 12 steps", "score -1,234.25,\n  12 steps\n", True),
        ("score 0.5, 12 steps", "score 0.5, 13 steps", False),
        ("first\n...\nlast", "first\nanother\nlast", True),
        ("first\n...", "another", False),
        ("step 1,000  score 35  low 1.5", "step 1,000  score 100  low 2", True),
        ("step 1,000  score 35", "step 2,000  score 35", False),
    ],
)
def test_words_and_integers_are_compared_and_decimals_are_not(shown, printed, is_shown):
    assert (pattern(shown).fullmatch(printed) is not None) == is_shown
