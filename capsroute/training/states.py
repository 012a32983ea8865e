"""The state of model and optimiser as whole tensors, whether one process holds them or several hold a part each."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

__all__ = ["load_states", "whole_model", "whole_states"]


def whole_states(model: nn.Module, optimiser: torch.optim.Optimizer, sharded: bool) -> tuple[dict, dict]:
    """State dicts of both. Of sharded ones every process must ask, and the first one gets an answer."""
    if not sharded:
        return model.state_dict(), optimiser.state_dict()
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict

    options = _whole(offload=True)
    # Asking an optimiser that has not stepped yet would make it step, and count that.
    stepped = len(optimiser.state) > 0
    return (
        get_model_state_dict(model, options=options),
        get_optimizer_state_dict(model, optimiser, options=options) if stepped else {},
    )


def load_states(model: nn.Module, optimiser: torch.optim.Optimizer, state: dict[str, Any], sharded: bool) -> None:
    """Put back what `whole_states` gave, as `state["model"]` and `state["optimiser"]`."""
    if not sharded:
        model.load_state_dict(state["model"])
        optimiser.load_state_dict(state["optimiser"])
        return
    from torch.distributed.checkpoint.state_dict import set_model_state_dict, set_optimizer_state_dict

    set_model_state_dict(model, state["model"], options=_whole())
    if state["optimiser"]:
        set_optimizer_state_dict(model, optimiser, state["optimiser"], options=_whole())


def whole_model(model: nn.Module, template: nn.Module | None) -> nn.Module:
    """The model itself; of a sharded one, `template` (a copy from before) with the weights of all processes."""
    if template is None:
        return model
    from torch.distributed.checkpoint.state_dict import get_model_state_dict

    state = get_model_state_dict(model, options=_whole(offload=True))
    if state:
        template.load_state_dict(state)
    return template


def _whole(offload: bool = False) -> Any:
    from torch.distributed.checkpoint.state_dict import StateDictOptions

    return StateDictOptions(full_state_dict=True, cpu_offload=offload)
