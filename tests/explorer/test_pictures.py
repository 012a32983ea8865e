"""Images from browsers and files: exact where they can be, refused with a message where they cannot."""

import io
import struct
import zlib

import pytest
import torch
from PIL import Image

from capsroute.explorer.pictures import Refused, as_message, as_mnist, from_file, from_message, to_shape


def file_of(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    content = io.BytesIO()
    image.save(content, kind, **options)
    return content.getvalue()


def test_messages_go_there_and_back():
    image = torch.arange(2 * 3 * 5).view(2, 3, 5) * 8 / 255
    message = as_message(image)
    assert (message["channels"], message["height"], message["width"]) == (2, 3, 5)
    torch.testing.assert_close(from_message(message), image.float())


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"data": "%%%"}, "data in base64"),
        ({"data": "AAAA"}, "expected 4 bytes"),
        ({"data": None}, "data in base64"),
        ({"width": 100_000}, "sides of 1 to 512"),
        ({"width": 0}, "sides of 1 to 512"),
        ({"width": True}, "sides of 1 to 512"),
        ({"width": 2.0}, "sides of 1 to 512"),
        ({"channels": 4}, "1 to 3 channels"),
    ],
)
def test_messages_that_are_none(changed, said):
    message = as_message(torch.zeros(1, 2, 2)) | changed
    with pytest.raises(Refused, match=said):
        from_message(message)


@pytest.mark.parametrize("message", [None, 3, "text", [], {}])
def test_things_that_are_no_message(message):
    with pytest.raises(Refused, match="image: expected"):
        from_message(message)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA"])
def test_every_usual_mode_is_read(mode):
    picture = Image.new("L", (4, 3), 0)
    picture.putpixel((2, 1), 255)
    image = from_file(file_of(picture.convert(mode)))
    assert image.shape == (1, 3, 4)
    assert image[0, 1, 2] == 1
    assert image.sum() == 1


def test_colour_stays_colour_and_transparent_is_black():
    image = from_file(file_of(Image.new("RGBA", (2, 2), (255, 0, 0, 255))))
    assert image[:, 0, 0].tolist() == [1, 0, 0]
    assert from_file(file_of(Image.new("RGBA", (2, 2), (255, 0, 0, 0)))).max() == 0


def test_a_photograph_on_its_side_is_put_upright():
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise
    picture = Image.new("L", (4, 2), 0)
    picture.paste(255, (0, 0, 2, 2))  # left half white
    image = from_file(file_of(picture, "JPEG", quality=95, exif=exif.tobytes()))
    assert image.shape == (1, 4, 2)
    assert image[0, 0].min() > 0.9
    assert image[0, 3].max() < 0.1


@pytest.mark.parametrize("mode", ["I;16", "CMYK"])
def test_other_modes_get_a_message(mode):
    content = file_of(Image.new(mode, (4, 4)), "PNG" if mode == "I;16" else "JPEG")
    with pytest.raises(Refused, match=f"stored as {mode}"):
        from_file(content)


@pytest.mark.parametrize("content", [b"", b"hello", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"%PDF-1.4", b"<svg/>"])
def test_what_is_no_image_gets_a_message(content):
    with pytest.raises(Refused, match=r"not an image file|damaged"):
        from_file(content)


def test_formats_that_run_programs_are_not_opened():
    with pytest.raises(Refused, match="not an image file"):
        from_file(file_of(Image.new("RGB", (4, 4)), "EPS"))


def test_a_cut_off_file_gets_a_message():
    noise = Image.effect_noise((64, 64), 50)
    with pytest.raises(Refused, match="damaged or cut off"):
        from_file(file_of(noise)[:-200])


@pytest.mark.parametrize(("width", "height"), [(30_000, 30_000), (1_000_000, 17), (5000, 4000)])
def test_a_bomb_is_refused_before_it_is_unpacked(width, height):
    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    content = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")
    with pytest.raises(Refused, match=r"million are read|not an image file"):
        from_file(content)


def test_to_shape_cuts_out_the_middle_and_makes_grey():
    image = torch.zeros(3, 8, 16)
    image[:, :, 4:12] = 1
    assert torch.equal(to_shape(image, (1, 4, 4)), torch.ones(1, 4, 4))
    red = torch.tensor([1.0, 0.0, 0.0])[:, None, None].expand(3, 4, 4)
    torch.testing.assert_close(to_shape(red, (2, 4, 4)), torch.full((2, 4, 4), 0.299))
    assert to_shape(torch.rand(1, 3, 500), (3, 32, 32)).shape == (3, 32, 32)


def test_scaling_down_averages():
    image = torch.zeros(1, 8, 8)
    image[0, ::2] = 1
    assert (to_shape(image, (1, 2, 2)) - 0.5).abs().max() < 0.1


@pytest.mark.parametrize(("top", "left"), [(0, 0), (50, 20), (70, 85)])
def test_a_drawing_is_fitted_and_centred_wherever_it_is(top, left):
    drawing = torch.zeros(1, 112, 112)
    drawing[:, top : top + 40, left : left + 20] = 1
    digit = as_mnist(drawing)
    rows, columns = (digit[0] > 0.5).nonzero().unbind(1)
    assert (int(rows.min()), int(rows.max())) == (4, 23)  # 20 pixels, in the middle
    assert (int(columns.min()), int(columns.max())) == (9, 18)


def test_the_centre_of_mass_is_what_is_centred():
    drawing = torch.zeros(1, 100, 100)
    drawing[:, :100, :20] = 1  # an upright stroke
    drawing[:, 80:, :100] = 1  # with a foot to the right: heavier at the lower left
    digit = as_mnist(drawing)
    mass = digit[0] / digit.sum()
    centre = [float((mass.sum(1 - axis) * (torch.arange(28) + 0.5)).sum()) for axis in (0, 1)]
    assert all(abs(at - 14) <= 0.5 for at in centre)
    columns = (digit[0] > 0.5).any(0).nonzero()
    assert int(columns.min()) > 28 - int(columns.max()) - 1  # so the box itself lies to the right


def test_an_empty_drawing_stays_empty():
    assert torch.equal(as_mnist(torch.zeros(1, 50, 50)), torch.zeros(1, 28, 28))
