"""None"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from transduce.errors import ModelError

# ----------------------------------------------------------------------------------------------
# Settings of other toolkits, each checked for its type and its range as it is read.
#
# A configuration comes from elsewhere: a value may be of any type and any size. Importers take no
# value from the JSON or the checkpoint itself, but from a `Configuration`.

MAX_WHOLE = 1 << 24
"""Of sizes: widths, layers, positions. What they need together is checked before it is made."""
MAX_TOKENS = 1 << 21


class Configuration:
    """Settings by name; null is as if a setting were not there."""

    def __init__(self, values: Mapping[str, Any], where: object) -> None:
        self.values, self.where = values, where

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.values.get(name) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)

    def whole(
        self, name: str, default: int | None = None, minimum: int = 1, maximum: int = MAX_WHOLE
    ) -> int:
        """A whole number. Raises ModelError where it is none, or missing without a default."""
        value = self._value(name, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
            raise self._wrong(name, f"a whole number from {minimum} to {maximum}")
        return value

    def number(
        self,
        name: str,
        default: float | None = None,
        minimum: float = -1e9,
        maximum: float = 1e9,
    ) -> float:
        """A finite number. Raises ModelError."""
        value = self._value(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self._wrong(name, "a number")
        if not minimum <= value <= maximum:  # not a number is in no range
            raise self._wrong(name, f"a number from {minimum:g} to {maximum:g}")
        return float(value)

    def fraction(self, name: str) -> float:
        """A dropout; 0 where it is not there. Raises ModelError."""
        return self.number(name, 0.0, 0.0, 0.99)

    def switch(self, name: str, default: bool = False) -> bool:
        """On or off. Raises ModelError."""
        value = self._value(name, default)
        if value not in (True, False):
            raise self._wrong(name, "true or false")
        return bool(value)

    def text(self, name: str, default: str | None = None) -> str:
        """Raises ModelError where it is no text."""
        value = self._value(name, default)
        if not isinstance(value, str):
            raise self._wrong(name, "a text")
        return value

    def choice(self, name: str, known: Mapping[str, str], default: str) -> str:
        """What one of the known words stands for. Raises ModelError for any other."""
        word = self.text(name, default)
        if word not in known:
            raise ModelError(
                f"{self.where}: {name} is {describe(word)}, which transduce has not; it has "
                f"{', '.join(known)}"
            )
        return known[word]

    def token(self, name: str, size: int) -> int | None:
        """The id of a token below `size`, of several the first; None where there is none, for which
        some files have -1. Raises ModelError."""
        value = self.values.get(name)
        if isinstance(value, list) and value:
            value = value[0]
        if value is None or value == -1:
            return None
        return Configuration({name: value}, self.where).whole(name, minimum=0, maximum=size - 1)

    def section(self, name: str) -> Configuration:
        """Settings within settings; empty where there are none. Raises ModelError."""
        value = self._value(name, {})
        if not isinstance(value, dict):
            raise self._wrong(name, "an object with settings")
        return Configuration(value, self.where)

    def entries(self, name: str) -> list[Any]:
        """A list; empty where there is none. Raises ModelError."""
        value = self._value(name, [])
        if not isinstance(value, list):
            raise self._wrong(name, "a list")
        return value

    def wholes(self, name: str) -> list[int]:
        """A list of whole numbers, such as ids; empty where there is none. Raises ModelError."""
        found = self.entries(name)
        if not all(isinstance(one, int) and not isinstance(one, bool) for one in found):
            raise self._wrong(name, "a list of whole numbers")
        return found

    def pairs(self, name: str, first: int, second: int) -> list[tuple[int, int]]:
        """A list of pairs of whole numbers from 0 to below `first` and `second`, such as a layer
        and a head of it; empty where there is none. Raises ModelError."""
        wanted = f"a list of pairs, each of a number below {first} and one below {second}"
        pairs = []
        for one in self.entries(name):
            if not isinstance(one, list) or len(one) != 2:
                raise self._wrong(name, wanted)
            inner = Configuration({name: one}, self.where).wholes(name)
            if not 0 <= inner[0] < first or not 0 <= inner[1] < second:
                raise self._wrong(name, wanted)
            pairs.append((inner[0], inner[1]))
        return pairs

    def is_one_of(self, name: str, allowed: tuple[Any, ...]) -> bool:
        """Whether a setting has one of these values; null is None."""
        value = self.values.get(name)
        return any(type(value) is type(one) and value == one for one in allowed)

    def _value(self, name: str, default: Any) -> Any:
        value = self.values.get(name)
        if value is None and default is None:
            raise ModelError(f"{self.where} does not say its {name}; download the file again")
        return default if value is None else value

    def _wrong(self, name: str, wanted: str) -> ModelError:
        found = describe(self.values.get(name))
        return ModelError(f"{self.where}: {name} is {found}, and must be {wanted}")


def describe(value: Any) -> str:
    """A value of others in a message, however large it is and whatever is in it."""
    if isinstance(value, str):
        return ascii(value[:40]) if not value[:40].isprintable() else repr(value[:40])
    if isinstance(value, bool | float | None):
        return json.dumps(value)
    if isinstance(value, int):
        return str(value) if abs(value) < 10**20 else "a number of many digits"
    if isinstance(value, dict):
        return "an object"
    return "a list" if isinstance(value, list | tuple) else "something else"


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object of a file. Raises ModelError where it is missing or no JSON object."""
    try:
        text = path.read_text("utf-8")
        values = json.loads(text)
        if "\\ud" in text.lower():  # half a character cannot be written again
            json.dumps(values, ensure_ascii=False).encode("utf-8")
    except FileNotFoundError:
        raise ModelError(f"{path.parent} has no {path.name}; download the folder again") from None
    except UnicodeEncodeError:
        raise ModelError(
            f"{path} has half a character (a lone surrogate), which is no text; download it again"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:100]
        raise ModelError(f"{path} cannot be read ({reason}); download it again") from None
    if not isinstance(values, dict):
        raise ModelError(f"{path} is not a JSON object; download it again")
    return values


def read_configuration(path: Path, optional: bool = False) -> Configuration:
    """The settings of a JSON file; none where an optional one is not there. Raises ModelError."""
    return Configuration({} if optional and not path.is_file() else read_json(path), path)


def check_vocabulary(numbers: Any, where: object) -> dict[str, int]:
    """A vocabulary: tokens and their ids. Raises ModelError for what is none."""
    if not isinstance(numbers, dict) or not numbers:
        raise ModelError(f"{where} is not a vocabulary: tokens and their ids")
    owner: dict[int, str] = {}
    for name, number in numbers.items():
        if not isinstance(name, str) or not isinstance(number, int) or isinstance(number, bool):
            raise ModelError(
                f"{where}: the token {describe(name)} has the id {describe(number)}, which is no "
                f"number"
            )
        if not 0 <= number < MAX_TOKENS:
            raise ModelError(
                f"{where}: the token {describe(name)} has the id {describe(number)}; ids are from "
                f"0 to {MAX_TOKENS - 1}"
            )
        if number in owner:
            raise ModelError(
                f"{where}: the tokens {describe(owner[number])} and {describe(name)} have the same "
                f"id, {number}"
            )
        owner[number] = name
    return numbers
