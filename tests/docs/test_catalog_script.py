"""The script of the catalogs filters and sorts their tables, without a server."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from chromium import browser, needs_chromium

import datasets_rl
from datasets_rl import Settings, list_datasets, sources
from datasets_rl.sources import importable_sources
from datasets_rl.sources.purposes import PURPOSES

pytestmark = needs_chromium
SCRIPT = Path(datasets_rl.__file__).parents[1] / "docs" / "catalog.js"
PAGE = """<!doctype html><meta charset="utf-8"><script src="{}"></script><div class="catalog" data-sources><table>
<thead><tr><th>dataset</th><th>steps</th><th>download</th><th>action</th><th>used for</th></tr></thead><tbody>
<tr><td>d4rl/hopper</td><td>~ 1,000,000</td><td>152.8 MB</td><td>cont[3]</td><td>benchmark, offline-to-online</td></tr>
<tr><td>atari_dqn/Pong/1</td><td>50,000,000</td><td>~ 11.2 GB</td><td>disc[6]</td><td>benchmark, image</td></tr>
<tr><td>demo/pendulum</td><td>15,000</td><td></td><td>cont[1]</td><td></td></tr>
<tr><td>d4rl/pen</td><td>5,000</td><td>950 kB</td><td>cont[24]</td><td>imitation, offline-to-online</td></tr></tbody></table></div>"""
NAMES = "return [...document.querySelectorAll('tbody tr:not([hidden])')].map((row) => row.cells[0].textContent)"


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    folder = tmp_path_factory.mktemp("catalog")
    (folder / "page.html").write_text(PAGE.format(SCRIPT.as_uri()))
    with browser(folder / "profile") as driver:
        driver.get((folder / "page.html").as_uri())
        yield driver
        assert [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"] == []


@pytest.fixture
def shown(driver):
    """Return the names of the rows that are shown, in their order."""
    driver.refresh()
    return lambda: driver.execute_script(NAMES)


def choose(driver, label, value):
    script = "const at = document.querySelector(`select[aria-label=${arguments[0]}]`); at.value = arguments[1]; at.onchange()"
    driver.execute_script(script, label, value)


def test_words_filter_the_rows_and_the_rest_is_counted(driver, shown):
    driver.find_element("css selector", "input[type=search]").send_keys("D4RL cont")

    assert shown() == ["d4rl/hopper", "d4rl/pen"]
    assert driver.find_element("css selector", "output").text == "2 of 4 datasets"


@pytest.mark.parametrize(
    ("label", "value", "expected"),
    [
        ("source", "d4rl", ["d4rl/hopper", "d4rl/pen"]),
        ("action", "disc", ["atari_dqn/Pong/1"]),
        ("purpose", "offline-to-online", ["d4rl/hopper", "d4rl/pen"]),
        ("purpose", "image", ["atari_dqn/Pong/1"]),
        ("size", "up to 100 MB", ["d4rl/pen"]),
        ("size", "above 10 GB", ["atari_dqn/Pong/1"]),
    ],
)
def test_rows_are_chosen_by_source_purpose_action_and_size(driver, shown, label, value, expected):
    choose(driver, label, value)

    assert shown() == expected


def test_a_column_sorts_by_its_numbers_both_ways_with_unknown_ones_last(driver, shown):
    download = driver.find_elements("css selector", "th button")[2]
    download.click()
    rising = shown()
    download.click()

    assert rising == ["d4rl/pen", "d4rl/hopper", "atari_dqn/Pong/1", "demo/pendulum"]
    assert shown() == ["atari_dqn/Pong/1", "d4rl/hopper", "d4rl/pen", "demo/pendulum"]
    assert driver.find_element("css selector", "th[aria-sort]").get_attribute("aria-sort") == "descending"


@pytest.fixture(scope="module")
def catalog(driver, tmp_path_factory):
    """Open the page of all datasets, as the site has it; return the ids of the rows that are shown."""
    page = tmp_path_factory.mktemp("all") / "page.html"
    head = f'<!doctype html><meta charset="utf-8"><script src="{SCRIPT.as_uri()}"></script>'
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPT.parent)
        page.write_text(head + importlib.import_module("catalog_pages").all_datasets_page())
    driver.get(page.as_uri())
    return lambda: driver.execute_script(NAMES)


@pytest.mark.slow
def test_the_page_of_all_datasets_filters_and_sorts_every_id(driver, catalog, tmp_path):
    every = {source.name: {f"{source.name}/{one}" for one in source.ids()} for source in importable_sources()[0]}
    nothing_stored = Settings(home=tmp_path)

    assert set(catalog()) == set().union(*every.values())
    assert driver.find_element("css selector", "output").text == f"{len(catalog())} datasets"
    for name in ("og_marl", "katakomba", "minari"):
        choose(driver, "source", name)
        assert set(catalog()) == every[name]
    choose(driver, "source", "")
    for purpose in PURPOSES:
        choose(driver, "purpose", purpose)
        assert set(catalog()) == {*list_datasets(used_for=purpose, settings=nothing_stored)}
    choose(driver, "purpose", "")
    steps = next(one for one in driver.find_elements("css selector", "th button") if one.text == "steps")
    steps.click()
    steps.click()
    known = [sources.find(one).steps for one in catalog()]
    assert [one or 0 for one in known] == sorted((one or 0 for one in known), reverse=True)
