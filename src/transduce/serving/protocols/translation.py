"""Translation of documents by the models of language pairs, all segments of one in a batch."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice, pairwise, product
from typing import Any, TypeVar

from transduce.data.tokens.tokenizer import Tokens
from transduce.decoding.constraints.glossary import Glossary
from transduce.decoding.constraints.read import AnyOf
from transduce.decoding.output import Output
from transduce.decoding.word_alignment import Alignment, alignment_of
from transduce.errors import DataError
from transduce.models.lens import attentions, is_to_source
from transduce.serving.documents import Segments
from transduce.serving.engine import Engine
from transduce.serving.errors import BadRequest
from transduce.serving.jobs import longest_wording
from transduce.serving.languages import Detected, Detector, base_of, choose_detector
from transduce.serving.limits import Limits
from transduce.serving.models import Catalogue, Served
from transduce.serving.threads import check_wanted
from transduce.tasks.transduce import Transducer

# The end of a sentence: its mark, closing quotes, and white space (none in Chinese or Japanese).
SENTENCE_END = re.compile(r"(?<=[.!?…])[\"'”’»)\]]*\s+|(?<=[。！？])")
VOCABULARY = 2_000  # tokens that the profile of a language without one is made from
SPECIAL = 4  # tokens that are no text
AT_ONCE = 4_000  # characters that are cut into segments and tokens within the event loop
DETECTED = 1_000  # detecting a language takes as long as cutting so many
SPARE = 4  # hypotheses for each alternative: many differ in their tokens, not in their text

A = TypeVar("A")
B = TypeVar("B")


class Translator:
    """Translates documents by the models of a catalogue."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.catalogue = engine, engine.catalogue
        self.targets = targets_of(self.catalogue)
        self.detector = _detector(self.catalogue)
        self._attentive = {name for name, one in self.catalogue.items() if has_attention(one)}

    @property
    def languages(self) -> list[str]:
        """All languages, of sources or targets."""
        return sorted({*self.targets, *(one for some in self.targets.values() for one in some)})

    def check_texts(self, texts: Sequence[str]) -> None:
        """Raise TooLarge for more, or longer, than one request may have."""
        limits = self.engine.limits
        limits.check("texts", len(texts), f"there are {len(texts):,} texts")
        longest = max(map(len, texts), default=0)
        limits.check("characters", longest, f"a text has {longest:,} characters")

    def detect(self, document: Segments, target: str) -> Detected:
        """The likeliest language of a document among those with a model into the target.

        Of one without letters it is the first of them, with a confidence of 0.
        """
        sources = [
            source for source in self.targets if self.catalogue.for_pair(source, target) is not None
        ]
        if not sources:
            raise BadRequest(
                f"no model here translates into {target!r:.20}; there are {self._pairs()}"
            )
        found = self.detector.detect(" ".join(document.texts))
        return next((one for one in found if one.language in sources), Detected(sources[0], 0.0))

    def is_same(self, source: str, target: str) -> bool:
        """Whether a text is to stay in its language, which is one that is known here."""
        first, other = base_of(source), base_of(target)
        known = first in map(base_of, self.languages)
        return known and first == other and self.catalogue.for_pair(source, target) is None

    async def translate_texts(
        self,
        texts: Sequence[str],
        cut: Callable[[str], Segments],
        source: str | None,
        target: str,
        nbest: int = 1,
        glossary: Glossary | None = None,
    ) -> tuple[list[Detected], list[list[str]]]:
        """The same as `translate` for texts, of which `cut` makes documents. Raises TooLarge."""
        self.check_texts(texts)
        if source is not None and self.is_same(source, target):
            return [Detected(source, 1.0)] * len(texts), [[text] for text in texts]
        documents = await apply(self.engine, cut, texts, sum(map(len, texts)))
        return await self.translate(documents, source, target, nbest, glossary)

    async def translate(
        self,
        documents: Sequence[Segments],
        source: str | None,
        target: str,
        nbest: int = 1,
        glossary: Glossary | None = None,
    ) -> tuple[list[Detected], list[list[str]]]:
        """The source language of each document, and its translations, the best first.

        source: None detects it. Documents of one language go to its model together. Raises
        BadRequest for a pair that no model translates, and for a glossary that the model cannot
        use.
        """
        if source is None:
            sources = await apply(
                self.engine,
                lambda one: self.detect(one, target),
                documents,
                DETECTED * len(documents),
            )
        else:
            sources = [Detected(source, 1.0)] * len(documents)
        found: dict[int, list[str]] = {}
        for language in dict.fromkeys(one.language for one in sources):
            served = self.catalogue.for_pair(language, target)
            if served is None:
                raise BadRequest(
                    f"no model here translates from {language!r:.20} to {target!r:.20}; there are "
                    f"{self._pairs()}"
                )
            places = [n for n, one in enumerate(sources) if one.language == language]
            some = await self._by(served, [documents[n] for n in places], nbest, glossary)
            found |= dict(zip(places, some, strict=True))
        return sources, [found[n] for n in range(len(documents))]

    async def _by(
        self,
        served: Served,
        documents: Sequence[Segments],
        nbest: int,
        glossary: Glossary | None,
    ) -> list[list[str]]:
        """Each document in up to `nbest` versions: the first has the best hypothesis of each
        segment, the second the second best, and so on."""
        texts = list(dict.fromkeys(text for one in documents for text in one.texts))
        terms = None if glossary is None else await self._checked(served, glossary)

        def cut(text: str) -> list[str]:
            parts = fitting(served, text, terms)
            if terms is not None:
                for part in parts:
                    terms.phrases(part)  # which are looked up when they are needed
            return parts

        parts = await apply(self.engine, cut, texts, sum(map(len, texts)))
        parts_of = dict(zip(texts, parts, strict=True))
        marked = {
            text
            for one in documents
            if not one.in_order
            for text, tags in zip(one.texts, one.tags, strict=True)
            if tags and len(parts_of[text]) == 1
        }
        outputs = await self._run(served, parts_of.values(), marked, nbest, terms)
        hypotheses = {text: _different_texts(output) for text, output in outputs.items()}

        def version(text: str, number: int) -> str | Alignment:
            if text in marked and number == 0:
                return alignment_of(text, outputs[text])
            found = (hypotheses[part] for part in parts_of[text])
            return " ".join(one[min(number, len(one) - 1)] for one in found)

        def joined(document: Segments) -> list[str]:
            found = []
            for number in range(nbest):
                check_wanted()
                found.append(document.join(version(text, number) for text in document.texts))
            return list(dict.fromkeys(found))

        size = nbest * sum(one.size for one in documents)
        return await apply(self.engine, joined, documents, size)

    async def _checked(self, served: Served, glossary: Glossary) -> TermsOfTexts:
        """A glossary that the model can use. Raises BadRequest."""
        try:
            await self.engine.threads.run(glossary.check, served.model.target_tokens)
        except DataError as error:
            raise BadRequest(str(error)) from None
        return TermsOfTexts(glossary, self.engine.limits)

    async def _run(
        self,
        served: Served,
        texts: Iterable[list[str]],
        marked: Collection[str],
        nbest: int,
        terms: TermsOfTexts | None,
    ) -> dict[str, Output]:
        """The output of each text, once; with attention for those with inline markup."""
        settings: dict[str, Any] = {}
        if nbest > 1:
            settings["nbest"] = max(1 + SPARE * (nbest - 1), served.model.recipe.decode.beam)
        found: dict[str, Output] = {}
        unique = dict.fromkeys(part for parts in texts for part in parts)
        attentive = marked if served.name in self._attentive else ()
        constrained = {} if terms is None else {t: p for t in unique if (p := terms.phrases(t))}
        for attention, required in product((False, True), repeat=2):
            some = [
                t
                for t in unique
                if (t in attentive) == attention and (t in constrained) == required
            ]
            for start in range(0, len(some), self.engine.limits.texts):
                batch = some[start : start + self.engine.limits.texts]
                asked = {**settings, "attention": True} if attention else dict(settings)
                if required:
                    asked["include"] = [constrained[text] for text in batch]
                outputs = await self.engine.run(served, batch, **asked)
                found |= dict(zip(batch, outputs, strict=True))
        return found

    def _pairs(self) -> str:
        pairs = [f"{s}-{t}" for s, into in self.targets.items() for t in into]
        return ", ".join(pairs) or "no models of language pairs"


async def apply(
    engine: Engine, function: Callable[[A], B], values: Sequence[A], characters: int
) -> list[B]:
    """The function of each value; in a thread, if there is so much that others would wait."""
    if characters < AT_ONCE:
        return [function(value) for value in values]

    def all_of_them() -> list[B]:
        found = []
        for value in values:
            check_wanted()
            found.append(function(value))
        return found

    return await engine.threads.run(all_of_them)


def targets_of(models: Catalogue) -> dict[str, list[str]]:
    """The target languages of each source language."""
    found: dict[str, list[str]] = {}
    for source, target in models.pairs():
        found.setdefault(source, []).append(target)
    return {source: sorted(found[source]) for source in sorted(found)}


def _detector(models: Catalogue) -> Detector:
    vocabularies: Mapping[str, Sequence[str]] = {
        one.pair[0]: list(islice(one.model.source_tokens.names(), SPECIAL, VOCABULARY))
        for one in models.values()
        if one.pair and not one.takes_audio
    }
    return choose_detector(targets_of(models), vocabularies)


def has_attention(served: Served) -> bool:
    """Whether outputs can have attention to the source; exports to other engines cannot."""
    model = served.model
    if not isinstance(model, Transducer) or model.engine is not None:
        return False
    return any(is_to_source(name) for name in attentions(model.network))


def _different_texts(output: Output) -> list[str]:
    return list(dict.fromkeys([output.text, *(one.text for one in output.alternatives)]))


class TermsOfTexts:
    """The phrases that a glossary requires of each text, looked for once."""

    def __init__(self, glossary: Glossary, limits: Limits) -> None:
        self.glossary, self.limits = glossary, limits
        self._found: dict[str, list[AnyOf]] = {}

    def phrases(self, text: str) -> list[AnyOf]:
        if text not in self._found:
            self._found[text] = self.glossary.phrases(text)
        return self._found[text]

    def are_too_many(self, text: str) -> bool:
        """Whether one output could not have so much."""
        total = sum(len(longest_wording(one)) for one in self.phrases(text))
        return total > self.limits.included_characters


def fitting(served: Served, text: str, terms: TermsOfTexts | None = None) -> list[str]:
    """A text in parts that the model was trained to read: whole, if it is short enough.

    A longer one is cut at the ends of sentences, and a longer sentence between words. One with more
    terms of a glossary than an output can have is cut into its sentences.
    """
    if terms is not None and terms.are_too_many(text):
        sentences = cut_after(text, SENTENCE_END)
        return [part for one in sentences for part in fitting(served, one)]
    tokens, longest = served.model.source_tokens, served.model.recipe.data.max_length
    if is_short(tokens, text, longest) or len(tokens.encode(text)) <= longest:
        return [text]
    parts: list[str] = []
    size = 0
    for sentence in cut_after(text, SENTENCE_END):
        whole = len(tokens.encode(sentence)) <= longest
        for piece in [sentence] if whole else sentence.split():
            check_wanted()
            # At least as many as the tokens of both together, which are counted near the end only.
            added = 1 + len(tokens.encode(piece))
            joined = f"{parts[-1]} {piece}" if parts else piece
            if size + added > longest:
                size, added = len(tokens.encode(joined)), 0
            if parts and size + added <= longest:
                parts[-1] = joined
                size += added
            else:
                parts.append(piece)
                size = len(tokens.encode(piece))
    return parts


def is_short(tokens: Tokens, text: str, longest: int) -> bool:
    """Whether a text has at most so many tokens, as far as that is known without tokenization.

    In ASCII no character is more than one token; one space may be put before the text.
    """
    return len(tokens.prefix) + 1 + len(text) <= longest and text.isascii()


def cut_after(text: str, end: re.Pattern[str]) -> list[str]:
    """The text cut after each match, without white space around the parts."""
    places = [0, *(found.end() for found in end.finditer(text)), len(text)]
    parts = [text[a:b].strip() for a, b in pairwise(places)]
    return [part for part in parts if part]
