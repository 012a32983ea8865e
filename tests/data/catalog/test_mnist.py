import random

import pytest
import torch

from capsroute.data import DataError, load


def test_images_labels_and_splits(tiny_mnist):
    train, validation, everything = (load("mnist", split) for split in ("train", "validation", "train+validation"))
    assert everything.images.shape == (180, 1, 28, 28)
    assert everything.images[:, 0, 14, 14].tolist() == list(range(1, 181))
    assert everything.labels[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    together = torch.cat([train.images, validation.images])[:, 0, 14, 14].tolist()
    assert sorted(together) == list(range(1, 181))
    assert len(validation) == 18
    assert load("mnist", "test").images[:, 0, 14, 14].tolist() == list(range(181, 241))


def test_any_damage_to_any_file_is_noticed(tiny_mnist):
    pick = random.Random(0)
    for file in sorted((tiny_mnist / "mnist").iterdir()):
        whole = file.read_bytes()
        split = "test" if file.name.startswith("t10k") else "train"
        for _ in range(30):
            damaged = bytearray(whole)
            damaged[pick.randrange(len(whole))] ^= 1 << pick.randrange(8)
            for content in (bytes(damaged), whole[: pick.randrange(len(whole))], whole + b"\0"):
                file.write_bytes(content)
                with pytest.raises(DataError, match=file.name):
                    load("mnist", split)
        file.write_bytes(whole)
    assert len(load("mnist", "train")) == 162


@pytest.mark.network
@pytest.mark.parametrize(
    ("name", "first", "mean"), [("mnist", [5, 0, 4, 1, 9], 0.13066), ("fashion_mnist", [9, 0, 0, 3, 0], 0.28604)]
)
def test_the_real_data_set(tmp_path, name, first, mean):
    whole, test = (load(name, split, root=tmp_path) for split in ("train+validation", "test"))
    assert whole.images.shape == (60_000, 1, 28, 28)
    assert test.images.shape == (10_000, 1, 28, 28)
    assert whole.labels[:5].tolist() == first
    assert (
        test.labels.bincount().tolist()
        == {
            "mnist": [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
            "fashion_mnist": [1000] * 10,
        }[name]
    )
    assert abs(float(whole.images.float().mean()) / 255 - mean) < 1e-5
    assert sorted(path.name for path in tmp_path.iterdir()) == [name]
