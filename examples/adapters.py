"""Fine-tuning: a frozen backbone that reads upright digits learns mirrored ones through small adapters.

    potluck train examples/adapters.py --local 1,0.5,0.25

Only the adapters, 4 % of the weights, have gradients and optimizer state; they alone are summed over a group. The
backbone is trained here first, in a few seconds; yours would come from a file (`Job.init`).
"""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import potluck
from potluck.datasets.digits import digits

WIDTH = 192
RANK = 4


class Adapted(nn.Module):
    """A frozen linear layer and a trainable correction of low rank, which starts at zero."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, RANK, bias=False)
        self.up = nn.Linear(RANK, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return what the base says, corrected."""
        return self.base(x) + self.up(self.down(x))  # type: ignore[no-any-return]


class Backbone(nn.Module):
    """Five layers with shortcuts on the 64 pixels of a digit."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(4))
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return class scores."""
        x = self.first(x.flatten(1))
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + F.gelu(layer(norm(x)))
        return self.head(x)  # type: ignore[no-any-return]


@cache
def pretrained() -> dict[str, Tensor]:
    """Return the weights of a backbone that reads upright digits."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        backbone = Backbone()
        optimizer = torch.optim.AdamW(backbone.parameters(), lr=1e-3)
        for _ in range(15):
            for rows in torch.randperm(len(images)).split(50):
                optimizer.zero_grad()
                F.cross_entropy(backbone(images[rows]), labels[rows]).backward()
                optimizer.step()
        return backbone.state_dict()


def make_model() -> nn.Module:
    """Return the frozen backbone with an adapter at every layer."""
    backbone = Backbone()
    backbone.load_state_dict(pretrained())
    backbone.requires_grad_(False)
    backbone.first = Adapted(backbone.first)  # type: ignore[assignment]
    backbone.layers = nn.ModuleList(Adapted(layer) for layer in backbone.layers if isinstance(layer, nn.Linear))
    return backbone


def accuracy(outputs: Tensor, labels: Tensor) -> float:
    """Return the fraction of digits read correctly."""
    return (outputs.argmax(1) == labels).float().mean().item()


images, labels, test_images, test_labels = (torch.from_numpy(a) for a in digits())

job = potluck.Job(
    model=make_model,
    loss=F.cross_entropy,
    optimizer=potluck.AdamW(lr=5e-3),
    data=(images.flip(-1), labels),
    eval_data=(test_images.flip(-1), test_labels),
    batch_size=100,
    micro_batch_size=10,
    epochs=10,
    metrics={"accuracy": accuracy},
)
