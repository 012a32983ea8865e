"""Fine-tuning.

Weights that were trained on other images, a new classifier for classes of your own. Here MNIST's weights learn shapes.
"""

# %%
# Three kinds of shape, 28 x 28 pixels, light on dark as the weights know it.
import tempfile

import torch

import capsroute as cr


def shapes(count, seed):
    generator = torch.Generator().manual_seed(seed)
    images, labels = torch.zeros(count, 1, 28, 28, dtype=torch.uint8), torch.arange(count) % 3
    for image, label in zip(images[:, 0], labels.tolist()):
        top, left = torch.randint(4, 9, (2,), generator=generator).tolist()
        drawn = image[top : top + 15, left : left + 15]
        if label != 1:
            drawn[6:9] = 255  # bar and cross
        if label == 1:
            drawn[:], drawn[3:12, 3:12] = 255, 0  # ring
        if label == 2:
            drawn[:, 6:9] = 255
    return cr.data.ImageSet(images, labels, ("bar", "ring", "cross"))


splits = cr.training.Splits(shapes(60, 0), test={"shapes": shapes(30, 1)})

# %%
# The recipe says it all: start from trained weights, give the new classifier ten times the learning rate. `freeze = True`
# would train the classifier alone. On the command line: `capsroute train fine-tune --data FOLDER`.
recipe = {
    "model": {"name": "capsnet_max_min", "pretrained": True, "freeze": False},
    "optimiser": {"learning_rate": 1e-3, "classifier_factor": 10.0},
    "training": {"epochs": 3, "batch_size": 15, "threads": 1},
    "evaluation": {"pictures": False},
}
with tempfile.TemporaryDirectory() as folder:
    run = cr.training.fit(None, splits, recipe, folder, reporter=cr.training.SilentReporter())
    print(f"{run.accuracy:.0%} of the test images are right")
    print(cr.predict(folder, splits.test["shapes"].images[:3]))

# %%
# By hand, with timm's verbs: features, another classifier, freezing.
model = cr.create_model("zhao_huang_resnet20", pretrained=True, num_classes=3)
model.freeze_features()
print(model.num_features, model.forward_features(torch.rand(2, 3, 32, 32)).shape, model.get_classifier())
