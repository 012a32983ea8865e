"""The explorer in a real browser: draw, read the answer, move a number, follow the routing, upload rubbish."""

import shutil
import threading
from dataclasses import replace

import pytest
import uvicorn
from PIL import Image

from capsroute.explorer.engine import Engine
from capsroute.explorer.exhibit import load_exhibit
from capsroute.explorer.server import listen, make_app

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed (pip install 'capsroute[dev]')")
from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (BROWSER and DRIVER), reason="no chromium and chromedriver here (Debian: apt install chromium chromium-driver)"
)
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --window-size=1400,1000"
)
SEVEN = [(-60, -90), (60, -90), (0, 90)]  # corners of the digit, from the middle of the pad


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in FLAGS.split():
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


def serving(exhibit):
    """A running explorer: its address, and how to stop it."""
    opened = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(make_app(exhibit), log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]})
    thread.start()

    def stop():
        server.should_exit = True
        thread.join()

    return f"http://127.0.0.1:{opened.getsockname()[1]}/", stop


@pytest.fixture(scope="module")
def address():
    where, stop = serving(load_exhibit())
    yield where
    stop()


@pytest.fixture
def page(browser, address):
    browser.get_log("browser")
    browser.get(address)
    page = Page(browser)
    page.until(lambda: page.text("verdict") == "Draw something, or pick an image.")
    yield page
    assert [entry["message"] for entry in browser.get_log("browser") if "400" not in entry["message"]] == []


class Page:
    def __init__(self, browser):
        self.browser = browser

    def part(self, name):
        return self.browser.find_element(By.ID, name)

    def text(self, name):
        return self.part(name).text

    def until(self, condition):
        WebDriverWait(self.browser, 10, 0.02).until(lambda _: condition())

    def pixels(self, name):
        return self.browser.execute_script(f"return document.getElementById('{name}').toDataURL()")

    def draw(self, corners):
        pad, (start, *rest) = self.part("pad"), corners
        actions = ActionChains(self.browser, duration=30)
        actions.move_to_element_with_offset(pad, *start).click_and_hold()
        for corner in rest:
            actions.move_to_element_with_offset(pad, *corner)
        actions.release().perform()

    def settle(self):
        """Wait until every stroke is answered."""
        self.until(lambda: self.part("lengths").get_attribute("aria-busy") == "false")

    def sees(self, *names):
        self.settle()
        assert self.text("verdict") == f"The network sees: {' and '.join(names)}"


def test_a_drawn_digit_is_recognised_with_and_without_routing(page):
    page.draw(SEVEN)
    page.sees("7")
    rows = page.browser.find_elements(By.CSS_SELECTOR, "#bars .class")
    lengths = [[float(value.text) for value in row.find_elements(By.CLASS_NAME, "value")] for row in rows]
    assert len(lengths) == 10
    for routing in (0, 1):
        assert max(range(10), key=lambda name: lengths[name][routing]) == 7
    assert "found" in rows[7].get_attribute("class")


def test_every_answer_comes_within_a_fifth_of_a_second(page):
    waits = []
    for _ in range(5):
        page.part("clear").click()
        page.until(lambda: page.text("verdict") == "Draw something, or pick an image.")
        page.draw([(0, -90), (0, 90)])
        page.until(lambda: page.text("verdict").startswith("The network sees"))
        waits.append(float(page.part("timing").get_attribute("data-milliseconds")))
    # The quickest of five: what else this machine does meanwhile is not the explorer's.
    assert min(waits) < 200


def test_a_slider_changes_the_picture_and_undo_brings_it_back(page):
    page.draw(SEVEN)
    page.sees("7")
    assert len(page.browser.find_elements(By.CSS_SELECTOR, "#sliders input")) == 16
    before, number = page.pixels("moved"), page.browser.find_element(By.CSS_SELECTOR, "#sliders output").text
    page.part("dimension-1").send_keys(Keys.ARROW_RIGHT * 40)
    page.until(lambda: page.pixels("moved") != before)
    moved = float(page.browser.find_element(By.CSS_SELECTOR, "#sliders output").text)
    assert moved == pytest.approx(float(number) + 0.40, abs=0.011)
    page.part("reset").click()
    page.until(lambda: page.pixels("moved") == before)


def test_a_test_image_can_be_picked(page):
    page.browser.find_elements(By.CSS_SELECTOR, "#samples button")[3].click()
    page.sees("3")


def test_routing_is_shown_by_class_and_iteration(page):
    page.browser.find_elements(By.CSS_SELECTOR, "#samples button")[0].click()
    page.sees("0")
    page.until(lambda: "capsule 0" in page.text("routing-text"))
    assert page.text("iteration-value") == "3 of 3"
    last = page.pixels("heat")
    page.part("iteration").send_keys(Keys.HOME)
    page.until(lambda: page.text("iteration-value") == "1 of 3")
    first = page.pixels("heat")
    assert first != last
    page.browser.find_elements(By.CSS_SELECTOR, "#class-chips button")[5].click()
    page.until(lambda: "capsule 5" in page.text("routing-text"))
    page.part("iteration").send_keys(Keys.END)
    assert page.pixels("heat") not in (first, last)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("notes.txt", b"this is no image", "not an image file"),
        ("photo.png", b"\x89PNG\r\n\x1a\n rubbish", "not an image file"),
        ("huge.bin", b"\0" * 10_500_000, "too large"),
    ],
)
def test_rubbish_gets_a_message_and_the_page_goes_on(page, tmp_path, name, content, said):
    file = tmp_path / name
    file.write_bytes(content)
    page.part("file").send_keys(str(file))
    page.until(lambda: said in page.text("problem"))
    page.part("clear").click()
    assert not page.part("problem").is_displayed()
    page.draw(SEVEN)
    page.sees("7")


def test_a_photographed_digit_is_turned_round_and_recognised(page, tmp_path):
    picture = Image.new("RGB", (200, 300), "white")
    picture.paste((20, 20, 60), (90, 50, 112, 250))
    picture.save(tmp_path / "one.jpg")
    page.part("file").send_keys(str(tmp_path / "one.jpg"))
    page.until(lambda: page.text("verdict") == "The network sees: 1")


def test_nothing_is_loaded_from_elsewhere(page, address):
    page.draw(SEVEN)
    page.sees("7")
    names = page.browser.execute_script("return performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert len(names) >= 7
    assert all(name.startswith((address, "data:")) for name in names)


def test_two_digits_are_both_found_and_reconstructed(browser, monkeypatch):
    # The two most likely classes, however likely: what is shown of them is the page's business.
    monkeypatch.setattr(Engine, "_found", lambda engine, probabilities: probabilities.topk(2).indices.tolist())
    where, stop = serving(replace(load_exhibit(), objects=2, centred=False))
    try:
        browser.get(where)
        page = Page(browser)
        page.until(lambda: page.text("input-title").endswith("Draw two digits, one over the other"))
        page.draw(SEVEN)
        page.settle()
        assert " and " in page.text("verdict")
        assert page.text("capsule-title").endswith("Inside the capsules found")
        assert len(browser.find_elements(By.CSS_SELECTOR, "#found canvas")) == 2
        first, second = browser.find_elements(By.CSS_SELECTOR, "#found button")
        assert first.text != second.text
        before = page.pixels("moved")
        second.click()
        page.until(lambda: page.pixels("moved") != before)
    finally:
        stop()
