"""Positional encodings: sinusoidal, Fourier, learned, and rotary (RoPE).

Attention alone ignores word order: "Zuko made his uncle tea" and "his uncle made Zuko tea" would be
the same to it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from transduce.errors import PluginError
from transduce.registry import register


class ExplicitPositions(NamedTuple):
    """Explicit positions of vectors, where they do not simply count up: packed sequences."""

    of_BT: Tensor
    end: int
    """An upper bound of the positions, known without synchronising with a device."""


class Sinusoids(nn.Module):
    """Sinusoidal encodings of any length: each pair of features has its own frequency.

    The table is computed in float64 and kept in the module's dtype; it grows when a longer sequence
    comes and is not saved with the weights.
    """

    table_TD: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        if width % 2:
            raise ValueError(
                f"{type(self).__name__} positions come in pairs of features, but the width {width} "
                f"is odd: make it even."
            )
        self.width = width
        self.register_buffer("table_TD", torch.empty(0, width), persistent=False)
        self._computed_dtype = self.table_TD.dtype

    def frequencies(self) -> Tensor:
        """Radians for each step, of each pair; float64 [D/2]."""
        raise NotImplementedError

    def sinusoids(self, angles_TD: Tensor) -> tuple[Tensor, Tensor]:
        """The first and second feature of each pair at these angles."""
        return angles_TD.cos(), angles_TD.sin()

    def forward(self, length: int, start: int = 0) -> Tensor:
        """The vectors [T, D] of positions start … start + length − 1."""
        end = start + length
        return self._table(end)[start:end]

    def at(self, positions: ExplicitPositions) -> Tensor:
        """The vectors [B, T, D] of these positions."""
        return self._table(positions.end)[positions.of_BT]

    def _table(self, end: int) -> Tensor:
        """The table, of `end` rows or more; another thread may put another in its place."""
        table_TD = self.table_TD
        # A table converted from a coarser dtype would keep its rounding.
        if end > table_TD.shape[0] or table_TD.dtype != self._computed_dtype:
            table_TD = self._grow(end)
        return table_TD

    def _grow(self, end: int) -> Tensor:
        rows = max(end, 2 * self.table_TD.shape[0])
        # A table made in inference mode could not be used in training afterwards.
        with torch.inference_mode(False), torch.no_grad():
            angles_TD = torch.outer(torch.arange(rows, dtype=torch.float64), self.frequencies())
            table_TD = torch.stack(self.sinusoids(angles_TD), dim=-1).flatten(1)
            table_TD = table_TD.to(self.table_TD)
        self._computed_dtype = table_TD.dtype
        self.table_TD = table_TD
        return table_TD


class Sinusoidal(Sinusoids):
    """Sinusoidal positions: P[t, 2k] = sin(t / 10000^{2k/D}), P[t, 2k+1] = cos(t / 10000^{2k/D}).

    Vaswani et al. 2017, section 3.5, https://arxiv.org/abs/1706.03762. `Sinusoidal(64)(100)` is
    [100, 64].

    Args:
        width: D, even.
    """

    def frequencies(self) -> Tensor:
        return _geometric_frequencies(self.width)

    def sinusoids(self, angles_TD: Tensor) -> tuple[Tensor, Tensor]:
        return angles_TD.sin(), angles_TD.cos()


class Fourier(Sinusoids):
    """Fourier positions: pairs cos(πkt/T), sin(πkt/T), k = 1 … D/2.

    The shift by d steps is a linear map, P[t+d] = P[t] R(d), so a head can attend exactly d steps
    back (`shift_matrix`).

    Args:
        width: D, even.
        period_length: T. The slowest wave repeats after 2T steps, so make T the longest length
            whose positions have to be told apart.
    """

    def __init__(self, width: int, period_length: int) -> None:
        super().__init__(width)
        if period_length < 1:
            raise ValueError(f"period_length must be at least one step, not {period_length}.")
        self.period_length = period_length

    def frequencies(self) -> Tensor:
        k = torch.arange(1, self.width // 2 + 1, dtype=torch.float64)
        return math.pi * k / self.period_length

    def shift_matrix(self, steps: int) -> Tensor:
        """R(d) [D, D], a block of rotation by πkd/T for each k: P[t + d] = P[t] @ R(d)."""
        angle = self.frequencies() * steps
        cosine, sine = torch.arange(0, self.width, 2), torch.arange(1, self.width, 2)
        matrix_DD = torch.zeros(self.width, self.width, dtype=torch.float64)
        matrix_DD[cosine, cosine], matrix_DD[cosine, sine] = angle.cos(), angle.sin()
        matrix_DD[sine, cosine], matrix_DD[sine, sine] = -angle.sin(), angle.cos()
        return matrix_DD.to(self.table_TD)


class Learned(nn.Module):
    """A learned vector for each position (Gehring et al. 2017, https://arxiv.org/abs/1705.03122).

    Args:
        width: width of the vectors.
        max_length: number of positions.
        std: standard deviation of the initial values.
    """

    def __init__(self, width: int, max_length: int, std: float = 0.02) -> None:
        super().__init__()
        self.width = width
        self.max_length = max_length
        self.table_TD = nn.Parameter(torch.empty(max_length, width))
        nn.init.normal_(self.table_TD, std=std)

    def forward(self, length: int, start: int = 0) -> Tensor:
        """The vectors [T, D] of positions start … start + length − 1; ValueError past the last."""
        end = start + length
        if end > self.max_length:
            raise ValueError(
                f"This model learned {self.max_length} positions, but the sequence is {end} long: "
                f"shorten it, or train with a max_length of at least {end}, or with sinusoidal or "
                f"rotary positions, which have no last one."
            )
        return self.table_TD[start:end]

    def at(self, positions: ExplicitPositions) -> Tensor:
        """The vectors [B, T, D] of these positions, all of them before `max_length`."""
        return self.table_TD[positions.of_BT]


class RegisteredPositions(nn.Module):
    """Positions of a plugin: a module from a length and a start to vectors [T, D].

    Args:
        inner: the plugin's module.
        width: D.
        name: as it was registered.
    """

    def __init__(self, inner: nn.Module, width: int, name: str) -> None:
        super().__init__()
        self.inner, self.width, self.name = inner, width, name

    def forward(self, length: int, start: int = 0) -> Tensor:
        """The vectors [T, D] of positions start … start + length − 1."""
        positions_TD: Tensor = self.inner(length, start)
        if positions_TD.shape != (length, self.width):
            raise PluginError(
                f"the positions {self.name} gave {list(positions_TD.shape)} for {length} positions "
                f"of width {self.width}; they must be [{length}, {self.width}]"
            )
        return positions_TD

    def at(self, positions: ExplicitPositions) -> Tensor:
        """The vectors [B, T, D] of these positions."""
        return self.forward(positions.end)[positions.of_BT]


class Rotary(Sinusoids):
    """Rotary positions (RoPE): rotate pairs of features by an angle that grows with position.

    The dot product of a rotated query and a rotated key then depends on their distance alone. Su et
    al. 2021, https://arxiv.org/abs/2104.09864; pairs are neighbours (2i, 2i+1), as in the paper.

    Args:
        width: width of one head, even.
        base: of the wavelengths: the longest is about 2π base steps.
    """

    def __init__(self, width: int, base: float = 10000.0) -> None:
        """The slowest pair turns once in about 2π · base steps."""
        super().__init__(width)
        self.base = base

    def frequencies(self) -> Tensor:
        return _geometric_frequencies(self.width, self.base)

    def rotate(self, x_BHTK: Tensor, start: int | ExplicitPositions = 0) -> Tensor:
        """x_BHTK rotated as positions start … start + T − 1, or as given; same shape and dtype."""
        if isinstance(start, ExplicitPositions):
            rotary_TK = self.at(start).unsqueeze(1)
        else:
            rotary_TK = self(x_BHTK.shape[-2], start)
        cos, sin = rotary_TK[..., 0::2], rotary_TK[..., 1::2]
        even, odd = x_BHTK[..., 0::2], x_BHTK[..., 1::2]
        turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
        return turned.flatten(-2).to(x_BHTK.dtype)

    def rotate_once(self, x_BTHK: Tensor, start: int = 0) -> Tensor:
        """The same for x_BTHK, positions first; in a single pass over it, without gradients."""
        if x_BTHK.dtype != torch.float32 or torch.is_grad_enabled():
            return self.rotate(x_BTHK.transpose(1, 2), start).transpose(1, 2)
        rotary_TK = self(x_BTHK.shape[1], start)
        rotary_TK = torch.view_as_complex(rotary_TK.view(len(rotary_TK), -1, 2))
        pairs_BTHK = torch.view_as_complex(x_BTHK.view(*x_BTHK.shape[:-1], -1, 2))
        return torch.view_as_real(pairs_BTHK * rotary_TK[:, None]).flatten(-2)


class Positioned(nn.Module):
    """Combines vectors with positional encodings.

    Concatenated, a weight matrix can treat content and position separately, but vectors are wider;
    added, there are fewer parameters, and it works in practice.

    Args:
        positions: the positional encodings.
        combine: "add" or "concatenate".
    """

    def __init__(
        self, positions: Sinusoidal | Fourier | Learned | RegisteredPositions, combine: str = "add"
    ) -> None:
        super().__init__()
        if combine not in ("add", "concatenate"):
            raise ValueError(f'combine must be "add" or "concatenate", not "{combine}".')
        self.positions = positions
        self.combine = combine

    @property
    def adds_sinusoids(self) -> bool:
        """Whether the positions are added and fixed rather than learned."""
        return self.combine == "add" and isinstance(self.positions, Sinusoids)

    def output_width(self, x_width: int) -> int:
        """The output width for inputs of width x_width; ValueError if positions cannot be added."""
        if self.combine == "concatenate":
            return x_width + self.positions.width
        if x_width != self.positions.width:
            raise ValueError(
                f"Positions of width {self.positions.width} cannot be added to vectors of width "
                f"{x_width}: make the widths equal, or concatenate."
            )
        return x_width

    def forward(self, x_BTD: Tensor, start: int | ExplicitPositions = 0) -> Tensor:
        """x_BTD with positions start … start + T − 1, or given ones, added or concatenated."""
        if isinstance(start, ExplicitPositions):
            positions_TD = self.positions.at(start).to(x_BTD.dtype)
        else:
            positions_TD = self.positions(x_BTD.shape[1], start).to(x_BTD.dtype)
        if self.combine == "add":
            self.output_width(x_BTD.shape[-1])
            return x_BTD + positions_TD
        positions_BTD = positions_TD.expand(x_BTD.shape[0], -1, -1)
        return torch.cat((x_BTD, positions_BTD), dim=-1)


def build_positions(
    kind: str, width: int, *, combine: str = "add", max_length: int = 1024, std: float = 0.02
) -> Positioned | None:
    """Positional embeddings for vectors that are `width` wide afterwards, or None.

    kind: "sinusoidal", "fourier" (of which `max_length` is half the period), "learned"
    (`max_length` of them, drawn with `std`). "rotary" and "relative" positions act inside the
    attention, and "none" does nowhere: None. Raises ValueError for any other kind.
    """
    inner = width // 2 if combine == "concatenate" else width
    if kind == "sinusoidal":
        return Positioned(Sinusoidal(inner), combine)
    if kind == "fourier":
        return Positioned(Fourier(inner, max_length), combine)
    if kind == "learned":
        return Positioned(Learned(inner, max_length, std), combine)
    if kind in register.positions:
        made = register.positions[kind].part(inner, max_length)
        return Positioned(RegisteredPositions(made, inner, kind), combine)
    if kind not in ("rotary", "relative", "none"):
        raise ValueError(
            f'positions must be "sinusoidal", "fourier", "learned", "rotary", "relative" or '
            f'"none", not "{kind}".'
        )
    return None


def width_of_content(positions: Positioned | None, width: int) -> int:
    """How wide vectors may be, so that they are `width` wide with their positions."""
    if positions is None or positions.combine == "add":
        return width
    return width - positions.positions.width


def _geometric_frequencies(width: int, base: float = 10000.0) -> Tensor:
    two_k = torch.arange(0, width, 2, dtype=torch.float64)
    return base ** (-two_k / width)
