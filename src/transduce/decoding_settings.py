"""The decoding settings, declared once: keywords of `model.run`, with defaults, limits and help.

`RunKeywords` is the declaration. Made from it are the `decode` section of a recipe, the checks and
defaults of `transduce.tasks.DecodingSettings`, the options of the command line, the fields of a
request to the server with their OpenAPI page, and the table of docs/guides/decoding.md. A new
setting is declared here; its type is repeated in `DecodingSettings` for type checkers, if it is one
of search.
"""

# Without `from __future__ import annotations`: annotations of this length, as texts, would have to
# be compiled at each start, and the command line needs them to answer --help.

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from types import NoneType, UnionType
from typing import Annotated, Any, TypedDict, Union, get_args, get_origin

Phrases = str | Sequence[str] | Sequence[Sequence[str]] | None
"""Phrases for every source, or a list with the phrases of each source."""
Terms = Mapping[str, str | Sequence[str]] | str | PathLike[str] | None
"""A glossary: the translation, or several, of each term; or a file of them."""

KINDS = {
    "all": "all models that write text",
    "text": "models from text to text",
    "multilingual": "multilingual models",
    "speech": "speech models",
    "chunks": "speech models with model.encoder.chunk",
    "whisper": "Whisper",
}
"""The kinds of models that a setting may be for."""
SMALLEST = 1e-6  # of what is above 0: less is nothing in float32
NOT_THERE = object()  # None is a value of some keys


@dataclass(frozen=True)
class Setting:
    """What is declared of a setting, besides its name and its type."""

    default: Any
    """Of `run`. None, where `recipe` is given: the value of the model's recipe."""
    help: str
    """One sentence, on the command line and in all references."""
    minimum: float | None = None
    above: float | None = None
    """It must be greater than this."""
    maximum: float | None = None
    """Larger values would never finish, or leave no number that float32 can hold."""
    choices: tuple[str, ...] = ()
    kind: str = "all"
    """The models that have it, a key of KINDS."""
    search: bool = True
    """Whether it is a field of `DecodingSettings`."""
    recipe: Any = NOT_THERE
    """Its default in the `decode` section of a recipe. Most settings are of a call, not a model."""
    model: bool = False
    """Whether its value is a model, or a list of them: a folder on the command line, the name of a
    served model in a request."""
    repeatable: bool = False
    """Whether its option may be given several times: the value is a list."""
    lines: bool = False
    """Whether its option may also be a file with one value on each line."""
    option: str | None = ""
    """Its option, if that is not made of its name; None: the command line has none."""
    request: bool = True
    """Whether requests to the server have it."""
    json_type: Any = None
    """The type of its value in a request, where that is not its type."""
    name: str = ""
    type: Any = None
    """The annotation of its keyword."""
    optional: bool = False
    """Whether None is a value."""
    plain_type: Any = None
    """bool, int, float or str, where the value is one of them (or None)."""

    @property
    def in_recipe(self) -> bool:
        return self.recipe is not NOT_THERE

    def about(self) -> str:
        """The help, with the models that it is for, where these are not all."""
        if self.kind == "all":
            return self.help
        named = KINDS[self.kind]
        return f"{named[:1].upper()}{named[1:]}: {self.help[:1].lower()}{self.help[1:]}"

    def limits(self) -> str:
        """The limits in words, such as "1 or more, at most 10,000"."""
        lowest, above, highest = self.minimum, self.above, self.maximum
        words = [f"{lowest:,} or more"] if lowest is not None else []
        words += [f"above {above:,}"] if above is not None else []
        words += [f"at most {highest:,}"] if highest is not None else []
        return ", ".join(words) or " or ".join(self.choices)

    def misfit(self, value: Any) -> str:
        """What a number must be, where this one is not: "1 or more"; otherwise empty."""
        if self.minimum is not None and value < self.minimum:
            return f"{self.minimum:,} or more"
        if self.above is not None and value <= self.above:
            return f"above {self.above:,}"
        if self.above is not None and value - self.above < SMALLEST:
            return f"at least {self.above + SMALLEST:.6f}"
        if self.maximum is not None and value > self.maximum:
            return f"at most {self.maximum:,}"
        return ""


class RunKeywords(TypedDict, total=False):
    """The keywords of `run`, of all tasks, which editors and type checkers read; `run` of the class
    of a task tells which it takes."""

    # ------------------------------------------------------------------- sources, constraints
    tags: Annotated[
        Sequence[str],
        Setting(
            (),
            "Tag of each source, such as its language.",
            search=False,
            option="--tag",
            repeatable=True,
        ),
    ]
    source_language: Annotated[
        str | None,
        Setting(
            None,
            "Language of the sources, where the model has a token for each.",
            kind="multilingual",
            search=False,
            request=False,  # of a served model with languages, the protocols choose it
        ),
    ]
    target_language: Annotated[
        str | None,
        Setting(
            None,
            "Language of the outputs, where the model has a token for each.",
            kind="multilingual",
            search=False,
            request=False,
        ),
    ]
    prefix: Annotated[
        str | Sequence[str] | None,
        Setting(None, "Prefix constraint: each output begins with this text.", search=False),
    ]
    include: Annotated[
        Phrases,
        Setting(
            None, "Constraint: a phrase each output must contain.", search=False, repeatable=True
        ),
    ]
    exclude: Annotated[
        Phrases,
        Setting(None, "Constraint: a phrase no output may contain.", search=False, repeatable=True),
    ]
    hotwords: Annotated[
        Phrases,
        Setting(
            None,
            "A phrase, such as a name, that outputs are likelier to contain.",
            search=False,
            repeatable=True,
            lines=True,
        ),
    ]
    hotword_bonus: Annotated[
        float,
        Setting(
            1.5,
            "Added to the score of a hypothesis for each token of a hotword in it, to choose by; "
            "scores that are shown are without.",
            minimum=0,
            maximum=100,
        ),
    ]

    glossary: Annotated[
        Terms,
        Setting(
            None,
            "Translations to use for terms, where a source has them: a file with a term, a tab and "
            "its translation a line.",
            kind="text",
            search=False,
            json_type=dict[str, str | list[str]] | None,  # clients may not name our files
        ),
    ]

    # --------------------------------------------------------------------------------- search
    beam: Annotated[
        int | None,
        Setting(
            None,
            "Beam size: hypotheses kept at each step; 1: greedy search.",
            minimum=1,
            maximum=10_000,
            recipe=5,
        ),
    ]
    nbest: Annotated[
        int,
        Setting(1, "Size of the n-best list of each source.", minimum=1, maximum=10_000),
    ]
    length_penalty: Annotated[
        float | None,
        Setting(
            None,
            "Length penalty: a score is divided by ((5 + length) / 6) to this power (Wu et al. "
            "2016); larger favours longer outputs, 0: off.",
            minimum=-10,
            maximum=10,
            recipe=1.0,
        ),
    ]
    coverage_penalty: Annotated[
        float | None,
        Setting(
            None,
            "Coverage penalty: weight of the cost of source tokens that received little attention "
            "(Wu et al. 2016); 0: off.",
            minimum=0,
            maximum=100,
            recipe=0.0,
        ),
    ]
    patience: Annotated[
        float | None,
        Setting(
            None,
            "Patience of beam search: stop after patience x beam finished hypotheses (Kasai et al. "
            "2022); with a large one, and with null in a recipe, search on while a better one is "
            "possible, which takes longer.",
            above=0,
            maximum=10_000,
            recipe=1.0,
        ),
    ]
    groups: Annotated[
        int,
        Setting(
            1,
            "Diverse beam search: number of groups; 1: plain beam search.",
            minimum=1,
            maximum=10_000,
        ),
    ]
    diversity: Annotated[
        float,
        Setting(
            0.5,
            "Diverse beam search: penalty for tokens of earlier groups.",
            minimum=0,
            maximum=10_000,
        ),
    ]
    bidirectional: Annotated[
        bool | None,
        Setting(
            None,
            "Bidirectional decoding: search from left to right and from right to left, and score "
            "each hypothesis in both directions; null in a recipe: where the model was trained so "
            "(data.bidirectional).",
            recipe=None,
        ),
    ]
    sample: Annotated[bool, Setting(False, "Sample tokens at random instead of searching.")]
    temperature: Annotated[
        float,
        Setting(
            1.0,
            "Sampling temperature: below 1 safer, above 1 more varied.",
            above=0,
            maximum=10_000,
        ),
    ]
    top_k: Annotated[
        int, Setting(0, "Sample from the k most likely tokens; 0: from all.", minimum=0)
    ]
    top_p: Annotated[
        float,
        Setting(
            1.0,
            "Nucleus sampling: from the most likely tokens with total probability p.",
            above=0,
            maximum=1,
        ),
    ]
    seed: Annotated[int, Setting(1, "Random seed of sampling.")]
    mbr: Annotated[
        str | None,
        Setting(
            None,
            "Minimum Bayes risk decoding with samples; utility: chrf or bleu.",
            choices=("chrf", "bleu"),
        ),
    ]
    samples: Annotated[
        int,
        Setting(32, "Samples for minimum Bayes risk decoding.", minimum=2, maximum=10_000),
    ]
    no_repeat_ngram: Annotated[
        int | None,
        Setting(
            None,
            "No n-gram of this many tokens occurs twice in an output; 0: off.",
            minimum=0,
            recipe=0,
        ),
    ]
    min_length: Annotated[
        int,
        Setting(0, "Minimum length of an output, in tokens.", minimum=0, maximum=100_000),
    ]
    max_length: Annotated[
        int | None,
        Setting(
            None,
            "Maximum length of an output, in tokens. Default: by max_ratio and max_extra of the "
            "recipe.",
            minimum=1,
            maximum=100_000,
        ),
    ]
    only: Annotated[
        Sequence[str] | None,
        Setting(None, "Vocabulary constraint: use only tokens of this text.", repeatable=True),
    ]
    unknown: Annotated[bool, Setting(True, "Whether outputs may contain the unknown token.")]

    # --------------------------------------------------------------------------- other models
    ensemble: Annotated[
        Sequence[Any] | None,
        Setting(
            None,
            "Another model of an ensemble, in place of those that the model's folder may have; "
            "none: the model alone.",
            search=False,
            model=True,
            repeatable=True,
        ),
    ]
    geometric: Annotated[
        bool,
        Setting(False, "Average the log-probabilities of an ensemble, not the probabilities."),
    ]
    rerank: Annotated[
        Any, Setting(None, "Rerank the n-best list with this model.", search=False, model=True)
    ]
    rerank_weight: Annotated[
        float,
        Setting(
            1.0,
            "Weight of the log-probability of the rerank model.",
            minimum=-10_000,
            maximum=10_000,
        ),
    ]
    language_model: Annotated[
        Any,
        Setting(
            None,
            "Shallow fusion with this language model, or an n-gram model: for the command line a "
            "file .arpa or .arpa.gz, for requests a name given to serve --language-model.",
            search=False,
            model=True,
        ),
    ]
    lm_weight: Annotated[
        float,
        Setting(0.3, "Weight of the language model in shallow fusion.", minimum=0, maximum=10_000),
    ]

    # --------------------------------------------------------------------------------- speech
    ctc_weight: Annotated[
        float | None,
        Setting(
            None,
            "Weight of CTC in the score of a hypothesis (joint CTC/attention decoding); 0: off, "
            "1: CTC alone.",
            minimum=0,
            maximum=1,
            kind="speech",
            recipe=0.0,
        ),
    ]
    chunk_ms: Annotated[
        float | None,
        Setting(
            None,
            "Read audio in chunks of so many milliseconds; live, shorter ones appear sooner. "
            "Default: whole recordings; live, as in the recipe.",
            above=0,
            maximum=1_000_000,
            kind="chunks",
        ),
    ]
    rate: Annotated[
        int | None,
        Setting(
            None,
            "Samples per second, of sources that are samples.",
            kind="speech",
            search=False,
            option=None,  # files say it
            request=False,
        ),
    ]
    times: Annotated[
        bool,
        Setting(
            False,
            "Also word timestamps, the score of each scorer and the confidence of each token.",
            kind="speech",
            search=False,
            option=None,  # --format json, srt, vtt and textgrid ask for them
        ),
    ]
    language: Annotated[
        str | None,
        Setting(
            None,
            "Language of the recordings, such as en. Default: detected.",
            kind="whisper",
            search=False,
        ),
    ]
    task: Annotated[
        str | None,
        Setting(
            None,
            "transcribe, or translate to English. Default: as in the recipe.",
            choices=("transcribe", "translate"),
            kind="whisper",
            search=False,
        ),
    ]
    timestamps: Annotated[
        bool | None,
        Setting(
            None,
            "Predict timestamps, which say where windows of long recordings end. Default: as in "
            "the recipe.",
            kind="whisper",
            search=False,
        ),
    ]
    prompt: Annotated[
        str,
        Setting("", "Text that goes before, such as names to spell.", kind="whisper", search=False),
    ]
    previous_text: Annotated[
        bool,
        Setting(False, "Each window of 30 s sees the text before.", kind="whisper", search=False),
    ]
    fallback: Annotated[
        bool,
        Setting(
            True,
            "Sample again where an output is unlikely or repeats itself.",
            kind="whisper",
            search=False,
        ),
    ]

    vad: Annotated[
        bool,
        Setting(
            False,
            "Voice activity detection: decode speech alone, not silence, noise and music.",
            kind="whisper",
            search=False,
        ),
    ]

    # ------------------------------------------------------------------------ what is returned
    attention: Annotated[
        bool,
        Setting(
            False,
            "Whether outputs have their attention to the source.",
            search=False,
            option=None,  # `transduce look` shows it
        ),
    ]
    scores: Annotated[
        bool,
        Setting(
            True,
            "Whether scores are needed; an engine that can search without may return NaN.",
            option=None,  # --scores prints them
        ),
    ]
    observer: Annotated[
        Any,
        Setting(
            None,
            "Is called with the tokens as they are chosen, and may cancel sources.",
            search=False,
            option=None,  # a Python object
            request=False,
        ),
    ]


def _declared() -> dict[str, Setting]:
    found: dict[str, Setting] = {}
    for name, hint in RunKeywords.__annotations__.items():
        kind, about = get_args(hint)
        union = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
        kinds = [one for one in union if one is not NoneType]
        plain = kinds[0] if len(kinds) == 1 and kinds[0] in (bool, int, float, str) else None
        optional = NoneType in union
        found[name] = replace(about, name=name, type=kind, optional=optional, plain_type=plain)
    return found


SETTINGS = _declared()
"""All settings by name, in the order of the declaration."""


def default(name: str) -> Any:
    """The default of a setting."""
    return SETTINGS[name].default
