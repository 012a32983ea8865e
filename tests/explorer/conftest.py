"""Networks small enough to load at once: one digit, two digits, no decoder."""

import pytest
import torch

import capsroute as cr
from capsroute.explorer.network import Network


def network(objects: int = 1, seed: int = 0, **options) -> Network:
    torch.manual_seed(seed)
    model = cr.create_model("capsnet_small", **{"image_size": 8, "routing": "max_min", "std": 0.3, **options}).eval()
    samples = torch.randint(256, (4, *model.input_shape), dtype=torch.uint8)
    return Network(
        title="Small one",
        model=model,
        master=None,
        classes=tuple("0123456789"),
        samples=samples,
        labels=("3", "1", "4", "1"),
        objects=objects,
    )


@pytest.fixture
def one_digit() -> Network:
    return network()


@pytest.fixture
def two_digits() -> Network:
    return network(objects=2)


@pytest.fixture(scope="session")
def downloads(tmp_path_factory):
    return tmp_path_factory.mktemp("downloads")


@pytest.fixture(scope="session")
def browser(tmp_path_factory, downloads):
    webdriver = pytest.importorskip("selenium.webdriver")
    from tests.explorer.sites import BROWSER, DRIVER, FLAGS, HANGS

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in FLAGS.split():
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.set_script_timeout(HANGS)
    driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(downloads)})
    yield driver
    driver.quit()
