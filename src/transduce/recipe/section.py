"""The base class of all sections of a recipe, and the error of an invalid value."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from transduce.decoding_settings import SETTINGS

Fraction = Annotated[float, Field(ge=0, lt=1)]


class InvalidValue(ValueError):
    """An invalid value or combination: the key, and the message that follows its name."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"{key} {message}".strip())
        self.key, self.message = key, message


class Section(BaseModel):
    # Strict, as `seed: yes` should be an error and not 1.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def decode_key(name: str) -> Any:
    """The key of the section `decode` for a decoding setting."""
    setting = SETTINGS[name]
    about = setting.about().removesuffix(".")
    return Field(
        setting.recipe,
        description=f"{about[:1].lower()}{about[1:]}",
        ge=setting.minimum,
        gt=setting.above,
        le=setting.maximum,
    )
