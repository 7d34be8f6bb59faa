"""A graph's stored weights as tensors of a torch device: where they lie, or brought into memory of the device's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from trivet.base.dtypes import Array
from trivet.driver.devices.torch_memory import TorchMemory
from trivet.framework.graph.ir import Graph
from trivet.framework.graph.plan import Bring
from trivet.operators.torch.call import DTYPES
from trivet.operators.torch.sample import as_torch


class TorchWeights:
    """The weights of `graph` on `device`, from arrays on the host or from who brings them to it."""

    def __init__(self, graph: Graph, stored: Mapping[str, Array] | Bring, device: torch.device) -> None:
        self._recipes = graph.weights
        self._stored = stored
        self._device = device

    def take(self, names: Sequence[str]) -> dict[str, torch.Tensor]:
        """The weights named, as stored. Those that are brought share one memory, which lives as long as any of them.

        Arrays in the host's memory become tensors of the CPU where they lie; to another device they go one by one.
        """
        if isinstance(self._stored, Mapping):
            return {name: self._on_device(name, self._stored[name]) for name in names}
        memory, places = self._stored(names, lambda num_bytes: TorchMemory(num_bytes, self._device))
        tensors = {}
        for name in names:
            recipe = self._recipes[name]
            assert recipe.dtype is not None, "a plan takes a graph whose weights have their dtypes"
            # A tensor without elements is nowhere.
            tensors[name] = memory.view(places.get(name, 0), recipe.stored_shape, DTYPES[recipe.dtype])
        return tensors

    def _on_device(self, name: str, array: Array) -> torch.Tensor:
        # A mapped file cannot be written, and PyTorch has no such tensors.
        own = array if array.flags.writeable else array.copy()
        return as_torch(own, self._recipes[name].dtype).to(self._device)
