"""Small image models: no trick, a batch norm with in-place operators, squeeze-excite, long skips."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.models.case import Case, Inputs, images, seeded


class Mlp(nn.Module):
    """Three layers on a flattened image."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 10)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return class scores."""
        out: Tensor = self.layers(x)
        return out


class Residual(nn.Module):
    """Two convolutions around a shortcut, written the usual way: everything in place."""

    def __init__(self, width_in: int, width_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width_out, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width_out)
        self.conv2 = nn.Conv2d(width_out, width_out, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width_out)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or width_in != width_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(width_in, width_out, 1, stride, bias=False), nn.BatchNorm2d(width_out)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Return relu(f(x) + x)."""
        y = self.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        y += self.shortcut(x)
        out: Tensor = self.relu(y)
        return out


class ResidualCnn(nn.Module):
    """A ResNet of six blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True))
        widths = [(16, 16, 1), (16, 16, 1), (16, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1)]
        self.blocks = nn.Sequential(*(Residual(*w) for w in widths))
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return class scores."""
        out: Tensor = self.head(F.adaptive_avg_pool2d(self.blocks(self.stem(x)), 1).flatten(1))
        return out


class SqueezeExcite(nn.Module):
    """Scales each channel by what the whole image says of it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(width, width // 4, 1)
        self.expand = nn.Conv2d(width // 4, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return x with its channels scaled."""
        scale = F.silu(self.reduce(F.adaptive_avg_pool2d(x, 1)), inplace=True)
        return x * F.hardsigmoid(self.expand(scale), inplace=True)


class InvertedResidual(nn.Module):
    """Expand, depthwise convolution, squeeze-excite, project, and a shortcut where shapes allow."""

    def __init__(self, width_in: int, width_out: int, stride: int, activation: type[nn.Module]) -> None:
        super().__init__()
        inner = 4 * width_in
        self.add = stride == 1 and width_in == width_out
        self.layers = nn.Sequential(
            nn.Conv2d(width_in, inner, 1, bias=False),
            nn.BatchNorm2d(inner),
            activation(inplace=True),
            nn.Conv2d(inner, inner, 3, stride, padding=1, groups=inner, bias=False),
            nn.BatchNorm2d(inner),
            activation(inplace=True),
            SqueezeExcite(inner),
            nn.Conv2d(inner, width_out, 1, bias=False),
            nn.BatchNorm2d(width_out),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        out: Tensor = x + self.layers(x) if self.add else self.layers(x)
        return out


class InvertedResidualCnn(nn.Module):
    """A MobileNetV3-like network of five blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 12, 3, 2, padding=1, bias=False), nn.BatchNorm2d(12), nn.Hardswish(inplace=True)
        )
        plan = [(12, 12, 1, nn.SiLU), (12, 24, 2, nn.SiLU), (24, 24, 1, nn.Hardswish)]
        plan += [(24, 40, 2, nn.Hardswish), (40, 40, 1, nn.Hardswish)]
        self.blocks = nn.Sequential(*(InvertedResidual(*p) for p in plan))
        self.head = nn.Linear(40, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return class scores."""
        out: Tensor = self.head(self.blocks(self.stem(x)).mean((2, 3)))
        return out


def _double(width_in: int, width_out: int) -> nn.Sequential:
    """Return two convolutions with group norm, which couples no samples."""
    return nn.Sequential(
        nn.Conv2d(width_in, width_out, 3, padding=1),
        nn.GroupNorm(4, width_out),
        nn.ReLU(inplace=True),
        nn.Conv2d(width_out, width_out, 3, padding=1),
        nn.GroupNorm(4, width_out),
        nn.ReLU(inplace=True),
    )


class Unet(nn.Module):
    """Three scales down and up; what leaves early is needed late, so several tensors cross every cut."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.bottom = _double(1, 16), _double(16, 32), _double(32, 64)
        self.rise2 = nn.ConvTranspose2d(64, 32, 2, stride=2)
        self.up2, self.up1 = _double(64, 32), _double(48, 16)
        self.head = nn.Conv2d(16, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return a score per class and pixel."""
        skip1 = self.down1(x)
        skip2 = self.down2(F.max_pool2d(skip1, 2))
        low = self.bottom(F.max_pool2d(skip2, 2))
        mid = self.up2(torch.cat([self.rise2(low), skip2], 1))
        high = F.interpolate(mid, scale_factor=2, mode="bilinear", align_corners=False)
        out: Tensor = self.head(self.up1(torch.cat([high, skip1], 1)))
        return out


def mlp() -> Case:
    """Return the simplest case."""
    return Case(name="mlp", make_model=seeded(Mlp), loss=F.cross_entropy, example=images(1, 8, 10))


def residual_cnn() -> Case:
    """Return a ResNet with batch norm, in-place relu and `+=`."""
    return Case(
        name="residual_cnn",
        make_model=seeded(ResidualCnn),
        loss=F.cross_entropy,
        example=images(3, 16, 10),
        batch_coupled=True,
    )


def inverted_residual() -> Case:
    """Return a network of depthwise convolutions with squeeze-excite and batch norm."""
    return Case(
        name="inverted_residual",
        make_model=seeded(InvertedResidualCnn),
        loss=F.cross_entropy,
        example=images(3, 32, 10),
        batch_coupled=True,
    )


def unet() -> Case:
    """Return a network with long skips and a loss per pixel."""

    def example(n: int, seed: int, dtype: torch.dtype) -> tuple[Inputs, Tensor]:
        random = torch.Generator().manual_seed(seed)
        pixels = torch.randn(n, 1, 16, 16, generator=random, dtype=torch.float64).to(dtype)
        return pixels, torch.randint(4, (n, 16, 16), generator=random)

    return Case(name="unet", make_model=seeded(Unet), loss=F.cross_entropy, example=example)
