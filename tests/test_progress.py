"""The progress of long operations, on a terminal and in a log."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time

import pytest

from datasets_rl import progress


@pytest.fixture
def _short(monkeypatch):
    """Make every operation count as a long one."""
    monkeypatch.setattr(progress, "SHORT", -1.0)


def test_without_a_terminal_a_wait_is_reported_once(capsys, monkeypatch):
    monkeypatch.setattr(progress, "SILENT", 0.05)
    with progress.waiting("waiting for the hub"):
        time.sleep(0.25)
    with progress.waiting("nothing", show=False), progress.waiting("nothing"):
        pass
    with progress.report("hopper", 100):
        time.sleep(0.25)

    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "waiting for the hub"
    assert [line.split("[")[0] for line in lines[1:]] == ["hopper:   0% 0.00/100 "]


@pytest.mark.usefixtures("_short")
def test_a_log_gets_one_line_at_the_end_with_bytes_rate_and_share(capsys):
    with progress.report("hopper", 10_000_000, done=2_000_000) as advance:
        for _ in range(100):
            advance(30_000)

    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"hopper:  50% 5\.00M/10\.0M \[.*B/s\]\n", err)


@pytest.mark.usefixtures("_short")
def test_the_rate_excludes_bytes_of_an_earlier_run(capsys, monkeypatch):
    clock = iter([0.0, 2.0, 2.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with progress.report("hopper", 10_000_000, done=2_000_000) as advance:
        monkeypatch.setattr(progress, "LINE_EVERY", float("inf"))
        clock = iter([1.0, 2.0, 2.0])
        advance(3_000_000)

    assert "1.50MB/s" in capsys.readouterr().err


@pytest.mark.usefixtures("_short")
def test_a_log_gets_a_line_at_intervals(capsys, monkeypatch):
    monkeypatch.setattr(progress, "LINE_EVERY", 0.0)
    with progress.report("hopper", None, unit=" episodes") as advance:
        advance(3)
        advance(4)

    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" [")[0] for line in lines] == [
        "hopper: 3.00 episodes",
        "hopper: 7.00 episodes",
        "hopper: 7.00 episodes",
    ]
    assert not any("\r" in line for line in lines)


def test_short_work_writes_nothing_to_a_log(capsys):
    with progress.report("hopper", 10) as advance:
        advance(10)

    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("_short")
def test_failed_work_shows_its_last_progress(capsys):
    def work():
        with progress.report("hopper", 10) as advance:
            advance(4)
            raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        work()

    assert "40%" in capsys.readouterr().err


@pytest.mark.parametrize("show", [False, True])
def test_disabled_progress_prints_nothing(capsys, monkeypatch, show):
    monkeypatch.setattr(progress, "SHORT", -1.0)
    with progress.report("hopper", 10, show=show) as advance:
        advance(10)

    assert (capsys.readouterr().err != "") is show


@pytest.mark.usefixtures("_short")
def test_many_threads_lose_no_count(capsys):
    with progress.report("hopper", 80_000, unit=" rows") as advance:
        threads = [threading.Thread(target=lambda: [advance(1) for _ in range(10_000)]) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert "100% 80.0k/80.0k" in capsys.readouterr().err


@pytest.mark.first(1)
@pytest.mark.skipif(os.name == "nt", reason="needs a pseudo-terminal")
@pytest.mark.parametrize(("lines", "columns"), [(24, 0), (24, 80), (0, 0), (0, 80)])
def test_a_terminal_gets_one_bar_that_is_redrawn(lines, columns):
    import fcntl
    import pty
    import struct
    import termios

    code = """
import time
from datasets_rl.progress import report
with report("hopper", 10_000_000, done=1_000_000) as advance:
    for _ in range(9):
        time.sleep(0.05)
        advance(1_000_000)
"""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    process = subprocess.Popen([sys.executable, "-c", code], stderr=theirs)
    os.close(theirs)
    seen = b""
    while chunk := read(ours):
        seen += chunk
    assert process.wait() == 0
    os.close(ours)

    text = seen.decode()
    assert text.count("\r") > 3
    assert text.count("\n") == 1
    assert re.search(r"hopper: 100%\|.*10\.0M/10\.0M \[.*<.*B/s\]\s*\r?\n$", text)


def read(terminal):
    try:
        return os.read(terminal, 4096)
    except OSError:
        return b""


@pytest.mark.slow
@pytest.mark.parametrize("widgets", [True, False])
def test_a_notebook_shows_a_bar_with_a_total_that_becomes_known(widgets):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    without = "" if widgets else "import sys; sys.modules['ipywidgets'] = None"
    cell = nbformat.v4.new_code_cell(
        f"""{without}
from datasets_rl import progress
with progress.report("conversion", None, unit="steps", done=5) as report:
    report(10); report.set_total(100); report(85)
"""
    )
    client = nbclient.NotebookClient(nbformat.v4.new_notebook(cells=[cell]), timeout=60, kernel_name="python3")
    client.execute()

    texts = [output["text"] for output in cell.outputs if output.output_type == "stream"]
    bars = [state for state in client.widget_state.values() if "max" in state]
    if widgets:
        assert [(bar["value"], bar["max"], bar["bar_style"]) for bar in bars] == [(100, 100, "success")]
        assert not texts
    else:
        assert not bars
        assert "conversion: 100%" in "".join(texts)
        assert "Warning" not in "".join(texts)
