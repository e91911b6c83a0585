"""The page in a real browser: datasets of states, of images, and of both; and the exported file."""

from __future__ import annotations

import re
import threading
from contextlib import ExitStack, contextmanager
from urllib.parse import parse_qs

import numpy as np
import pytest
import view_data
from chromium import browser, needs_chromium

from datasets_rl.differences import compare
from datasets_rl.look.page import Pairs, Panel, ViewServer, report_page

pytestmark = needs_chromium


class OnDemand(dict):
    """Values that are made when they are first asked for."""

    def __init__(self, make):
        super().__init__()
        self._make = make

    def __missing__(self, name):
        self[name] = self._make(name)
        return self[name]


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A dataset by the name of its kind, which is written when a test first asks for the dataset."""
    folder = tmp_path_factory.mktemp("viewed")
    return OnDemand(lambda kind: getattr(view_data, f"{kind}_dataset")(folder / kind))


@contextmanager
def served(*datasets, **options):
    server = ViewServer([Panel(one, **options) for one in datasets], port=0)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server.url
    finally:
        server.stop()
        thread.join()


@pytest.fixture(scope="module")
def urls(stored):
    """The address of a page for each dataset, and of a page for two."""
    datasets = {"two": ["state", "mixed"]}
    with ExitStack() as stack:
        yield OnDemand(lambda name: stack.enter_context(served(*(stored[kind] for kind in datasets.get(name, [name])))))


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


class Page:
    """The browser, and what a reader does with it."""

    def __init__(self, driver):
        self.driver = driver

    def open(self, url):
        if self.driver.current_url.partition("#")[0] == url.partition("#")[0]:
            self.driver.get("about:blank")  # for the browser, another place on the same page is no new page
        self.driver.get(url)
        self.wait("return overview && !main.hasAttribute('aria-busy') && main.childElementCount")

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def wait(self, script, *arguments):
        from selenium.webdriver.support.ui import WebDriverWait

        return WebDriverWait(self.driver, 30, poll_frequency=0.02).until(lambda _: self.run(script, *arguments))

    def text(self, selector="main"):
        return self.run("return document.querySelector(arguments[0]).innerText", selector)

    def has_text(self, text, selector="main"):
        self.wait("return document.querySelector(arguments[0])?.innerText.includes(arguments[1])", selector, text)

    def press(self, *keys):
        from selenium.webdriver import ActionChains

        ActionChains(self.driver, duration=0).send_keys(*keys).perform()

    def click(self, selector):
        self.driver.find_element("css selector", selector).click()

    def cells(self, key):
        """Return the two cells of a key in the row under the cursor."""
        script = """
            const line = [...document.querySelectorAll('table.row tbody tr')].find((node) => node.cells[0].innerText === arguments[0]);
            return line && [...line.cells].slice(1).map((node) => node.innerText)"""
        return self.wait(script, key)

    def corner(self, step):
        """Return the upper left pixel of the first image, once it is that of a step."""
        script = """
            const image = document.querySelector('figure img');
            if (!image.complete || !image.naturalWidth) return null;
            const canvas = Object.assign(document.createElement('canvas'), {width: 1, height: 1});
            canvas.getContext('2d').drawImage(image, 0, 0, 1, 1, 0, 0, 1, 1);
            const pixel = [...canvas.getContext('2d').getImageData(0, 0, 1, 1).data];
            return pixel[1] === arguments[0] ? pixel : null"""
        return self.wait(script, step)


@pytest.fixture
def page(chromium):
    """A page, after which the browser must have reported no error: of the script, the policy or a request."""
    chromium.get_log("browser")
    yield Page(chromium)
    assert [entry["message"] for entry in chromium.get_log("browser") if entry["level"] == "SEVERE"] == []


@pytest.fixture
def narrow(chromium):
    size = {"width": 375, "height": 700, "deviceScaleFactor": 1, "mobile": True}
    chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    yield
    chromium.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def numbers(text):
    return [float(word.replace("\u2212", "-")) for word in text.split()]


def test_the_overview_shows_counts_and_distributions(page, urls):
    page.open(urls["state"])
    page.wait(
        "return document.querySelectorAll('.charts svg').length === 8"
    )  # two of episodes, three more, observation

    text = page.text()
    assert "47" in text
    assert "in 3 episodes" in text
    assert "from all 47 steps" in text
    assert page.run("return document.querySelectorAll('.charts rect').length") > 20


def test_the_list_is_sorted_and_filtered_and_leads_to_episodes(page, urls, stored):
    returns = stored["state"].episodes["return"]
    numbers_of_list = "return [...document.querySelectorAll('#list a.open')].map((node) => Number(node.innerText))"
    page.open(urls["state"] + "#/episodes/0")
    page.run("[...document.querySelectorAll('#list th button')].find((node) => node.innerText === 'return').click()")
    page.wait("return document.querySelector('#list th[aria-sort=descending]')?.innerText.startsWith('return')")
    assert page.run(numbers_of_list) == np.argsort(-returns).tolist()

    page.click("input[aria-label=Filter]")
    page.press("length < 20", "\ue007")
    page.wait(f"return ({numbers_of_list.removeprefix('return ')}).length === 2")
    page.has_text("from 3 in all")
    page.click("#list tbody tr")
    page.has_text("length 12")
    page.press("j")
    page.has_text("length 5")


@pytest.mark.slow
def test_a_filter_with_a_mistake_is_explained_on_the_page(page, urls):
    page.open(urls["state"] + "#/episodes/0?where=retrun+%3E+5")
    page.has_text("retrun")
    page.driver.get_log("browser")  # the browser reports the answer 400

    assert page.run("return document.querySelector('input[aria-label=Filter]').value") == "retrun > 5"


def test_keys_move_the_cursor_and_the_row_shows_the_true_final_observation(page, urls, stored):
    dataset = stored["state"]
    page.open(urls["state"] + "#/episode/0/1")
    page.press("\ue014", "\ue014")  # right, right
    page.has_text("Row 7")
    assert numbers(page.cells("observation")[0]) == pytest.approx(
        dataset.column(("observation",))[7].tolist(), rel=1e-6
    )
    assert numbers(page.cells("reward")[1]) == pytest.approx(dataset.column(("next", "reward"))[7].tolist(), rel=1e-6)

    page.press("\ue010")  # End
    page.has_text("true final observation")
    page.has_text("after step 29, the last", ".player")
    final = dataset.final_states(("observation",))[1].tolist()
    assert numbers(page.cells("observation")[1]) == pytest.approx(final, rel=1e-6)
    assert page.cells("terminated") == ["false", "true"]
    assert page.run("return document.querySelectorAll('circle.final').length") == 3


@pytest.mark.slow
def test_the_list_of_keys_opens_and_closes(page, urls):
    page.open(urls["state"])
    page.press("?")
    page.has_text("play or pause", "dialog[open]")
    page.click("dialog button")
    page.wait("return !document.querySelector('dialog[open]')")


def test_images_follow_the_cursor_and_play(page, urls):
    page.open(urls["image"] + "#/episode/0/1?t=4")
    assert page.corner(4)[0] == 1
    page.press("\ue012")  # left
    assert page.corner(3)[0] == 1
    page.press("\ue010")
    assert page.corner(20)[0] == 1
    page.has_text("after the last action", "figure")

    page.press("\ue011", " ")  # Home, play
    page.wait("return Number(document.querySelector('.player input').value) > 2")
    page.press(" ")
    assert page.run("return document.getElementById('play').getAttribute('aria-label')") == "Play"


PLAYED = """
    const canvas = Object.assign(document.createElement('canvas'), {width: 1, height: 1});
    return [...document.querySelectorAll('figure img')].map((image) => {
        if (!image.complete || !image.naturalWidth) return null;
        canvas.getContext('2d').drawImage(image, 0, 0, 1, 1, 0, 0, 1, 1);
        return canvas.getContext('2d').getImageData(0, 0, 1, 1).data[1];
    })"""


@pytest.mark.slow
def test_all_cameras_play_side_by_side_with_the_actions_under_them(page, urls):
    page.open(urls["cameras"] + "#/episode/0/1?t=3")
    page.wait(PLAYED.replace("return [", "const shown = [") + "; return shown.every((step) => step === 3)")
    frames, curves = page.run(BOXES, "figure"), page.run(BOXES, ".look > .curves .chart")

    assert len(frames) == len(view_data.CAMERAS)
    assert len({frame["top"] for frame in frames}) == 1
    assert max(frame["bottom"] for frame in frames) < curves[0]["top"]
    assert page.text(".look > .curves .chart h3") == "action"
    assert page.run("return document.querySelector('.player select').value") == "15"
    page.press(" ")
    page.wait("return Number(document.querySelector('.player input').value) > 5")
    page.press(" ", "\ue010")
    page.wait(PLAYED.replace("return [", "const shown = [") + "; return shown.every((step) => step === 9)")


@pytest.mark.slow
@pytest.mark.usefixtures("narrow")
def test_the_cameras_of_an_episode_fit_a_phone(page, urls):
    page.open(urls["cameras"] + "#/episode/0/1")
    page.wait("return document.querySelectorAll('figure img').length === arguments[0]", len(view_data.CAMERAS))
    assert page.run("return document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.slow
def test_states_and_images_side_by_side_and_an_unknown_final_observation(page, urls):
    page.open(urls["mixed"] + "#/episode/0/1?t=14")
    page.corner(14)
    page.has_text("final observation unknown")
    assert page.cells("observation.state")[1] == page.cells("observation.camera")[1] == "unknown, reads as zeros"
    page.press("\ue014")
    page.has_text("unknown: reads as zeros", "figure")


def test_two_datasets_are_compared_and_share_the_cursor(page, urls):
    page.open(urls["two"])
    page.wait("return document.querySelectorAll('.charts svg path').length >= 6")
    assert [page.text(f"thead th:nth-child({n})").strip() for n in (2, 3)] == ["toy/states", "toy/mixed"]

    page.open(urls["two"] + "#/episode/0/1")
    page.click("#compare")
    page.wait("return document.querySelectorAll('.pane').length === 2")
    page.press("\ue014")
    page.wait(
        "return [...document.querySelectorAll('.pane h2')].filter((node) => ['Row 6', 'Row 7'].includes(node.innerText)).length === 2"
    )


BOXES = "return [...document.querySelectorAll(arguments[0])].map((node) => node.getBoundingClientRect().toJSON())"
LENGTHS = "[...document.querySelectorAll('.chart')].find((node) => node.querySelector('h3').innerText === 'length')"


@pytest.mark.slow
def test_a_finding_leads_to_its_step_beside_a_usual_episode(page, stored):
    start = int(stored["image"].episodes.starts[1])
    finding = {
        "level": "strong",
        "check": "frozen_frames",
        "message": "<b>the same image</b>",
        "episodes": [1],
        "rows": [[start + 2, start + 4]],
        "remedy": "-t drop_episodes:1",
    }
    whole = {**finding, "episodes": [], "rows": [], "remedy": "look at it"}
    with served(stored["image"], findings=[finding, whole]) as url:
        page.open(url)
        text = page.text()
        assert "Findings of the audit" in text
        assert "<b>the same image</b>" in text  # a text, not markup
        assert "-t drop_episodes:1" in text
        assert "the whole dataset" in text
        assert text.index("Findings of the audit") < text.index("Rewards and actions")
        page.click("section table a[href*='?t=2']:not([href*='/1/0/'])")
        page.wait("return location.hash.startsWith('#/episode/0/1') && location.hash.includes('t=2')")
        page.wait("return document.querySelector('figure img')")


def test_bars_of_few_values_lie_on_a_linear_axis(page, urls):
    """The lengths are 5, 12 and 30: the second bar is 7 / 25 of the way from the first to the last."""
    page.open(urls["state"])
    page.wait(f"return {LENGTHS}?.querySelectorAll('rect[fill]').length === 3")
    first, second, last = page.run(
        f"return [...{LENGTHS}.querySelectorAll('rect[fill]')].map((node) => node.x.baseVal.value + node.width.baseVal.value / 2)"
    )

    assert (second - first) / (last - first) == pytest.approx(7 / 25)
    texts = f"return [...{LENGTHS}.querySelectorAll('svg text')].map((node) => node.textContent)"
    assert page.run(texts) == ["5", "12", "30"]


def test_a_click_on_a_bar_filters_the_episodes_and_the_filter_is_cleared(page, urls):
    page.open(urls["state"])
    page.wait(f"return {LENGTHS}?.querySelectorAll('a').length === 3")
    bars = page.driver.find_elements("css selector", "a.bar-link[aria-label^='length']")
    bars[1].click()
    page.has_text("1 to 1 of 1 episode, from 3 in all")
    assert page.run("return document.querySelector('input[aria-label=Filter]').value") == "length = 12"

    page.run("[...document.querySelectorAll('button')].find((node) => node.innerText === 'Clear the filter').click()")
    page.has_text("1 to 3 of 3 episodes")


@pytest.mark.slow
def test_every_bar_of_returns_leads_to_the_episodes_that_it_counts(page, tmp_path):
    stored = view_data.sparse_dataset(tmp_path / "a", episodes=95, length=2)
    with served(stored) as url:
        page.open(url)
        page.wait("return document.querySelectorAll('a.bar-link').length > 10")
        bars = page.run(
            "return [...document.querySelectorAll('a.bar-link')].map((node) => [node.getAttribute('href'), node.getAttribute('aria-label')])"
        )
        counted = [int(re.search(r"\((\d+) episode", label)[1]) for href, label in bars if label.startswith("return")]
        panel = Panel(stored)
        listed = [
            panel.page("episode", parse_qs(href.partition("?")[2])["where"][0], 0, descending=False)["matching"]
            for href, label in bars
            if label.startswith("return")
        ]

    assert sum(counted) == 95
    assert listed == counted


@pytest.mark.slow
def test_the_keyboard_reaches_the_bars(page, urls):
    page.open(urls["state"])
    page.wait(f"return {LENGTHS}?.querySelectorAll('a').length === 3")
    page.run(f"{LENGTHS}.querySelector('a[tabindex=\"0\"]').focus()")
    page.press("\ue014", "\ue014")  # right, right
    assert page.run("return document.activeElement.getAttribute('aria-label')") == "length 30: 33.3 % (1 episode)"
    page.has_text("30: 33.3 % (1 episode); click to list them", ".tip:not([hidden])")
    page.press("\ue007")  # Enter
    page.has_text("1 to 1 of 1 episode, from 3 in all")


@pytest.mark.slow
def test_the_overview_of_images_shows_the_first_image_of_episodes(page, urls):
    page.open(urls["image"])
    page.wait(
        "return [...document.querySelectorAll('.strip img')].every((node) => node.complete && node.naturalWidth === 64)"
    )
    assert page.run("return [...document.querySelectorAll('.strip a')].map((node) => node.innerText)") == [
        "episode 0",
        "episode 1",
    ]
    page.click(".strip a:nth-child(2)")
    page.has_text("length 20")


def test_an_episode_shows_its_task_and_the_names_and_scales_of_its_elements(page, urls):
    page.open(urls["robot"] + "#/episode/0/1")
    page.has_text("close the <b>drawer</b>", ".texts")
    page.wait("return document.querySelectorAll('.multiples .chart').length === 5")
    labels = page.run(
        "return [...document.querySelectorAll('.multiples .key')].map((node) => node.innerText.split(/\\s+/)[0])"
    )
    scales = page.run(
        "return [...document.querySelectorAll('.multiples svg')].map((node) => node.querySelectorAll('text').length)"
    )

    assert labels == view_data.JOINTS
    assert scales == [2] * 5
    assert page.cells("observation.joints")[0].split()[::2] == view_data.JOINTS
    assert page.text(".scale").split() == ["0.5", "9"]


@pytest.mark.slow
def test_discrete_actions_are_drawn_as_steps(page, urls):
    """Each value lasts until the next step: no part of the line is oblique."""
    page.open(urls["robot"] + "#/episode/0/0")
    page.wait("return document.querySelectorAll('.curve').length >= 2")
    line = page.run(
        "return [...document.querySelectorAll('.chart')].find((node) => node.querySelector('h3')?.innerText === 'action').querySelector('.curve').getAttribute('d')"
    )
    x = y = None
    flat = 0
    for command, numbers_of in re.findall(r"([MLH])([-\d.,]+)", line):
        to = [float(node) for node in numbers_of.split(",")]
        to_y = y if command == "H" else to[1]
        assert command == "M" or to[0] == x or to_y == y
        flat += command == "H"
        x, y = to[0], to_y

    assert flat == 6


@pytest.mark.slow
@pytest.mark.usefixtures("narrow")
def test_the_whole_row_fits_a_phone(page, urls):
    for name in ("mixed", "robot"):
        page.open(urls[name] + "#/episode/0/1")
        page.wait("return document.querySelector('table.row td')")
        edges = page.run(
            "return [...document.querySelectorAll('table.row td, table.row th')].map((node) => node.getBoundingClientRect().right)"
        )
        assert max(edges) <= 375
        assert page.run(
            "const box = document.querySelector('.scroll:has(.row)'); return box.scrollWidth <= box.clientWidth"
        )


@pytest.mark.slow
@pytest.mark.usefixtures("narrow")
def test_the_page_fits_a_phone(page, urls):
    for name, place in (("state", "#/episodes/0"), ("mixed", "#/episode/0/1"), ("two", "#/"), ("robot", "#/")):
        page.open(urls[name] + place)
        assert page.run("return document.documentElement.scrollWidth <= innerWidth"), (name, place)


@pytest.mark.slow
def test_the_page_is_dark_where_the_reader_prefers_it_and_can_be_switched(page, urls):
    brightness = (
        "return Math.max(...getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number))"
    )
    dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
    page.open(urls["state"])
    assert page.run(brightness) < 60

    page.click("#theme")
    assert page.run(brightness) > 200
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_the_exported_file_opens_without_a_server(page, stored, tmp_path):
    file = tmp_path / "report.html"
    size = file.write_bytes(report_page([Panel(stored["state"]), Panel(stored["mixed"])]))

    assert size == file.stat().st_size < 300_000
    page.open(file.as_uri())
    page.wait("return document.querySelectorAll('.charts svg').length > 5")
    page.open(file.as_uri() + "#/episode/1/0?t=5")
    page.corner(5)
    assert len(numbers(page.cells("observation.state")[1])) == 6
    page.open(file.as_uri() + "#/episodes/0")
    page.has_text("3 episodes of 3")
    assert (
        page.run(
            "return performance.getEntriesByType('resource').filter((node) => !node.name.startsWith('data:')).length"
        )
        == 0
    )


def test_texts_of_a_dataset_are_never_markup(page, tmp_path):
    """Manifests are those of strangers; in the exported file, they are between the tags of a script."""
    evil = "</script><script>document.body.id = 'taken'</script><img src=x onerror=\"document.body.id = 'taken'\">"
    stored = view_data.state_dataset(tmp_path / "a", citation=evil, license=evil, homepage="javascript:alert(1)")
    file = tmp_path / "report.html"
    file.write_bytes(report_page([Panel(stored)]))

    with served(stored) as url:
        for place in (url, file.as_uri()):
            page.open(place)
            page.has_text(evil)
            assert page.run("return document.body.id") == ""
            assert (
                page.run("return document.querySelectorAll('main script, main img, a[href^=javascript]').length") == 0
            )


@pytest.mark.slow
def test_the_page_says_that_the_server_has_ended(page, stored):
    with served(stored["state"]) as url:
        page.open(url)
    page.run("location.hash = '#/episodes/0'")
    page.has_text("The server has ended. Start it again")
    page.driver.get_log("browser")  # the browser reports the refused connection


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Two datasets of images and states, of which episode 1 differs in an image at step 7, and in a state at the steps 9 to 11."""
    folder = tmp_path_factory.mktemp("compared")
    first, second = view_data.mixed_dataset(folder / "a"), view_data.mixed_dataset(folder / "b", changed=True)
    found = compare(first, second, names=("first", "<b>second</b>"))
    return [Panel(first, name="first", pairs=Pairs(found, first, second)), Panel(second, name="<b>second</b>")]


def check_pair(page, url):
    """Check the page of the pair that differs, and the way to the page."""
    page.open(url + "#/pairs")
    page.has_text("1 of 2 differ")
    assert "<b>second</b>" in page.text()  # a text, not markup
    page.click("#pairs a.open")
    page.wait("return location.hash.startsWith('#/pair/1')")
    page.wait("return document.querySelectorAll('.frames.beside img').length === 2")
    assert page.run("return Number(document.querySelector('.player input').value)") == 7
    page.wait(
        "return [...document.querySelectorAll('.frames.beside img')].every((node) => node.complete && node.naturalWidth)"
    )
    pixels = """
        const canvas = Object.assign(document.createElement('canvas'), {width: 24, height: 24});
        const context = canvas.getContext('2d', {willReadFrequently: true});
        return [...document.querySelectorAll('.frames.beside img')].map((image) => {
            context.drawImage(image, 0, 0);
            return [...context.getImageData(4, 3, 1, 1).data].slice(0, 3);
        })"""
    assert page.run(pixels)[1] == [0, 255, 0]
    assert page.run(pixels)[0] != [0, 255, 0]
    assert page.text(".frames.beside figcaption").endswith("step 7: differs")
    page.wait("return document.querySelectorAll('.multiples .chart path.curve').length >= 12")
    assert page.run("return document.querySelectorAll('.multiples line.first').length") == 1
    assert page.run("return document.querySelectorAll('.multiples rect.differs').length") == 1
    assert page.run(BOXES, ".frames.beside figure")[0]["top"] < page.run(BOXES, ".multiples")[0]["top"]
    assert page.run("return document.documentElement.scrollWidth <= innerWidth")
    page.has_text("3 of 15", "#differences")
    page.has_text("9", "#differences")

    page.press("d")
    page.has_text("step 9", ".frames.beside figcaption")
    assert "differs" not in page.text(".frames.beside figcaption")
    page.has_text("Values at step 9", ".row, section:has(.row)")
    page.wait("return document.querySelectorAll('.differs-cell').length === 2")
    first, second = page.run("return [...document.querySelectorAll('.differs-cell')].map((node) => node.innerText)")
    difference = np.subtract(numbers(second), numbers(first))
    assert difference == pytest.approx([0, 0, 0, 0, 100, 0], abs=1e-4)


def test_a_pair_of_episodes_is_shown_on_the_same_axes(page, compared):
    server = ViewServer(compared, port=0)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        check_pair(page, server.url)
        page.run("location.hash = '#/pair/0'")
        page.has_text("All values of the steps that both have are equal.")
        page.press("j")
        page.wait("return location.hash.startsWith('#/pair/1')")
    finally:
        server.stop()
        thread.join()


@pytest.mark.slow
@pytest.mark.usefixtures("narrow")
def test_a_pair_of_episodes_fits_a_phone(page, compared, tmp_path):
    file = tmp_path / "report.html"
    file.write_bytes(report_page(compared))
    for place, there in (("#/pairs", "#pairs"), ("#/pair/1", "table.row td")):
        page.open(file.as_uri() + place)
        page.wait("return document.querySelector(arguments[0])", there)
        assert page.run("return document.documentElement.scrollWidth <= innerWidth"), place


def test_the_exported_file_shows_a_pair_of_episodes(page, compared, tmp_path):
    file = tmp_path / "report.html"
    file.write_bytes(report_page(compared))
    page.open(file.as_uri())
    page.has_text("1 of 2 differ")  # what was asked for comes first
    check_pair(page, file.as_uri())
