"""A network with its mechanism laid open: besides class scores and poses it gives the votes for its class capsules.

The browser routes these votes itself, so that every iteration and every other routing is seen at work. Where routing
is no matter of one layer's votes alone (several routed layers, other algorithms), the network's own iterations are
recorded and given along.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from capsroute.analysis.tracing import watching
from capsroute.explorer.network import Network
from capsroute.layers import CapsuleLinear, flatten_positions
from capsroute.models import ModelOutput
from capsroute.votes import Votes

IN_BROWSER = {"softmax": "dynamic", "max_min": "max_min"}  # the loops that static/routing.js knows, and its names


class Exposed(nn.Module):
    """images [b,c,h,w] in [0,1] -> the outputs named by `output_names`; d counts the numbers of a pose.

    scores [b,j] probabilities or lengths; poses [b,j,d]; votes [b,i,j,d] for the class capsules; where iterations are
    recorded also coefficients [b,t,i,j] and capsules [b,t,j,d].

    >>> import torch
    >>> from capsroute.explorer.network import load_network
    >>> from capsroute.explorer.exposed import Exposed
    >>> exposed = Exposed(load_network())
    >>> dict(zip(exposed.output_names, [list(output.shape) for output in exposed(torch.rand(2, 1, 28, 28))]))
    {'scores': [2, 10], 'poses': [2, 10, 16], 'votes': [2, 288, 10, 16]}
    """

    def __init__(self, network: Network):
        super().__init__()
        # Whoever watches a model sees everything it does: a copy that nobody else asks.
        self.model = copy.deepcopy(network.model).eval()
        if self.model.decoder is not None:
            self.model.register_module("decoder", None)
        self.input_shape = network.model.input_shape
        self.objects = network.objects
        self.layer = self._class_layer()
        self.in_browser = self._is_in_browser()
        with torch.no_grad():
            shown = self._outputs(torch.zeros(1, *self.input_shape))
        self.output_names = list(shown)
        self.output_shapes = {name: list(output.shape[1:]) for name, output in shown.items()}

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        return tuple(self._outputs(images).values())

    @property
    def algorithm(self) -> dict[str, Any] | None:
        """Name and options of the last layer's routing; None where nothing is routed to class capsules."""
        if self.layer is None:
            return None
        router = self.model.routed_layers()[self.layer].routing
        named = "fast" if self.given is not None else IN_BROWSER.get(router.accumulates or "", router.name)
        return {**router.config(), "name": named if self.in_browser else router.name}

    @property
    def given(self) -> Tensor | None:
        """The coefficients [i,j] that the class capsules were given, where they were."""
        return None if self.layer is None else self.model.routed_layers()[self.layer].routing.given_coefficients()

    def _class_layer(self) -> str | None:
        layers = list(self.model.routed_layers().items())
        if not layers:
            return None
        name, last = layers[-1]
        return name if isinstance(last, CapsuleLinear) and last.num_parents == self.model.num_classes else None

    def _is_in_browser(self) -> bool:
        routed = self.model.routed_layers()
        if self.layer is None or len(routed) != 1:
            return False
        router = routed[self.layer].routing
        return router.activation == "squash" and (self.given is not None or router.accumulates in IN_BROWSER)

    def _outputs(self, images: Tensor) -> dict[str, Tensor]:
        if self.layer is None:
            return self._named(self.model(images))
        if not self.in_browser:
            return self._recorded(images)
        layer, given = self.model.routed_layers()[self.layer], []
        with layer.register_forward_pre_hook(lambda layer, args: given.append(args[0])):
            named = self._named(self.model(images))
        return named | {"votes": _dense(layer.votes(flatten_positions(given[0]).poses))}

    def _recorded(self, images: Tensor) -> dict[str, Tensor]:
        with watching(self.model) as layers:
            named = self._named(self.model(images, return_coefficients=True))
        assert self.layer is not None
        steps = layers[self.layer].steps
        return named | {
            "votes": _dense(steps[-1].votes),
            "coefficients": torch.stack([step.weights(layers[self.layer].layer.routing) for step in steps], 1),
            "capsules": torch.stack([step.routed.poses.flatten(2) for step in steps], 1),
        }

    def _named(self, output: ModelOutput) -> dict[str, Tensor]:
        named = {"scores": self._probabilities(output.scores)}
        return named if output.poses is None else named | {"poses": output.poses.flatten(2)}

    def _probabilities(self, scores: Tensor) -> Tensor:
        if self.model.score_kind != "logit":
            return scores
        return scores.softmax(1) if self.objects == 1 else scores.sigmoid()


class Painter(nn.Module):
    """The decoder: class capsules [b,1,j,d], all but one of them zero, -> pictures [b,c,h,w] in [0,1].

    >>> import torch
    >>> from capsroute.explorer.network import load_network
    >>> from capsroute.explorer.exposed import Painter
    >>> Painter(load_network().model)(torch.zeros(2, 1, 10, 16)).shape
    torch.Size([2, 1, 28, 28])
    """

    def __init__(self, model: nn.Module):
        super().__init__()
        decoder = copy.deepcopy(model.decoder)
        assert isinstance(decoder, nn.Module)
        self.decoder = decoder.eval()
        classes = int(model.num_classes)  # type: ignore[arg-type]
        first = next(module for module in self.decoder.modules() if isinstance(module, nn.Linear))
        self.input_shape = (1, classes, first.in_features // classes)
        self.output_names = ["pictures"]

    def forward(self, poses: Tensor) -> Tensor:
        every = poses.new_ones(poses.shape[0], poses.shape[2])
        return self.decoder(poses.transpose(1, 2), every)


def _dense(votes: Votes) -> Tensor:
    """Votes [b,i,j,d]."""
    return votes.dense().flatten(3)
