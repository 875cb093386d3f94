"""The tokens of Whisper's prompt: language, task, timestamps, previous text.

BEGIN <|en|> <|transcribe|> <|notimestamps|> And so, my fellow Americans, … END
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from transduce.data.tokens.tokenizer import BEGIN, SPECIALS, Tokens
from transduce.errors import ModelError

SECONDS = 0.02  # from one timestamp to the next
LANGUAGE = re.compile(r"\|([a-z]{2,3})\|")
TIME = re.compile(r"\|(\d+\.\d\d)\|")
TASKS = ("transcribe", "translate")


@dataclass(frozen=True)
class PromptTokens:
    """The ids of the prompt's tokens in a vocabulary."""

    languages: dict[str, int]
    tasks: dict[str, int]
    no_timestamps: int
    previous: int | None
    """<|startofprev|>: before the text of the window before."""
    no_speech: int | None
    first_timestamp: int
    """<|0.00|>; the others follow it, to the end of the vocabulary."""
    first_special: int
    vocabulary: int
    multilingual: bool = True

    @classmethod
    def of(cls, tokens: Tokens, multilingual: bool = True) -> PromptTokens:
        """Raises ModelError for a vocabulary that is not Whisper's."""
        tags = tokens.tags
        languages = {found[1]: tags[name] for name in tags if (found := LANGUAGE.fullmatch(name))}
        times = sorted(number for name, number in tags.items() if TIME.fullmatch(name))
        missing = [
            name for name in ("|notimestamps|", *map("|{}|".format, TASKS)) if name not in tags
        ]
        if missing or not times or times != list(range(times[0], len(tokens))):
            what = f"<{missing[0]}>" if missing else "timestamps at its end"
            raise ModelError(
                f"audio.prompt needs the vocabulary of Whisper, and this one has no {what}: leave "
                f"the key out, or import a Whisper model"
            )
        return cls(
            languages=languages,
            tasks={task: tags[f"|{task}|"] for task in TASKS},
            no_timestamps=tags["|notimestamps|"],
            previous=tags.get("|startofprev|"),
            no_speech=tags.get("|nospeech|", tags.get("|nocaptions|")),
            first_timestamp=times[0],
            first_special=min(tags.values()),
            vocabulary=len(tokens),
            multilingual=multilingual,
        )

    @cached_property
    def specials(self) -> list[int]:
        """All but text and END, timestamps too."""
        return [*range(len(SPECIALS) - 1), *range(self.first_special, self.vocabulary)]

    def check_language(self, language: str | None) -> None:
        """Raise ModelError for a language that the model does not know."""
        if language is None or (language in self.languages and self.multilingual):
            return
        if not self.multilingual:
            if language != "en":
                raise ModelError(f"this Whisper is for English alone, not for {language}")
            return
        known = ", ".join(self.languages)
        raise ModelError(f"the model does not know the language {language}; it knows {known}")

    def prompt(
        self, language: str | None, task: str, timestamps: bool, previous: Sequence[int] = ()
    ) -> tuple[int, ...]:
        """The tokens before an output, BEGIN among them."""
        found = [BEGIN]
        if previous and self.previous is not None:
            found = [self.previous, *previous, BEGIN]
        if self.multilingual:
            assert language is not None
            found += [self.languages[language], self.tasks[task]]
        return (*found, *([] if timestamps else [self.no_timestamps]))

    def is_time(self, token: int) -> bool:
        return token >= self.first_timestamp

    def seconds(self, token: int) -> float:
        """The time of a timestamp, from the start of its window."""
        return (token - self.first_timestamp) * SECONDS

    def text(self, ids: Sequence[int]) -> list[int]:
        """Tokens of text alone."""
        return [number for number in ids if len(SPECIALS) <= number < self.first_special]
