"""Sums over the updates since the last line of the log."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from torch import Tensor


@dataclass
class Window:
    """Sums stay tensors until the log asks: nothing waits for a GPU inside an update."""

    loss: Tensor | float = 0.0
    gradient_norm: Tensor | float = 0.0
    padding: float = 0.0
    seconds: float = 0.0
    tokens: int = 0
    batches: int = 0
    updates: int = 0

    def record(self) -> dict[str, float]:
        """Means, as the log has them."""
        return {
            "loss": float(self.loss) / max(self.tokens, 1),
            "gradient_norm": float(self.gradient_norm) / max(self.updates, 1),
            "padding": self.padding / max(self.batches, 1),
            "tokens_per_second": self.tokens / self.seconds if self.seconds else 0.0,
        }

    def to_json(self) -> dict[str, float]:
        values = asdict(self)
        return {**values, "loss": float(self.loss), "gradient_norm": float(self.gradient_norm)}
