"""The pictures of the explorer in the docs, taken anew: python -m tests.explorer.photographs docs/images"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from PIL import Image, ImageDraw
from selenium import webdriver

from capsroute.explorer.network import load_networks
from capsroute.explorer.static_site import write_site
from tests.explorer.sites import BROWSER, DRIVER, FLAGS, SEVEN, Page, files_served, served


def ship(path: Path) -> Path:
    """A drawn photograph."""
    picture = Image.new("RGB", (300, 200), (120, 170, 230))
    draw = ImageDraw.Draw(picture)
    draw.rectangle((0, 140, 300, 200), fill=(30, 80, 140))
    draw.polygon([(60, 130), (250, 130), (220, 165), (90, 165)], fill=(120, 40, 30))
    draw.rectangle((110, 100, 200, 130), fill=(240, 240, 240))
    draw.line((155, 40, 155, 100), fill=(60, 60, 60), width=5)
    picture.save(path)
    return path


def with_server(page: Page, folder: Path, aside: Path) -> None:
    page.size(1280, still=True)
    page.open()
    page.draw(SEVEN)
    page.photograph(folder / "explorer.png")
    page.size(1280, dark=True, still=True)
    page.photograph(folder / "explorer_dark.png")
    page.size(320, still=True)
    page.photograph(folder / "explorer_phone.png")
    page.size(1280, still=True)
    page.sample(3)
    for iteration in (1, 2, 3):
        page.set("iteration", iteration)
        page.photograph(aside / f"plane-{iteration}.png", "#plane")
    beside([aside / f"plane-{iteration}.png" for iteration in (1, 2, 3)]).save(folder / "explorer_iterations.png")
    page.run("document.querySelector('#tree button').click()")
    page.photograph(folder / "explorer_votes.png", "#votes-panel")
    page.photograph(folder / "explorer_routings.png", "#compare-panel")
    page.set("turn-turn", 30)
    page.photograph(folder / "explorer_turn.png", "#turn-panel")
    page.click("straight")
    page.set("network", "cifar10-inverted-attention")
    page.until(lambda: page.run("return explorer.network.name") == "cifar10-inverted-attention")
    page.part("file").send_keys(str(ship(aside / "ship.png")))
    page.until(lambda: "ship" in page.text("verdict"))
    page.settle()
    page.photograph(folder / "explorer_photo.png")


def without_server(page: Page, folder: Path) -> None:
    page.size(1280, still=True)
    page.open()
    page.sample(8)
    page.set("turn-noise", 0.5)
    page.photograph(folder / "explorer_static.png")


def beside(files: list[Path]) -> Image.Image:
    pictures = [Image.open(file).convert("RGB") for file in files]
    made = Image.new("RGB", (sum(picture.width for picture in pictures), pictures[0].height), "white")
    for at, picture in enumerate(pictures):
        made.paste(picture, (at * pictures[0].width, 0))
    return made


def main(folder: Path) -> None:
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in FLAGS.split():
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    networks = load_networks()
    try:
        with tempfile.TemporaryDirectory() as aside:
            with served(networks) as address:
                with_server(Page(driver, address), folder, Path(aside))
            list(write_site({"mnist-max-min": networks["mnist-max-min"]}, Path(aside) / "site"))
            with files_served(Path(aside) / "site") as address:
                without_server(Page(driver, address), folder)
        for file in folder.glob("explorer*.png"):
            Image.open(file).convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE).save(file, optimize=True)
    finally:
        driver.quit()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
