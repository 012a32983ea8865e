"""Networks of another kind in the same page: photographs, probabilities, several layers, two digits in one picture."""

import pytest
import torch
from PIL import Image

import capsroute as cr
from capsroute.explorer.network import Network
from tests.explorer.conftest import network

pytest.importorskip("selenium.webdriver", reason="selenium is not installed (pip install 'capsroute[dev]')")
from tests.explorer.sites import Page, files_served, needs_browser, served

pytestmark = needs_browser


def shown(name, classes) -> Network:
    torch.manual_seed(0)
    model = cr.create_model(name, **cr.models.small_options(name)).eval()
    names = tuple(classes[: model.num_classes])
    return Network(name, model, None, names, torch.zeros(0, *model.input_shape, dtype=torch.uint8), ())


@pytest.fixture(scope="module")
def several():
    animals = ("cat", "dog", "frog", "horse", "deer")
    return {
        "two": network(objects=2),
        "stack": shown("tsai_simple_cifar10", animals),
        "pooled": shown("zhao_huang_resnet20", animals),
    }


@pytest.fixture(scope="module", params=["server", pytest.param("static", marks=pytest.mark.slow)])
def page(request, browser, several, tmp_path_factory):
    if request.param == "server":
        running = served(several)
    else:
        from capsroute.explorer.static_site import write_site

        folder = tmp_path_factory.mktemp("several") / "site"
        try:
            list(write_site(several, folder))
        except ValueError as error:
            pytest.skip(str(error))
        running = files_served(folder)
    with running as address:
        page = Page(browser, address)
        page.size(1280)
        page.open()
        yield page
        assert page.complaints() == []
        browser.get("about:blank")


@pytest.fixture(scope="module")
def photo(tmp_path_factory):
    path = tmp_path_factory.mktemp("photo") / "photo.png"
    Image.effect_noise((90, 60), 80).convert("RGB").save(path)
    return path


def choose(page, name):
    page.set("network", name)
    page.until(lambda: page.run("return explorer.network.name") == name)
    page.settle()


def put(page, photo):
    page.part("file").send_keys(str(photo))
    page.until(lambda: page.text("verdict") != "Nothing drawn yet.")
    page.settle()


def titles(page):
    return page.run(
        "return [...document.querySelectorAll('h2')].filter((t) => t.offsetParent).map((t) => t.textContent)"
    )


def expected(several, page, name):
    seen = page.run("return [Array.from(explorer.answer.seen.data), explorer.network.about.shape]")
    shape = [seen[1][side] for side in ("channels", "height", "width")]
    return several[name].model(torch.tensor(seen[0]).view(1, *shape))


def test_several_layers_are_shown_as_they_were_recorded(page, several, photo):
    choose(page, "stack")
    assert titles(page) == ["Choose a photo", "Classes", "Votes and agreement", "Turn it"]
    assert "the bars are probabilities" in page.text("classes-text")
    put(page, photo)
    output = expected(several, page, "stack")
    torch.testing.assert_close(torch.tensor(page.scores()), output.scores.softmax(1)[0].detach(), atol=1e-4, rtol=0)
    assert page.text("iteration-value") == "2 of 2"
    poses = page.run("return Array.from(explorer.answer.steps.at(-1).poses)")
    torch.testing.assert_close(torch.tensor(poses), output.poses.flatten().detach(), atol=1e-4, rtol=0)
    children = page.run("return explorer.answer.votes.children")
    assert len(page.all("#tree button")) == min(6, children)


def test_a_network_that_routes_nothing_to_classes_says_so(page, several, photo):
    choose(page, "pooled")
    assert titles(page) == ["Choose a photo", "Classes", "Turn it"]
    assert "no votes to show" in page.text("about")
    put(page, photo)
    probabilities = expected(several, page, "pooled").scores.softmax(1)[0].detach()
    torch.testing.assert_close(torch.tensor(page.scores()), probabilities, atol=1e-4, rtol=0)
    assert page.text("curves-text").startswith("Probabilities of ")
    # An address that holds this network leads back to it.
    fragment = page.wait_for("await explorer.write(); return location.hash")
    before = page.scores()
    page.open(fragment)
    assert page.run("return explorer.network.name") == "pooled"
    assert page.scores() == before


def test_two_digits_are_found_and_separated_in_two_colours(page):
    choose(page, "two")
    assert titles(page)[0] == "Draw two digits, one over the other"
    page.sample(0)
    # What is found is the network's business; that two are shown apart is the page's.
    page.run("const { answer } = explorer; answer.found = answer.ranked.slice(0, 2); explorer.capsule.show(answer)")
    page.settle()
    assert titles(page)[-1] == "Inside the capsules found"
    first, second = page.all("#found button")
    assert first.text != second.text
    assert "in blue" in page.text("separated-text")
    colours = page.run(
        "const part = document.getElementById('separated');"
        "return Array.from(part.getContext('2d').getImageData(0, 0, part.width, part.height).data)"
    )
    pixels = torch.tensor(colours).view(-1, 4)
    assert not torch.equal(pixels[:, 0], pixels[:, 2])
    before = page.pixels("moved")
    page.run("arguments[0].click()", second)
    page.until(lambda: page.pixels("moved") != before)
