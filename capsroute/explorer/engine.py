"""What a network answers, as plain arrays: to images, and to poses that are to be drawn; and these on their way from
the page and back. Drawings, photographs and files are made ready by the browser."""

import base64
from typing import Any

import torch
from torch import Tensor

from capsroute.analysis import child_places
from capsroute.explorer.exposed import Exposed, Painter
from capsroute.explorer.network import Network
from capsroute.inference.coefficients import uniform_coefficients


class Engine:
    """Answers about the model of a network.

    >>> import torch
    >>> from capsroute.explorer.engine import Engine
    >>> from capsroute.explorer.network import load_network
    >>> engine = Engine(load_network())
    >>> answer = engine.look(torch.zeros(2, 1, 28, 28, dtype=torch.uint8), ("scores",))
    >>> answer["scores"].shape
    torch.Size([2, 10])
    """

    def __init__(self, network: Network):
        self.network, self.model = network, network.model
        self.exposed = Exposed(network)
        self.painter = Painter(network.model) if network.model.decoder is not None else None

    @torch.no_grad()
    def look(self, images: Tensor, wanted: tuple[str, ...]) -> dict[str, Tensor]:
        """Outputs of the network, those that are wanted, for images uint8 [n,c,h,w]."""
        answers = dict(zip(self.exposed.output_names, self.exposed(images.float() / 255)))
        return {name: answers[name].float() for name in wanted}

    @torch.no_grad()
    def paint(self, poses: Tensor) -> Tensor:
        """The decoder's pictures [n,c,h,w] of class capsules [n,1,j,d], all but one of each zero."""
        assert self.painter is not None
        return self.painter(poses)

    def describe(self) -> dict[str, Any]:
        """All that the page needs to know before anything is drawn."""
        network, (channels, height, width) = self.network, self.model.input_shape
        return {
            "title": network.title,
            "model": self.model.name,
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "classes": list(network.classes),
            "shape": {"channels": channels, "height": height, "width": width},
            "scores": "length" if self.model.score_kind == "length" else "probability",
            "objects": network.objects,
            "centred": network.centred,
            "polarity": self.model.preprocessing.polarity,
            "crop": self.model.preprocessing.crop,
            "digits": network.classes == tuple("0123456789") and channels == 1,
            "decoder": None if self.painter is None else list(self.painter.input_shape),
            "outputs": self.exposed.output_shapes,
            "usual": self._usual(),
            "routing": self._routing(),
            "samples": [
                {"label": label, "image": as_message(image.float() / 255)}
                for image, label in zip(network.samples, network.labels)
            ],
        }

    def _usual(self) -> float | None:
        """The least that the winning class of a sample image has: below it, the network is less sure than usual."""
        if self.network.objects > 1 or len(self.network.samples) == 0:
            return None
        return float(self.look(self.network.samples, ("scores",))["scores"].amax(1).min())

    def _routing(self) -> dict[str, Any] | None:
        exposed = self.exposed
        if exposed.layer is None or exposed.algorithm is None:
            return None
        axes, reach = self._axes()
        routing: dict[str, Any] = {
            "algorithm": exposed.algorithm,
            "in_browser": exposed.in_browser,
            "layers": len(self.model.routed_layers()),
            "places": self._places(),
            "axes": _floats(axes),  # [j, 2, d]
            "reach": _floats(reach),  # [j]
            "master": None,
            "uniform": None,
        }
        if exposed.in_browser:
            routing["uniform"] = float(uniform_coefficients(self.model)[exposed.layer].flatten()[0])
            master = self.network.master
            if master is not None and exposed.layer in master:
                routing["master"] = _floats(master[exposed.layer])
            if exposed.given is not None:
                routing["given"] = _floats(exposed.given)
        return routing

    @torch.no_grad()
    def _axes(self) -> tuple[Tensor, Tensor]:
        """Of each parent's votes the two principal axes [j,2,d], and how far all but the longest votes reach [j]."""
        images = self.network.samples
        if len(images) == 0:
            shape = (8, *self.model.input_shape)
            images = torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
        votes = self.look(images, ("votes",))["votes"].transpose(1, 2).transpose(0, 1).flatten(1, 2)  # [j, n*i, d]
        # About zero, not about the mean: the origin stays a vote that says nothing.
        _, vectors = torch.linalg.eigh(votes.mT @ votes)  # ascending
        axes = vectors.mT.flip(1)[:, :2]  # [j, 2, d]
        if axes.shape[1] < 2:
            axes = torch.cat([axes, torch.zeros_like(axes)], 1)
        sign = torch.where((votes.sum(1, keepdim=True) * axes).sum(2) < 0, -1.0, 1.0)  # [j, 2]
        return axes * sign.unsqueeze(2), torch.quantile(votes.norm(dim=2), 0.998, dim=1).clamp_min(1e-12)

    def _places(self) -> dict[str, Any] | None:
        """Where in the image the children look: middles of rows and columns, and the side of the field, in pixels."""
        try:
            places = child_places(self.model, self.exposed.layer)
        except ValueError:  # the children are a list
            return None
        rows, columns = places.rows.tolist(), places.columns.tolist()
        # Without padding the first field begins at the first pixel; with padding children share the image evenly.
        return {"rows": rows, "columns": columns, "field": [2 * rows[0] + 1, 2 * columns[0] + 1]}


def _floats(tensor: Tensor) -> str:
    """Numbers as base64 of float32, little-endian."""
    return base64.b64encode(tensor.detach().float().contiguous().numpy().astype("<f4").tobytes()).decode()


MOST_ROWS = 16  # images, or poses, in one question


class Refused(ValueError):
    """Something that was sent cannot be used; the message is for the person who sent it."""


def as_message(image: Tensor) -> dict[str, Any]:
    """An image [c,h,w] in [0,1] as the page takes it: sizes, and its bytes in base64.

    >>> import torch
    >>> from capsroute.explorer.engine import as_message
    >>> as_message(torch.ones(1, 1, 3))
    {'channels': 1, 'height': 1, 'width': 3, 'data': '////'}
    """
    data = image.detach().cpu().clamp(0, 1).mul(255).round().to(torch.uint8).contiguous().numpy().tobytes()
    channels, height, width = image.shape
    return {"channels": channels, "height": height, "width": width, "data": base64.b64encode(data).decode()}


def images_of(content: bytes, shape: tuple[int, int, int]) -> Tensor:
    """Images uint8 [n,c,h,w] from their bytes, one after the other.

    >>> from capsroute.explorer.engine import images_of
    >>> images_of(bytes(2 * 784), (1, 28, 28)).shape
    torch.Size([2, 1, 28, 28])
    """
    _check_rows(len(content), shape[0] * shape[1] * shape[2])
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).view(-1, *shape)


def poses_of(content: bytes, shape: tuple[int, int, int]) -> Tensor:
    """Class capsules float32 [n,1,j,d] from their bytes, little-endian.

    >>> from capsroute.explorer.engine import poses_of
    >>> poses_of(bytes(4 * 160), (1, 10, 16)).shape
    torch.Size([1, 1, 10, 16])
    """
    _check_rows(len(content), 4 * shape[0] * shape[1] * shape[2])
    poses = torch.frombuffer(bytearray(content), dtype=torch.float32).view(-1, *shape)
    if not bool((poses.abs() < 1e6).all()):  # NaN is no number below 1e6 either
        raise Refused("expected poses of finite numbers")
    return poses


def _check_rows(size: int, row: int) -> None:
    rows, rest = divmod(size, row)
    if rest or not 1 <= rows <= MOST_ROWS:
        raise Refused(f"expected 1 to {MOST_ROWS} times {row} bytes, got {size}")
