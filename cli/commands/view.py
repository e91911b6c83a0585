"""``rlds view``: a page in the browser with the distributions and the episodes of stored datasets."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from datasets_rl.disk import expand_home
from datasets_rl.errors import InvalidArgumentError

from .. import candidates
from ..options import Shell, dataset_arguments, name_of, write_file
from ..output import Facts, Lines, Result, size_text

if TYPE_CHECKING:
    from datasets_rl.look.page import Panel

GROUP = "Look"


def run(
    shell: Shell,
    datasets: Annotated[
        list[str],
        typer.Argument(
            metavar="ID|PATH...",
            help="Stored datasets to compare, or a mixture's file.",
            autocompletion=candidates.stored_ids,
        ),
    ],
    port: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Port of the server; by default the first free port from 8765."),
    ] = None,
    browser: Annotated[
        bool | None, typer.Option("--open/--no-open", help="Open a browser. By default, only where there is a display.")
    ] = None,
    export: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the page with some episodes to an HTML file, and exit.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Overwrite an existing file.")] = False,
    audited: Annotated[
        bool, typer.Option("--audit", help="Audit the datasets first, and show the findings with their episodes.")
    ] = False,
    compared: Annotated[
        bool,
        typer.Option(
            "--diff",
            help="Compare two datasets first, as `rlds diff` does, and show their episodes on the same axes.",
        ),
    ] = False,
    episode: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="With --diff: the episode of the first dataset that is shown first."),
    ] = None,
) -> Result:
    """Show stored datasets in the browser: distributions, episodes, images and rows.

    The page is served to this machine only, at an address with a secret token. Ctrl-C ends the server. With --diff, the two
    datasets may also be versions, addresses and raw files, as of `rlds diff`.

    \b
    Examples:
      rlds view demo/pendulum
      rlds view d4rl/hopper-medium-v2 d4rl/hopper-expert-v2
      rlds view mix.toml --port 9000 --no-open
      rlds view demo/pendulum --audit --export report.html
      rlds view demo/pendulum:0001 demo/pendulum --diff
    """
    if episode is not None and not compared:
        raise InvalidArgumentError("--episode is given without --diff", hint="add --diff, and give two datasets")
    with ExitStack() as stack:
        if compared:
            panels = _open_compared(shell, datasets, stack)
        else:
            panels = [panel for one in datasets for panel in _open_panels(shell, one)]
        pairs = panels[0].pairs
        shown = None if pairs is None else pairs.first if episode is None else pairs.pair_of(episode)
        if audited:
            _audit(shell, panels)
        if export is not None:
            return _export(panels, shown, export, force=force)
        return _serve(panels, shown, port, stack.pop_all(), browser=browser)


def _serve(
    panels: list[Panel], pair: int | None, port: int | None, opened: ExitStack, *, browser: bool | None
) -> Result:
    from datasets_rl.look.page import ViewServer

    server = ViewServer(panels, port=port)
    place = "" if panels[0].pairs is None else "#/pairs" if pair is None else f"#/pair/{pair}"
    url = f"{server.url}{place}"

    def serve() -> None:
        with opened:
            if _has_display() if browser is None else browser:
                import webbrowser

                webbrowser.open(url)
            server.run()

    forward = f"ssh -L {server.port}:localhost:{server.port} HOST"
    return Result(
        {"url": url, "datasets": [panel.name for panel in panels], "pid": os.getpid()},
        [Lines((url,))],
        quiet=[url],
        asides=[Lines((f"Ctrl-C ends the server. From another machine, first: {forward}",))],
        then=serve,
    )


def _audit(shell: Shell, panels: list[Panel]) -> None:
    """Audit the datasets of the panels, and add the findings."""
    from datasets_rl.auditing import audit

    for panel in panels:
        found = audit(panel.stored.folder, settings=shell.settings)
        panel.findings = [finding.to_json() for finding in found.findings]


def _open_compared(shell: Shell, datasets: list[str], stack: ExitStack) -> list[Panel]:
    """Return the panels of two datasets of any kind that `rlds diff` takes, with their difference."""
    if len(datasets) != 2:
        are = "dataset is" if len(datasets) == 1 else "datasets are"
        raise InvalidArgumentError(f"{len(datasets)} {are} given, expected 2 with --diff", hint="name two datasets")
    from datasets_rl.differences import compare
    from datasets_rl.downloading.opened import opened
    from datasets_rl.look.page import Pairs, Panel

    first, second = (
        stack.enter_context(opened(expand_home(one) if one.startswith("~") else one, settings=shell.settings))
        for one in datasets
    )
    found = compare(first, second, names=(datasets[0], datasets[1]), show=shell.settings.progress)
    return [Panel(first, name=datasets[0], pairs=Pairs(found, first, second)), Panel(second, name=datasets[1])]


def _open_panels(shell: Shell, dataset: str) -> list[Panel]:
    """Return a panel for a dataset, or a panel for each member of a mixture."""
    from datasets_rl.look.page import Panel

    if dataset.endswith(".toml"):
        from datasets_rl.datasets.open_mixture import load_mixture

        mixed = load_mixture(dataset, download=False, home=shell.settings.home)
        shares = mixed.sampler.shares.tolist()
        members = [mixed[number] for number in range(len(shares))]
        return [
            Panel(one.stored, name=name_of(shell, one.data_path, one.manifest), share=share)
            for one, share in zip(members, shares, strict=True)
        ]
    from datasets_rl.format.reader import StoredDataset
    from datasets_rl.store.find import locate

    stored = StoredDataset(folder := locate(**dataset_arguments(shell, dataset)))
    return [Panel(stored, name=name_of(shell, folder, stored.manifest))]


def _export(panels: list[Panel], pair: int | None, export: Path, *, force: bool) -> Result:
    from datasets_rl.look.page import report_page

    if expand_home(export).is_dir():
        raise InvalidArgumentError(
            f"{export} cannot be written: the path is a folder", hint="give a file, as in report.html"
        )
    page = report_page(panels, pair=pair)
    write_file(export, page, force=force)
    size, names = len(page), [panel.name for panel in panels]
    data: dict[str, Any] = {"file": str(export), "bytes": size, "datasets": names}
    facts = Facts((("file", str(export)), ("size", size_text(size)), ("datasets", ", ".join(names))))
    return Result(data, [facts], quiet=[str(export)])


def _has_display() -> bool:
    """Return whether a browser that is started here can show a window."""
    if os.environ.get("CI") or os.environ.get("SSH_CONNECTION"):
        return False
    return sys.platform in {"darwin", "win32"} or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
