"""The convolutional networks that capsules are compared with."""

import torch

import capsroute as cr
from tests.models.inputs import inputs, settled, small


def test_maps_shrink_as_in_table_2():
    sizes, x = [], torch.zeros(1, 3, 32, 32)
    for layer in cr.create_model("tsai_cnn", channels=2).eval().layers:
        x = layer(x)
        sizes.append(tuple(x.shape[2:]))
    assert [size for size in dict.fromkeys(sizes) if size] == [(16, 16), (8, 8), (4, 4), (2, 2), (1, 1)]


def test_maps_shrink_as_in_table_12():
    sizes, x = [], torch.zeros(1, 1, 36, 36)
    for layer in cr.create_model("tsai_multimnist_cnn", channels=2, hidden=3).eval().layers:
        x = layer(x)
        sizes.append(tuple(x.shape[1:]))
    assert sizes[-3:] == [(3, 1, 1), (3,), (10,)]
    assert (2, 18, 18) in sizes
    assert (2, 8, 8) in sizes
    assert (2, 6, 6) in sizes


def test_averaging_is_one_way_to_learn_the_whole_map():
    pooled = settled(small("tsai_multimnist_cnn"))
    learned = small("tsai_multimnist_cnn", pool=False).eval()
    state = {name: tensor for name, tensor in pooled.state_dict().items() if name in learned.state_dict()}
    convolution, last = pooled.layers[8], pooled.layers[-1]
    with torch.no_grad():
        learned.load_state_dict(
            {**learned.state_dict(), **{k: v for k, v in state.items() if int(k[7:].split(".")[0]) < 8}}
        )
        places = learned.layers[9].in_features // convolution.in_channels
        averaged = convolution.weight[:, :, 0, 0].repeat_interleave(places, 1) / places
        learned.layers[9].weight.copy_(averaged)
        learned.layers[9].bias.copy_(convolution.bias)
        learned.layers[10].load_state_dict(last.state_dict())
    torch.testing.assert_close(learned(inputs(learned)).scores, pooled(inputs(pooled)).scores, rtol=1e-4, atol=1e-5)


def test_there_are_no_coefficients():
    model = small("tsai_resnet18")
    assert model(inputs(model), return_coefficients=True).coefficients == {}
    assert model.routed_layers() == {}
