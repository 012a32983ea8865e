"""The explorer in a real browser, with and without a server: draw, watch votes, route otherwise, turn it."""

import copy
import fcntl
import io
import os
import re
import struct
import zlib

import pytest
import torch
from PIL import Image

import capsroute as cr
from capsroute.explorer.network import load_network
from capsroute.models.preprocessing import frame

pytest.importorskip("selenium.webdriver", reason="selenium is not installed (pip install 'capsroute[dev]')")
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.explorer.sites import SEVEN, Page, files_served, needs_browser, served

pytestmark = needs_browser

CLICK = "document.querySelector(arguments[0]).dispatchEvent(new MouseEvent('click', {bubbles: true}))"


@pytest.fixture(scope="session")
def digits():
    return {"digits": load_network()}


@pytest.fixture(scope="session")
def site(digits, tmp_path_factory):
    """The folder without a server, written once for all workers."""
    from capsroute.explorer.static_site import write_site

    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder = shared / "explorer-site"
    with (shared / "explorer-site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "networks.json").is_file():  # written last
            try:
                list(write_site(digits, folder))
            except ValueError as error:
                pytest.skip(str(error))
    return folder


BOTH = pytest.mark.parametrize("form", ["server", "static"], scope="module")  # what the network answers shows


@pytest.fixture(scope="module", params=["server", pytest.param("static", marks=pytest.mark.slow)])
def form(request):
    """What is of the page alone is tried in one form; in the other too where there is time."""
    return request.param


@pytest.fixture(scope="module")
def opened(request, form, browser, digits):
    """A page of either form, opened once for all tests of this file."""
    if form == "server":
        running = served(digits)
    else:
        running = files_served(request.getfixturevalue("site"))
    with running as address:
        page = Page(browser, address)
        page.size(1400)
        page.open()
        yield page
        browser.get("about:blank")


@pytest.fixture
def page(opened):
    """The page with nothing drawn and nothing turned; it has nothing to complain about afterwards either."""
    opened.size(1400)
    opened.run(
        "explorer.votes.pause(); explorer.votes.chosen = explorer.votes.iteration = null; explorer.votes.pick([])"
    )
    opened.run("for (const name of ['straight', 'clear']) document.getElementById(name).click()")
    opened.settle()
    opened.browser.get_log("browser")
    yield opened
    assert opened.complaints() == []


def png(image: Image.Image, path) -> str:
    image.save(path)
    return str(path)


@BOTH
def test_a_drawn_digit_is_recognised_and_routing_is_given_its_due(page):
    page.draw(SEVEN)
    assert page.text("verdict").startswith("The network sees 7 (0.9")
    rows = page.run(
        "return [...document.querySelectorAll('#bars .class')]"
        ".map((row) => [...row.querySelectorAll('.value')].map((value) => value.textContent))"
    )
    assert len(rows) == 10
    routed, plain = ([float(row[kind]) for row in rows] for kind in (0, 1))
    assert routed.index(max(routed)) == plain.index(max(plain)) == 7
    assert page.text("changed").startswith(f"Without routing: 7, {plain[7]:.2f}. Routing kept the answer (+")
    lead = [lengths[7] - max(lengths[:7] + lengths[8:]) for lengths in (plain, routed)]
    assert lead[1] > lead[0] + 0.1
    assert page.run("return document.querySelectorAll('#bars .found').length") == 1


def test_a_blank_pad_is_no_digit(page):
    assert page.text("verdict") == "Nothing drawn yet."
    assert page.run("return document.querySelectorAll('#bars .found').length") == 0
    assert set(page.run("return [...document.querySelectorAll('#bars .value')].map((v) => v.textContent)")) == {"–"}


def test_noise_says_how_unsure_it_is(page):
    page.set("turn-noise", 1)
    assert page.text("verdict").startswith("Unsure: the nearest is ")
    assert "test images have 0.82 and more" in page.text("verdict")


def waited(page):
    """What the page says that the last answer took, in milliseconds."""
    milliseconds = float(page.part("timing").get_attribute("data-milliseconds"))
    shown = re.fullmatch(r"answered (\d+) ms after the stroke, by (the server|this browser)", page.text("timing"))
    assert abs(int(shown[1]) - milliseconds) <= 0.5
    return milliseconds


@BOTH
def test_the_time_of_the_whole_answer_is_measured_and_shown(page):
    page.run(
        "const { network } = explorer; explorer.quick = network.look;"
        "network.look = async (...given) => {"
        "  await new Promise((resolve) => setTimeout(resolve, 250)); return explorer.quick.apply(network, given); }"
    )
    try:
        page.draw([(0, -0.3), (0, 0.3)])
        assert waited(page) >= 249  # timers of browsers may be a fraction of a millisecond early
    finally:
        page.run("explorer.network.look = explorer.quick")


@BOTH
@pytest.mark.slow
def test_an_answer_comes_within_a_tenth_of_a_second(page):
    """Wants a quiet machine: what else runs meanwhile counts."""
    waits = []
    for _ in range(5):
        page.click("clear")
        page.draw([(0, -0.3), (0, 0.3)])
        waits.append(waited(page))
    assert min(waits) < 100


@BOTH
def test_both_forms_and_torch_agree(page, digits):
    shown = digits["digits"]
    page.sample(8)
    expected = shown.model(shown.samples[8:9]).scores[0]
    torch.testing.assert_close(torch.tensor(page.scores()), expected.detach(), atol=1e-4, rtol=0)
    # The browser's own routing of the votes, and its paintings, too.
    lengths = page.run("return explorer.answer.steps.at(-1).lengths")
    torch.testing.assert_close(torch.tensor(lengths), expected.detach(), atol=1e-4, rtol=0)
    painted = page.wait_for("return Array.from((await explorer.capsule.paintFound(explorer.answer)).pictures[0].data)")
    reconstruction = shown.model(shown.samples[8:9]).reconstruction.flatten()
    torch.testing.assert_close(torch.tensor(painted), reconstruction.detach(), atol=1e-4, rtol=0)


def test_votes_are_followed_from_iteration_to_iteration(page):
    page.sample(7)
    assert page.text("iteration-value") == "3 of 3"
    arrow = "return document.querySelector('#plane .tip').getAttribute('cx')"
    colours = (
        "return [...document.querySelectorAll('#plane .dots circle')].map((dot) => dot.getAttribute('fill')).join(';')"
    )
    last = page.run(arrow), page.run(colours)
    page.set("iteration", 1)
    assert page.text("iteration-value") == "1 of 3"
    assert page.text("votes-now").startswith("Iteration 1: every vote counts the same.")
    assert len(set(page.run(colours).split(";"))) == 1
    page.part("forward").click()
    page.until(lambda: page.text("votes-now").startswith("Iteration 2: votes that agreed count more."))
    assert page.run("const play = document.getElementById('play'); play.click(); return play.textContent") == "Pause"
    page.until(lambda: page.text("votes-now").startswith("Iteration 3") and page.text("play") == "Play")
    assert (page.run(arrow), page.run(colours)) == last
    page.run("document.querySelectorAll('#parents button')[1].click()")
    assert "Capsule 1" in page.text("votes-now")
    assert page.run(arrow) != last[0]


def test_motion_is_spared_where_it_is_not_wanted(page):
    page.size(1400, still=True)
    page.sample(7)
    page.set("iteration", 1)
    page.run("explorer.votes.stepTo(1)")
    assert page.text("votes-now").startswith("Iteration 2")  # at once


def test_agreement_tells_the_right_class_from_the_wrong(page):
    page.sample(7)
    right, wrong = (float(part.split()[0].rstrip(".")) for part in page.text("agreement-text").split("mean ")[1:])
    assert right > wrong + 0.2
    assert len(page.all("#agreement rect.routed")) == len(page.all("#agreement rect.plain")) == 24


def test_a_dot_lights_its_patch_and_a_patch_its_dots(page):
    page.sample(7)
    page.run(CLICK, '#plane [data-child="50"]')
    assert page.text("picked").startswith("Child 2 at row 3, column 3: coefficient ")  # 50 = 36 + 2 * 6 + 2
    field = (
        "return ['visibility', 'x', 'y', 'width'].map((name) => document.querySelector('.field').getAttribute(name))"
    )
    assert page.run(field) == ["visible", "4", "4", "17"]
    page.run(CLICK, '#places [data-place="35"]')
    assert len(page.all("#plane .picked")) == 8
    assert page.text("picked").startswith("The 8 children at row 6, column 6 give ")
    assert page.run(field) == ["visible", "10", "10", "17"]
    strongest = page.all("#tree button")
    assert len(strongest) == 6
    page.run("arguments[0].click()", strongest[0])
    assert page.run("return document.querySelector('#plane .picked').dataset.child") == strongest[0].get_attribute(
        "data-child"
    )
    shares = [float(button.text.split()[0]) for button in strongest]
    assert shares == sorted(shares, reverse=True)


@BOTH
def test_shares_are_those_of_the_analysis(page, digits):
    shown = digits["digits"]
    page.sample(7)
    tree = cr.analysis.parse_tree(shown.model, shown.samples[7].float() / 255)
    found = torch.tensor(page.run("return Array.from(explorer.votes.shares)"))
    torch.testing.assert_close(found, tree.shares[7].flatten(), atol=1e-4, rtol=0)


def test_votes_and_places_are_reached_by_keys(page):
    page.sample(7)
    page.part("plane").send_keys(Keys.ARROW_RIGHT)
    assert page.run("return document.querySelector('#plane .picked').dataset.child") == page.run(
        "return document.querySelector('#tree button').dataset.child"
    )
    page.part("places").send_keys(Keys.ARROW_DOWN)
    assert len(page.all("#plane .picked")) == 8


@BOTH
def test_the_same_votes_routed_otherwise(page, digits):
    page.sample(8)
    table = {
        row.find_element(By.TAG_NAME, "th").text: row.find_element(By.TAG_NAME, "strong").text
        for row in page.all("#ways tr")
    }
    shown = digits["digits"]
    assert list(table)[:2] == ["as trained: max-min, 3", "max-min, 1 iteration"]
    assert len(table) == 8
    variants = {
        "as trained: max-min, 3": shown.model,
        "equal coefficients: no routing": cr.inference.with_coefficients(shown.model, "uniform"),
        "master coefficients: no routing": cr.inference.with_coefficients(shown.model, shown.master),
    }
    for name, routing in (
        ("max-min, 1 iteration", {"name": "max_min", "iterations": 1}),
        ("max-min, 2 iterations", {"name": "max_min", "iterations": 2}),
        ("max-min, 5 iterations", {"name": "max_min", "iterations": 5}),
        ("dynamic (softmax), 3 iterations", {"name": "dynamic", "iterations": 3}),
    ):
        variants[name] = copy.deepcopy(shown.model)
        variants[name].class_capsules.set_routing(routing)
    for name, model in variants.items():
        scores = model(shown.samples[8:9]).scores[0].detach()
        assert table[name] == f"{int(scores.argmax())}, {float(scores.max()):.2f}"
    assert all(row.text.endswith("ms") for row in page.all("#ways td:last-child"))
    assert len(page.all("#ways .mini-plane .dots")) == 8


@BOTH
def test_turning_moves_the_pose_as_curves(page):
    page.sample(7)
    straight = page.scores()
    assert len(page.all("#curves .curve")) == 16
    assert "“turn” goes from -90° to 90°" in page.text("curves-text")
    page.set("turn-turn", 30)
    assert page.scores() != straight
    page.set("turn-across", 3)
    assert "“move across”" in page.text("curves-text")
    page.click("straight")
    assert page.scores() == straight
    page.set("turn-cover", 1)
    assert page.text("verdict") == "Nothing drawn yet."


def test_every_slider_changes_what_is_seen(page):
    page.sample(7)
    seen = [page.pixels("seen")]
    for name in ("turn", "across", "down", "size", "slant", "noise", "cover"):
        page.set(f"turn-{name}", 0.6)
        seen.append(page.pixels("seen"))
    assert len(set(seen)) == len(seen)


@BOTH
def test_a_second_digit_is_laid_over_the_first(page):
    page.sample(7)
    before = page.pixels("seen")
    page.set("second", 0)
    assert page.pixels("seen") != before
    both = page.run("return Array.from(explorer.answer.seen.data).reduce((a, b) => a + b)")
    page.set("second", -1)
    assert both > page.run("return Array.from(explorer.answer.seen.data).reduce((a, b) => a + b)")


@BOTH
def test_a_number_of_the_capsule_changes_the_picture_and_undo_brings_it_back(page):
    page.draw(SEVEN)
    assert len(page.all("#sliders input")) == 16
    before, number = page.pixels("moved"), page.all("#sliders output")[0].text
    page.part("dimension-1").send_keys(Keys.ARROW_RIGHT * 40)
    page.until(lambda: page.pixels("moved") != before)
    assert float(page.all("#sliders output")[0].text) == pytest.approx(float(number) + 0.40, abs=0.011)
    page.click("reset")
    page.until(lambda: page.pixels("moved") == before)


def test_a_digit_can_be_drawn_by_keys_alone(page):
    pad = page.part("pad")
    up = Keys.ARROW_UP * 9
    pad.send_keys(up + Keys.SPACE + Keys.ARROW_DOWN * 18 + Keys.SPACE)
    page.settle()
    assert page.text("verdict").startswith("The network sees 1")
    assert page.text("pen-text") == "pen up, column 14, row 23 of 28"
    pad.send_keys(Keys.ARROW_DOWN * 18)  # the pen is up and at home for the next test
    page.run("explorer.pad.at = [14, 14]")


def huge() -> bytes:
    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", 90_000, 90_000, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


def test_a_bad_file_gets_a_message_and_the_page_goes_on(page, tmp_path):
    for name, content, said in (
        ("notes.txt", b"this is no image", "not an image file"),
        ("photo.png", b"\x89PNG\r\n\x1a\n rubbish", "damaged, cut off or too large"),
        ("huge.bin", b"\0" * 20_500_000, "too large"),
        ("bomb.png", huge(), "damaged, cut off or too large"),
    ):
        file = tmp_path / name
        file.write_bytes(content)
        page.part("file").send_keys(str(file))
        page.until(lambda said=said: said in page.text("problem"))
        page.click("clear")
        assert not page.part("problem").is_displayed()
        page.sample(3)
        assert page.text("verdict").startswith("The network sees 3")


def stroke(mode, ground, ink):
    picture = Image.new(mode, (200, 300), ground)
    picture.paste(ink, (90, 50, 112, 250))
    return picture


@pytest.mark.parametrize(
    "picture",
    [
        stroke("RGB", "white", (20, 20, 60)),
        stroke("RGBA", (0, 0, 0, 0), (0, 0, 0, 255)),
        stroke("RGBA", (255, 255, 255, 0), (255, 255, 255, 255)),
        stroke("L", 0, 255),
    ],
    ids=["dark on paper", "black ink on nothing", "white ink on nothing", "light on dark"],
)
def test_ink_is_read_as_ink(page, tmp_path, picture):
    page.part("file").send_keys(png(picture, tmp_path / "one.png"))
    page.until(lambda: page.text("verdict").startswith("The network sees 1"))
    assert page.run("return explorer.answer.seen.data[0]") == 0
    page.settle()


def framed_in_the_browser(page, image, about):
    channels, height, width = image.shape
    given = {"width": width, "height": height, "channels": channels}
    found = page.wait_for(
        "const { frame } = await import(new URL('static/framing.js', document.baseURI));"
        "const data = Float32Array.from(arguments[1]);"
        "return Array.from(frame({ ...arguments[0], data }, arguments[2]).data)",
        given,
        image.flatten().tolist(),
        about,
    )
    assert isinstance(found, list), found
    return torch.tensor(found).view(*(about["shape"][side] for side in ("channels", "height", "width")))


@pytest.mark.parametrize(
    ("size", "options"),
    [
        ((1, 40, 60), {"resize": "centre", "polarity": "light_on_dark"}),
        ((3, 91, 50), {"resize": "centre", "polarity": "dark_on_light"}),
        ((3, 50, 33), {"resize": "cover", "polarity": "light_on_dark"}),
        ((1, 28, 28), {"resize": "cover", "crop": 0.875}),
        ((1, 9, 7), {"resize": "cover"}),
    ],
)
def test_a_file_is_framed_as_predict_frames_it(page, size, options):
    generator = torch.Generator().manual_seed(0)
    paper = torch.rand(*size, generator=generator) * 0.2 + 0.7
    paper[:, size[1] // 4 : size[1] // 2, size[2] // 3 : size[2] // 2] = 0.1
    preprocessing = cr.models.Preprocessing(**options)
    expected = frame(paper, (1, 28, 28), preprocessing)
    about = {
        "shape": {"channels": 1, "height": 28, "width": 28},
        "centred": preprocessing.resize == "centre",
        "polarity": preprocessing.polarity,
        "crop": preprocessing.crop,
    }
    torch.testing.assert_close(framed_in_the_browser(page, paper, about), expected, atol=1e-4, rtol=0)


def test_a_large_picture_is_made_small(page, tmp_path):
    page.part("file").send_keys(png(stroke("L", 0, 255).resize((3000, 4500)), tmp_path / "large.png"))
    page.until(lambda: page.text("verdict").startswith("The network sees 1"))
    page.settle()


@BOTH
def test_a_link_holds_drawing_and_settings(page):
    page.draw(SEVEN)
    page.set("turn-turn", 12)
    page.run("document.querySelectorAll('#parents button')[2].click()")
    page.set("iteration", 2)
    fragment = page.wait_for("await explorer.write(); return location.hash")
    before = page.scores(), page.text("votes-now"), page.pixels("seen")
    assert len(fragment) < 4000
    page.open(fragment)
    assert (page.scores(), page.text("votes-now"), page.pixels("seen")) == before
    assert page.part("turn-turn").get_attribute("value") == "12"


def test_a_link_that_is_rubbish_is_an_empty_page(page):
    page.open("#network=nothing&picture=9.9.9.1.x&turn=NaN&capsule=99&iteration=-5&second=4000")
    assert page.text("verdict") == "Nothing drawn yet."
    page.sample(1)
    assert page.text("verdict").startswith("The network sees 1")


def test_the_votes_can_be_saved(page, downloads):
    page.sample(7)
    for kind in ("svg", "png"):
        file = downloads / f"votes-for-7-iteration-3.{kind}"
        file.unlink(missing_ok=True)
        page.run(f"document.getElementById('save-{kind}').click()")
        page.until(file.is_file)
        if kind == "svg":
            page.until(lambda file=file: file.read_text().endswith("</svg>"))
            assert file.read_text().count("<circle") > 280
            assert "class=" not in file.read_text()
        else:
            page.until(lambda file=file: b"IEND" in file.read_bytes()[-12:])
            picture = Image.open(io.BytesIO(file.read_bytes())).convert("RGB")
            assert picture.size == (1200, 1200)
            assert len(picture.getcolors(1 << 20)) > 20


def test_nothing_scrolls_sideways(page):
    page.sample(7)
    for width in (320, 375, 679, 680, 1024, 1199, 1200, 1280, 1440, 1900, 2560):
        page.size(width)
        wide = page.run("return [document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        assert wide[0] <= wide[1], width
        inside = page.run(
            "return [...document.querySelectorAll('main *')]"
            ".filter((part) => part.offsetParent && !part.closest('svg, .hidden, thead'))"
            ".filter((part) => part.getBoundingClientRect().right > innerWidth)"
            ".map((part) => part.id || part.className)"
        )
        assert inside == [], width


def test_everything_to_be_touched_is_large_enough(page):
    page.sample(7)
    for width in (320, 1280):
        page.size(width)
        small = page.run(
            "return [...document.querySelectorAll('button, select, input, .button, label.check')]"
            ".filter((part) => part.offsetParent && !['checkbox', 'file'].includes(part.type))"
            ".map((part) => [part.id || part.className || part.textContent, part.offsetWidth, part.offsetHeight])"
            ".filter(([, width, height]) => height < 40 || width < 40)"
        )
        assert small == [], width


def test_everything_has_a_name_for_those_who_hear_the_page(page):
    page.sample(7)
    nodes = page.browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    roles = {"button", "radio", "checkbox", "slider", "combobox", "image", "img", "application", "Canvas"}
    nameless = [
        node["role"]["value"]
        for node in nodes
        if not node["ignored"] and node["role"]["value"] in roles and not node.get("name", {}).get("value")
    ]
    assert nameless == []
    assert sum(not node["ignored"] and node["role"]["value"] == "slider" for node in nodes) == 1 + 7 + 16


def test_panels_are_numbered_without_gaps(page):
    page.run("document.getElementById('compare-panel').hidden = true")
    try:
        numbers = page.run(
            "return [...document.querySelectorAll('h2')].filter((title) => title.offsetParent)"
            ".map((title) => getComputedStyle(title, '::before').counterIncrement)"
        )
        assert numbers == ["panel 1"] * 5  # hidden panels are not counted
    finally:
        page.run("document.getElementById('compare-panel').hidden = false")


def light(text):
    """Relative luminance of a colour that the browser names."""
    channels = [int(value) / 255 for value in text[text.index("(") + 1 : -1].split(",")[:3]]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return sum(part * value for part, value in zip((0.2126, 0.7152, 0.0722), linear))


@pytest.mark.parametrize("dark", [False, True])
def test_text_can_be_read_by_day_and_by_night(page, dark):
    page.size(1280, dark=dark)
    page.sample(7)
    pairs = page.run(
        "return [...document.querySelectorAll('p, h2, h3, figcaption, button, th, strong, .value, .name, label span')]"
        ".filter((part) => part.offsetParent && part.textContent.trim()).map((part) => {"
        "  let ground = part;"
        "  const colour = () => getComputedStyle(ground).backgroundColor;"
        "  while (colour() === 'rgba(0, 0, 0, 0)' && ground.parentElement) ground = ground.parentElement;"
        "  return [getComputedStyle(part).color, colour(), part.id || part.textContent.slice(0, 20)]; })"
    )

    for ink, ground, where in pairs:
        brighter, darker = sorted((light(ink), light(ground)), reverse=True)
        assert (brighter + 0.05) / (darker + 0.05) >= 4.5, where
    assert (light(pairs[0][1]) < 0.1) == dark


@BOTH
def test_nothing_is_loaded_from_elsewhere(page):
    page.open()
    page.draw(SEVEN)
    names = page.requests()
    assert len(names) >= 15
    assert all(name.startswith((page.address, "data:", "blob:")) for name in names)


def test_the_folder_without_a_server_is_small(site):
    sizes = {file: file.stat().st_size for file in site.rglob("*") if file.is_file()}
    assert sum(sizes.values()) < 6_000_000
    runtime = sum(size for file, size in sizes.items() if file.parent.name == "runtime")
    assert sum(sizes.values()) - runtime < 2_500_000  # page and weights


def test_a_server_that_was_stopped_is_said_to_be(browser, digits):
    with served(digits) as address:
        page = Page(browser, address)
        page.size(1400)
        page.open()
    page.run("document.querySelector('#samples button').click()")
    page.until(lambda: page.text("problem") == "The explorer does not answer. Is it still running?")
    browser.get("about:blank")
