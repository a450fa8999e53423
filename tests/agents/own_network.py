"""An example of a user's network: a residual layer between two linear ones."""

import torch
from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self, inputs: int, outputs: int, width: int = 64) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(inputs, width), nn.Linear(width, width)
        self.last = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x))  # [N, inputs]
        return self.last(x + torch.tanh(self.second(x)))  # [N, outputs]
