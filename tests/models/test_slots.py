"""The slot autoencoder: its mixture, its sizes, and that it learns a scene apart."""

import pytest
import torch

import capsroute as cr

SMALL = {"features": 8, "channels": 8, "hidden": 8, "kernel_size": 3}


@pytest.mark.parametrize(("size", "doublings"), [(14, 0), (14, 1), ((9, 13), 2)])
def test_a_picture_is_the_sum_of_what_slots_draw(size, doublings):
    model = cr.models.SlotAutoencoder(image_size=size, slots=3, doublings=doublings, **SMALL)
    height, width = model.input_shape[1:]
    output = model(torch.rand(2, 3, height, width), return_coefficients=True)
    assert output.colours.shape == (2, 3, 3, height, width)
    torch.testing.assert_close(output.masks.sum(1), torch.ones(2, height, width))
    torch.testing.assert_close(output.reconstruction, (output.colours * output.masks.unsqueeze(2)).sum(1))
    assert output.coefficients.shape == (2, height * width, 3)
    assert torch.equal(output.segments(), output.masks.argmax(1))


def test_the_number_of_slots_may_change_at_call_time():
    model = cr.models.SlotAutoencoder(image_size=9, slots=3, **SMALL)
    assert model(torch.rand(2, 3, 9, 9), slots=5).masks.shape == (2, 5, 9, 9)


def test_options_reach_the_attention():
    model = cr.models.SlotAutoencoder(image_size=9, attention={"bias": True, "start": "learned"}, **SMALL)
    assert model.attention.to_keys.bias is not None
    image = torch.rand(1, 3, 9, 9)
    assert torch.equal(model(image).masks, model(image).masks)


def test_every_parameter_learns():
    model = cr.models.SlotAutoencoder(image_size=9, slots=3, doublings=1, **SMALL)
    image = torch.rand(2, 3, 9, 9)
    (model(image).reconstruction - image).square().mean().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in model.parameters())


def test_in_float64_it_computes_in_float64():
    model = cr.models.SlotAutoencoder(image_size=5, slots=3, attention={"start": "learned"}, **SMALL).double()
    image = torch.rand(2, 3, 5, 5, dtype=torch.float64, requires_grad=True)
    assert model(image).reconstruction.dtype == torch.float64
    assert torch.autograd.gradcheck(lambda image: model(image).reconstruction, image, fast_mode=True)


def test_made_without_memory_it_takes_weights_and_is_the_same():
    options = {"image_size": 9, "slots": 3, "doublings": 1, "attention": {"start": "learned"}, **SMALL}
    model, image = cr.models.SlotAutoencoder(**options), torch.rand(2, 3, 9, 9)
    with torch.device("meta"):
        again = cr.models.SlotAutoencoder(**options)
    again.to_empty(device="cpu")
    for buffer in again.buffers():
        buffer.fill_(-1)
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(image).reconstruction, model(image).reconstruction)


def test_bad_input_is_refused_by_name():
    with pytest.raises(ValueError, match=r"images: expected \[b,3,9,9\], got \[2, 3, 9, 8\]"):
        cr.models.SlotAutoencoder(image_size=9, **SMALL)(torch.rand(2, 3, 9, 8))
    with pytest.raises(ValueError, match="kernel_size: expected an odd number, got 4"):
        cr.models.SlotAutoencoder(image_size=9, **{**SMALL, "kernel_size": 4})
