"""`python -m capsroute.reproduce RUN TAG`: a maintainer puts the weights of a finished run into the package."""

import argparse

from capsroute.models.pretrained import FOLDER
from capsroute.reproduce.bundling import bundle


def main() -> None:
    """Bundle one run."""
    parser = argparse.ArgumentParser(prog="python -m capsroute.reproduce", description=main.__doc__)
    parser.add_argument("run", help="a finished run folder, with best/ and result.json")
    parser.add_argument("tag", help="what its weights are called, such as cifar10-routing-pooling")
    parser.add_argument("--stored", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--images", type=int, help="measure on so many test images; otherwise on all")
    parser.add_argument("--device", default="cpu", help="where to measure")
    parser.add_argument("--folder", default=FOLDER, help="where the folder TAG goes; otherwise into the package")
    print(bundle(**vars(parser.parse_args())))


if __name__ == "__main__":
    main()
