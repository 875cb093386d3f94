"""The base class of all sections of a recipe, and the error of an invalid value."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Share = Annotated[float, Field(ge=0, lt=1)]


class InvalidValue(ValueError):
    """An invalid value or combination: the key, and the message that follows its name."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"{key} {message}".strip())
        self.key, self.message = key, message


class Section(BaseModel):
    # Strict, as `seed: yes` should be an error and not 1.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
