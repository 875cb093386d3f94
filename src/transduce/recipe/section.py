"""What the parts of a recipe have in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Share = Annotated[float, Field(ge=0, lt=1)]


class InvalidValue(ValueError):
    """Keys that do not go together: the key to blame, and what is said of it after its name."""

    def __init__(self, key: str, said: str) -> None:
        super().__init__(f"{key} {said}".strip())
        self.key, self.said = key, said


class Section(BaseModel):
    # Strict, as `seed: yes` should be an error and not 1.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
