"""Choose the settings for a file: parts, tokens, network, training, metrics and decoding.

The networks and what they were measured by are in `plans.py`. The rules are here, one function
each, in the order in which a recipe has them; each value comes with its reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from transduce.automatic.found import LONG, MAX_LETTERS, Found, Lengths, Side
from transduce.automatic.machine import Machine
from transduce.automatic.plans import BAG, BATCHES, INFLECTION, PLANS, Plan
from transduce.data.text.split import PLACES, in_part, place_in_corpus
from transduce.recipe import SpecAugment
from transduce.terminal import duration

MINUTES = 10.0
SPENT = 0.85  # of the minutes on updates; the rest are validation
START_UP = {"cpu": 0.0, "cuda": 8.0}  # seconds until the first update: kernels are compiled
SHORT = 3  # minutes
SHORT_FOR_CTC = 0.01  # of the recordings: more of them make the subsampling smaller
LEAST_FRAMES, MOST_FRAMES = 300, 100 * LONG  # of a recording that is not skipped
MOST_TOKENS = 512  # of a side of a pair
MUCH = 0.05  # of the sound in longer ones: they are not skipped, where that paid
FRAMES_IN_A_ROW = 400  # of recordings of words that are concatenated, as in digits-letters
# Of spoken digits, which have 0.4 s in the median, 98.0 % of the validation labels are right in
# place of 97.3, with a loss of 0.121 nats in place of 0.161 (recipe digits, one seed).
WORD_SECONDS = 1.0  # of the median recording: below, features are normalised over the training set
STREAMED = 20_000_000  # rows from which on they are read from disk as they are needed
LEARNED_FROM = 1_000_000  # pairs, of larger sets: five times as many take a core some 100 s more
LEAST_READ = 50_000  # rows of a sample
ROWS_OF_BATCH = 24
LEAST_PASSES = 3  # over the training set, whatever the plan's most updates
HELD_OUT = 2000  # pairs of a validation or test part: an interval of two points or so
# Of running text, of which a core reads some 8,000 a second at each validation.
HELD_OUT_CHARACTERS = 50_000
SMALLEST_PART = 0.004  # per cent: of fifty million rows, which take minutes to read
FEWEST_HELD_OUT = 5
# Of fewer sources one part is held out, which also chooses the checkpoint: two would take too many
# from training. The score of so few means little, and that is said.
FEW = 100
HELD_OUT_OF_FEW = 0.15
# Of fewer validation sources, checkpoints often have as many outputs right, and the first of them
# was kept: of 8 that of update 200, with 94 % of phones wrong, not the last with 75 %.
COARSE = 200
# Updates of sentences below which BLEU may be 0 to the end, and the first checkpoint was kept.
EARLY = 500
UNSEEN = 0.01  # held-out targets with a letter that training does not have: from here it is said
UNSEEN_BYTES = 0.05  # from here on, where nothing else can write them, bytes are written
TOKENS_OF_WORD = 1.4  # subwords, in the mean
MAX_CHARACTERS = 120  # of a phrase that is read in letters, if the other side or the rows are few
RECIPE_TASKS = {
    "text to text": "transduce",
    "text to label": "classify",
    "words to tags": "tag",
    "language model": "language_modeling",
    "audio to text": "transduce",
    "audio to label": "classify",
}


@dataclass
class Choice:
    """The values of a recipe, in its order, and the reason of each."""

    values: dict[str, Any] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    """By dotted key."""
    about: list[str] = field(default_factory=list)
    """What was chosen, in a few lines."""
    notes: list[str] = field(default_factory=list)
    """What else is to be known of the choice."""
    expected: int = 0
    """Updates that there is time for, about."""

    def set(self, key: str, value: Any, why: str = "") -> None:
        *path, last = key.split(".")
        inner = self.values
        for step in path:
            inner = inner.setdefault(step, {})
        inner[last] = value
        if why:
            self.reasons[key] = why

    def get(self, key: str) -> Any:
        found: Any = self.values
        for step in key.split("."):
            found = found.get(step) if isinstance(found, dict) else None
        return found


def choose(
    found: Found, machine: Machine, minutes: float = MINUTES, plan: Plan | None = None
) -> Choice:
    """The recipe for what was found, on a machine, for so many minutes of training.

    plan: that one, whatever the time; None: the one that suits.
    """
    choice = Choice()
    choice.set("name", found.name, "the run directory is runs/NAME")
    choice.set("task", RECIPE_TASKS[found.task], f"{found.task}, by what is in the file")
    choice.set("seed", 1, "another gives another model: together they are an ensemble")
    _parts(choice, found)
    _tokens(choice, found, machine)
    _audio_rate(choice, found)
    _concatenation(choice, found)
    timed = _plan(choice, found, machine, minutes, plan)
    _cut_to_time(choice, found, timed)
    _subwords(choice, timed)
    _augmentation(choice, found, timed)
    _model(choice, found, timed)
    if RECIPE_TASKS[found.task] == "transduce":
        _say_lost(choice, found)
    _train(choice, found, timed, minutes)
    _validation(choice, found, timed, machine, minutes)
    _decoding(choice, found, timed)
    choice.expected = timed.expected
    choice.about = _about(choice, found, timed, machine, minutes)
    return choice


# ----------------------------------------------------------------------------------- the parts


def _parts(choice: Choice, found: Found) -> None:
    """Train, valid and test: files that are there, else parts by a hash of the source."""
    missing = [part for part in ("valid", "test") if part not in found.corpora]
    own = dict(found.corpora)
    if "valid" not in own:
        few = is_few(found)
        missing = ["valid"] if few else missing
        share = _share_of_few(found) if few else _share(found, len(missing))
        ends = _ends(share, missing)
        train = found.corpora["train"]
        own["train"] = {**train, "split": ends["train"]}
        for part in missing:
            own[part] = {**train, "split": ends[part]}
            if found.rows * share / 100 > 2 * HELD_OUT and found.task != "language model":
                own[part]["limit"] = HELD_OUT
    for part in ("train", "valid", "test"):
        if part not in own:
            continue
        why = ""
        if part == "train" and "split" in own[part]:
            why = (
                "by position, the end held out"
                if found.task == "language model"
                else "by a hash of the source: the same everywhere, no source in two parts"
            )
        elif part in found.corpora and "where" in own[part]:
            why = "as the table says"
        elif part in found.corpora and part != "train":
            why = "found beside the training file"
        choice.set(f"data.{part}", own[part], why)
    if found.alternatives >= 0.01 and found.task == "text to text":
        several = f"{100 * found.alternatives:.0f} % of the sources have several targets"
        choice.set("data.multiple_references", True, f"{several}: any of them is right")


def is_few(found: Found) -> bool:
    """Whether the sources are so few that one part is held out."""
    return found.task != "language model" and found.sources < FEW and "valid" not in found.corpora


def _held_out_of_few(found: Found) -> int:
    return round(HELD_OUT_OF_FEW * found.sources)


def _share_of_few(found: Found) -> float:
    """Per cent that holds about HELD_OUT_OF_FEW of the sources: by the hash of each, as the part
    of a share may have none."""
    count = _held_out_of_few(found)
    places = sorted(map(place_in_corpus, found.examples))
    if len(places) < 2 * count:
        return 100 * HELD_OUT_OF_FEW
    border = (places[-count - 1] + places[-count]) / 2 / PLACES
    return round(100 * (1 - border), 3)


def _share(found: Found, parts: int) -> float:
    """Per cent of each part that is held out: much of a small set, little of a large one."""
    count = found.sources
    if found.task == "language model":
        return min(max(float(f"{100 * HELD_OUT_CHARACTERS / count:.1g}"), 0.02), 10.0)
    share = 15.0 if count < 300 else 10.0 if count < 5000 else 5.0
    if count * share / 100 > HELD_OUT:
        # Of all of the file: the first rows of a larger part may be of one kind.
        share = max(float(f"{100 * HELD_OUT / count:.1g}"), SMALLEST_PART)
    # A hash may leave a small part empty.
    while found.examples and share < 25:
        ends = _ends(share, ["valid", "test"][:parts])
        counts = [
            sum(map(in_part(part), found.examples))
            for name, part in ends.items()
            if name != "train"
        ]
        if min(counts, default=FEWEST_HELD_OUT) >= FEWEST_HELD_OUT:
            break
        share += 2.5
    return share


def _ends(share: float, parts: list[str]) -> dict[str, str]:
    borders = [0.0, *(100 - share * (len(parts) - n) for n in range(len(parts))), 100.0]
    texts = [f"{border:.3f}".rstrip("0").rstrip(".") for border in borders]
    names = ["train", *parts]
    return {name: f"{texts[n]}-{texts[n + 1]}%" for n, name in enumerate(names)}


# ---------------------------------------------------------------------------------- the tokens


def family_of(found: Found) -> str:
    """The key of PLANS: text to text is words or sentences."""
    if found.task != "text to text":
        return found.task
    return "sentences" if "subword" in _levels(found) else "words"


def _levels(found: Found) -> list[str]:
    """What a token of the source and of the target is."""
    assert found.source is not None
    sides = (found.source, found.target)
    levels = [_level(found, side) for side in sides]
    if sorted(levels) == ["character", "subword"]:  # seventeen hundred → 1700
        longer = sides[levels.index("subword")]
        if longer.characters.percentile_95 <= MAX_CHARACTERS:
            levels = ["character", "character"]
    return levels


def _level(found: Found, side: Side) -> str:
    """Letters for words and for little text, subwords else; symbols where white space has them."""
    if side.is_symbols:
        return "symbol"
    if side.is_words or (found.rows < 1000 and side.characters.percentile_95 <= MAX_CHARACTERS):
        return "character"
    return "subword"


def _tokens(choice: Choice, found: Found, machine: Machine) -> None:
    source, target = found.source, found.target
    if found.task == "words to tags":
        assert source is not None
        size = max(1000, min(50_000, 2 * source.pieces))
        choice.set("data.tokens.source", {"size": size}, "every word, so that each has its letters")
    elif found.task == "text to label":
        assert source is not None
        choice.set("data.tokens.source", *_source_of_labels(source))
    elif found.task == "language model":
        choice.set("data.tokens.both", *_one_text(found, target))
    elif found.task == "audio to text":
        choice.set("data.tokens.both", *_transcripts(found, target))
    elif found.task == "text to text":
        assert source is not None
        _two_sides(choice, found, source, target, machine)
    if found.task != "language model":  # the plan has the length of its blocks
        choice.set("data.max_length", *_max_length(choice, found))
    if found.task == "text to label":
        choice.set("data.overlong", "truncate", "the beginning of a long text says enough")
    elif found.task == "text to text" and _are_summed_up(choice, found):
        why = "targets are short, as of summaries: the beginning of a long source is read"
        choice.set("data.overlong", "truncate", why)


# As usual in published recipes; nothing was measured here between 4 hours, with letters, and this.
HOURS_FOR_SUBWORDS = 50
SUBWORDS_OF_SPEECH = 128


def _transcripts(found: Found, target: Side) -> tuple[dict[str, Any], str]:
    if target.is_symbols:
        return {"level": "symbol"}, "phones"
    assert found.sound is not None
    if found.sound.minutes >= 60 * HOURS_FOR_SUBWORDS and len(target.letters) < SUBWORDS_OF_SPEECH:
        tokens = {"level": "subword", "size": SUBWORDS_OF_SPEECH}
        return tokens, "subwords: enough hours of speech to learn how each one sounds"
    return {"level": "character"}, "letters: CTC needs targets shorter than the sound's states"


# A guess from a few short trials on paragraphs in twenty languages, where a word occurs 2 to 4
# times in the mean and subwords were far ahead; in 1,000 film reviews a word occurs 12 times.
SPARSE = 5.0


def _source_of_labels(source: Side) -> tuple[dict[str, Any], str]:
    if source.is_words or _is_unspaced(source):
        return {"level": "character"}, "short words: their letters and letter n-grams"
    if source.frequency < SPARSE:
        return {"level": "subword", "size": 2000}, "subwords: most words occur a few times only"
    return (
        {"level": "word", "size": 30_000, "lowercase": True},
        "words, as in imdb-pairs; capitals say little of a label",
    )


def _is_unspaced(side: Side) -> bool:
    """Whether words are not separated: a piece between spaces is a clause."""
    return side.piece_length > 12


def _one_text(found: Found, side: Side) -> tuple[dict[str, Any], str]:
    if found.rows < 2e7 and len(side.letters) <= MAX_LETTERS:
        return {"level": "character"}, "letters: little text for subwords (recipe shakespeare)"
    size = max(8000, 2 * len(side.letters))
    return {"level": "subword", "size": size}, "subwords: much text, or many different characters"


def _two_sides(choice: Choice, found: Found, source: Side, target: Side, machine: Machine) -> None:
    levels = _levels(found)
    sides = [
        _side(found, side, level, machine)
        for side, level in zip((source, target), levels, strict=True)
    ]
    _write_unseen(choice, found, *sides)
    if levels[0] == levels[1] and levels[0] != "symbol" and _alike(*sides):
        same, why = _one_alphabet(source, target, levels[0])
        if same:
            choice.set("data.tokens.both", sides[0], f"{_why(levels[0])}; {why}")
            return
    choice.set("data.tokens.source", sides[0], _why(levels[0]))
    choice.set("data.tokens.target", sides[1], _why(sides[1]["level"]))


def _one_alphabet(source: Side, target: Side, level: str) -> tuple[bool, str]:
    """Whether both sides share a vocabulary, and the reason. Subwords of one script do, as in
    multi30k: names and many stems are the same. Letters that are to be copied are the same."""
    if level == "subword":
        return source.scripts == target.scripts, "both sides are in one script"
    known = target.letters & source.letters
    return len(known) >= 0.8 * len(target.letters), "both sides use the same letters"


def _alike(source: dict[str, Any], target: dict[str, Any]) -> bool:
    return source["level"] == target["level"] and source.get("normalize") == target.get("normalize")


def _write_unseen(
    choice: Choice, found: Found, source: dict[str, Any], target: dict[str, Any]
) -> None:
    """Letters that only the held-out targets have are never lost silently: where letters taken
    apart have them they are written so, where nothing has them as bytes; else see _say_lost."""
    unseen = found.unseen
    if unseen.share < UNSEEN:
        return
    letters, share = target["level"] == "character", _unseen(found, target["level"])
    if letters and 2 * unseen.decomposed <= unseen.share:
        for side in (source, target):  # both: they may share a vocabulary
            side |= {"normalize": "nfd"} if side["level"] == "character" else {}
        choice.notes.append(f"{share}: letters are written in their parts (nfd).")
    elif letters and unseen.share >= UNSEEN_BYTES and 2 * unseen.in_source < 1:
        target["level"] = "byte"
        choice.notes.append(f"{share}: targets are written in bytes.")


def _say_lost(choice: Choice, found: Found) -> None:
    """The same of letters that are neither written in parts nor in bytes."""
    level = choice.get("data.tokens.target.level") or choice.get("data.tokens.both.level")
    share = _unseen(found, level)
    if found.unseen.share < UNSEEN or any(note.startswith(share) for note in choice.notes):
        return
    copied = choice.get("model.decoder.copying") and 2 * found.unseen.in_source >= 1
    lost = "such a target cannot be right; more rows would help."
    choice.notes.append(f"{share}: {'it is copied from the source.' if copied else lost}")


def _unseen(found: Found, level: str) -> str:
    sign = "symbol" if level == "symbol" else "letter"
    return (
        f"{100 * found.unseen.share:.0f} % of the targets of a held-out part have a {sign} such as "
        f"{found.unseen.example} that the rest does not have"
    )


def _why(level: str) -> str:
    return {
        "character": "words: their letters",
        "symbol": "symbols, separated by spaces",
        "subword": "sentences: subwords",
        "byte": "bytes: letters that training does not have can be written",
    }[level]


def _side(found: Found, side: Side, level: str, machine: Machine) -> dict[str, Any]:
    tokens: dict[str, Any] = {"level": level}
    if level == "character" and side is found.source and "Hangul" in side.scripts:
        tokens["normalize"] = "nfd"  # syllables into letters, as in sigmorphon
    if level == "subword":
        tokens["size"] = _vocabulary(found, side, machine)
    return tokens


def _vocabulary(found: Found, side: Side, machine: Machine) -> int:
    """10,000 subwords for 29,000 pairs did well (multi30k), 4,000 on a CPU for their speed.

    From 10,000 pairs, on a GPU, 2,000, 4,000 and 8,000 have 34.5, 36.7 and 36.1 BLEU of the
    validation set; from 1,000, with 2,000 updates 500, 1,000 and 2,000 have 13.4, 14.9 and 16.7,
    with 4,000 1,000, 2,000 and 4,000 16.8, 16.8 and 16.4 (on a core, with BPE dropout: 14.0 and
    15.4). One seed.
    """
    sizes = ((1000, 1000), (10_000, 2000), (20_000, 4000), (100_000, 10_000), (1_000_000, 16_000))
    size = next((size for rows, size in sizes if found.rows < rows), 32_000)
    if machine.device == "cpu":
        size = min(size, 4000)
    return max(size, 2 * len(side.letters))


def _max_length(choice: Choice, found: Found) -> tuple[int, str]:
    if found.sound is not None:
        # Not all were opened: of spoken digits of 1.0 s at most among 200, 14 in 3,000 are longer,
        # up to 2.3 s.
        frames = min(max(2 * found.sound.seconds.maximum, LEAST_FRAMES), MOST_FRAMES)
        return frames, "frames of 10 ms; longer recordings are skipped"
    assert found.source is not None
    if found.task == "text to label":
        longest = _sizes(choice, found)[0].maximum
        return min(max(32, _round_up(longest)), 1000), "longer texts are cut"
    if found.task == "words to tags":
        return min(max(32, _round_up(found.source.words.maximum)), 512), "all sentences"
    longest = max(lengths.maximum for lengths in _sizes(choice, found))
    # Some words have many subwords, and rows that were not looked at may be longer.
    factor = 2 if not found.whole or family_of(found) == "sentences" else 1
    tags = 48 if found.tags else 0  # a tag that training has not seen is read as letters
    wanted = max(32, _round_up(factor * longest + 10 + tags))
    if longest > MOST_TOKENS:
        return MOST_TOKENS, "attention costs the square of the length"
    return min(wanted, MOST_TOKENS), "all pairs, with their tags"


def _are_summed_up(choice: Choice, found: Found) -> bool:
    """Whether many sources are too long, and hardly a target is."""
    source, target = (lengths.percentile_95 for lengths in _sizes(choice, found))
    return source > MOST_TOKENS >= target


def _round_up(number: float) -> int:
    return -(-int(number) // 16) * 16


# ---------------------------------------------------------------------------------- the network


@dataclass(frozen=True)
class Timed:
    """A plan, fitted to a training set and the time."""

    plan: Plan
    batch: int
    updates: int
    """That it should get."""
    possible: int
    """That the time allows, about."""
    passes: float
    """Over the training set, of the updates that it gets."""

    @property
    def expected(self) -> int:
        return max(min(self.updates, self.possible), 1)

    @property
    def is_short(self) -> bool:
        """Whether the time allows fewer updates than pay."""
        return self.expected < self.plan.updates[0]


def _audio_rate(choice: Choice, found: Found) -> None:
    if found.sound is None:
        return
    rate = 16_000 if found.sound.rate >= 16_000 else max(found.sound.rate, 8000)
    choice.set("audio.sample_rate", rate, f"the recordings have {found.sound.rate:,} Hz")


def _concatenation(choice: Choice, found: Found) -> None:
    """A model that has heard single words alone writes the first of several."""
    if found.task != "audio to text" or found.target.is_symbols or not found.target.is_words:
        return
    choice.set("data.concatenate", {}, "several recordings in a row: sequences of words are read")
    if choice.get("data.max_length") < FRAMES_IN_A_ROW:
        why = "frames of 10 ms; longer recordings are skipped, and so many are read in a row"
        choice.set("data.max_length", FRAMES_IN_A_ROW, why)


def training_tokens(choice: Choice, found: Found) -> float:
    """Tokens of the longer side in a pass over the training set, about."""
    split = choice.get("data.train.split")
    share = float(split.partition("-")[2].rstrip("%")) / 100 if split else 1.0
    if found.sound is not None:
        return share * found.sound.minutes * 6000
    if found.task == "language model":
        return share * found.rows / (1 if choice.get("data.tokens.both.level") != "subword" else 4)
    return share * found.rows * max(lengths.mean + 1 for lengths in _sizes(choice, found))


def _sizes(choice: Choice, found: Found) -> list[Lengths]:
    """Lengths of both sides in tokens, about."""
    assert found.source is not None
    sizes = []
    for side, name in ((found.source, "source"), (found.target, "target")):
        level = choice.get(f"data.tokens.{name}.level") or choice.get("data.tokens.both.level")
        if level in ("character", "byte"):
            sizes.append(side.characters if level == "character" else side.bytes)
        elif level == "subword":
            sizes.append(side.words.times(TOKENS_OF_WORD))
        else:
            sizes.append(side.words)
    return sizes


def _seconds(plan: Plan, share: float, machine: Machine) -> float:
    """Of an update with this share of the largest batch."""
    if machine.device == "cpu":
        products = plan.seconds["cpu"] - plan.overhead
        return plan.overhead + products * share / machine.speed
    # On a GPU a smaller batch saves less than its share.
    return plan.seconds[machine.device] * (0.3 + 0.7 * share) / machine.speed


def _fit(plan: Plan, tokens: float, row: float, machine: Machine, minutes: float) -> Timed:
    """A plan for a training set of so many tokens, in rows of `row` tokens each."""
    smallest, largest = plan.batch
    batch = int(min(max(smallest, tokens / BATCHES), largest))
    # imdb-pairs has 29 rows in a batch, sigmorphon-small 57: longer rows need more tokens.
    batch = int(max(batch, min(ROWS_OF_BATCH * row, 4 * largest)))
    batch = max(64, batch // 64 * 64)
    fewest, enough = plan.updates
    # A set that is much larger than those of the recipes is seen a few times, if there is time.
    enough = max(enough, round(LEAST_PASSES * tokens / batch))
    updates = round(min(max(fewest, plan.passes * tokens / batch), enough), -1)
    seconds = _seconds(plan, batch / largest, machine)
    possible = max(int((SPENT * 60 * minutes - START_UP[machine.device]) / seconds), 1)
    expected = max(min(updates, possible), 1)
    return Timed(plan, batch, int(updates), possible, expected * batch / max(tokens, 1))


# Of 100 film reviews 63.4 % are right with a table for twice as many n-grams as there are, 61.3 %
# with one of 500,000 rows, and an update takes a quarter of the time: all rows are updated (two
# seeds, 200 updates). Of 100 paragraphs in twenty languages as many are right, in a tenth.
ROOM = 2
# Of 1,000 film reviews, after 12 seconds of a core, 85.6 % are right with 30,000 rows and 584
# updates, 83.8 % with 100,000 and 402, 75.0 % with 460,000 and 117 (one seed).
ON_TABLE = 0.5  # of the time on a CPU, at most, for updates of the table


def _with_table(plan: Plan, choice: Choice, found: Found, machine: Machine, minutes: float) -> Plan:
    """With a table for as many n-grams as the training set can have, and as can be updated often
    enough in the time; the plan's own table if that is smaller."""
    if "ngrams" not in plan.model:
        return plan
    most: int = plan.model["ngrams"]["size"]
    rows = _possible_ngrams(choice, found, plan)
    if machine.device == "cpu":
        each = ON_TABLE * SPENT * 60 * minutes / plan.updates[0]
        rows = min(rows, each / plan.overhead * most)
    size = min(max(-(-int(rows) // 1000) * 1000, 1000), most)
    saved = plan.overhead * (1 - size / most)
    return replace(
        plan,
        model=plan.model | {"ngrams": {"max_n": _longest(choice, plan), "size": size}},
        seconds=plan.seconds | {"cpu": plan.seconds["cpu"] - saved},
        overhead=plan.overhead - saved,
    )


def _longest(choice: Choice, plan: Plan) -> int:
    """The most tokens of an n-gram: more of letters."""
    letters = choice.get("data.tokens.source.level") == "character"
    longest: int = 5 if letters else plan.model["ngrams"]["max_n"]
    return longest


def _possible_ngrams(choice: Choice, found: Found, plan: Plan) -> float:
    return ROOM * (_longest(choice, plan) - 1) * training_tokens(choice, found)


def _why_ngrams(choice: Choice, found: Found, plan: Plan) -> str:
    letters = choice.get("data.tokens.source.level") == "character"
    size = plan.model["ngrams"]["size"]
    if size == BAG.model["ngrams"]["size"]:
        many = plan.like
    elif size < _possible_ngrams(choice, found, plan):
        many = "as many as can be updated often enough in the time"
    else:
        many = "as many as such a set can have"
    return f"{'of letters' if letters else 'pairs of words'}; {many}"


# Who reads the features was measured for a recurrent network alone (benchmarks/words.py, 700 forms;
# table of docs/guides/words.md): with tag_attention 50.0 % in place of 42.5 of Hungarian are right,
# 71.0 in place of 60.2 of Turkish, 32.9 in place of 28.9 of Georgian, 34.9 with split_tags too. So
# it is no worse in the mean than a Conformer, which takes a core far longer:
# 51.9, 49.8 and 34.9 % of Old English, Hungarian and Georgian, the Conformer 50.6, 44.1 and 38.8.


def _plan(
    choice: Choice, found: Found, machine: Machine, minutes: float, asked: Plan | None
) -> Timed:
    """The largest plan for so many rows that gets enough updates in the time; else the smallest."""
    tokens = training_tokens(choice, found)
    row = max((one.median for one in _sizes(choice, found)), default=0) if found.source else 0
    if asked is not None:
        asked = _with_table(asked, choice, found, machine, minutes)
        return _fit(asked, tokens, row, machine, minutes)
    family = family_of(found)
    size = found.sound.minutes if found.sound is not None else found.rows
    fitting = [
        _with_table(plan, choice, found, machine, minutes)
        for plan in PLANS[family]
        if plan.rows <= size
    ]
    if found.features and machine.device == "cpu" and _writes_letters(choice, found):
        fitting = [INFLECTION]  # more minutes are for further seeds
    for plan in reversed(fitting):
        timed = _fit(plan, tokens, row, machine, minutes)
        if timed.possible >= timed.plan.enough * timed.updates:
            return timed
    return _fit(fitting[0], tokens, row, machine, minutes)


def _cut_to_time(choice: Choice, found: Found, timed: Timed) -> None:
    """Of a training set that the time is far too short for, a part: reading it would take the time.

    A hash decides, so that it is a sample of all of it.
    """
    text = found.source is not None and found.rows <= STREAMED
    if not text or timed.passes >= 0.5:
        return
    train = choice.get("data.train")
    end = float(train.get("split", "0-100%").partition("-")[2].rstrip("%"))
    wanted = max(2 * timed.passes * end, 100 * LEAST_READ / found.rows)
    wanted = float(f"{wanted:.2g}")
    if wanted < end:
        why = f"a sample by a hash of the source: {timed.passes:.0%} of the rows can be learnt"
        choice.set("data.train", {**train, "split": f"0-{wanted:g}%"}, f"{why} in the time")
        choice.notes.append(
            f"The time is too short for all rows: a sample of {wanted:g} % is read (--minutes)."
        )


def _subwords(choice: Choice, timed: Timed) -> None:
    plan = timed.plan
    if not plan.tokens or timed.passes < plan.tokens_from:
        return
    why = "as the training set is seen often" if plan.tokens_from else plan.like
    for side, tokens in choice.get("data.tokens").items():
        if tokens.get("level") == "subword":
            reason = choice.reasons.get(f"data.tokens.{side}", "")
            more = f"split differently in each epoch, {why}"
            choice.set(f"data.tokens.{side}", tokens | plan.tokens, f"{reason}; {more}")


# benchmarks/words.py, 700 forms: 44.4 % right in place of 38.3 with a Conformer in six languages,
# 36.0 in place of 32.8 with a recurrent network in three. With 7,000 forms of Hungarian it hurts:
# 57.5 % right, 62.5 without.
FEW_FORMS = 2000
# Letters of a stem that stay beside an ending or a prefix, which often depend on them: 43.3 % right
# in place of 38.3 of Hungarian, which has vowel harmony, 28.9 and 29.7 in place of 29.5 and 29.9
# of Georgian, which has none (700 forms, a recurrent network).
KEPT = 3
# Tags that training does not have were read as letters: with these two, 46.1 % in place of 39.5 of
# Old English and 71.3 in place of 40.9 of Ludian are right (700 forms, a Transformer); Hungarian
# and Turkish have a point less.
UNKNOWN_TAGS, COPIES = 0.05, 0.05


def _writes_letters(choice: Choice, found: Found) -> bool:
    """Whether letters become the same letters, so that they can be copied."""
    letters = choice.get("data.tokens.both.level") == "character"
    return letters and family_of(found) == "words"


def _augmentation(choice: Choice, found: Found, timed: Timed) -> None:
    """Unknown features, and invented stems, for the inflection of words."""
    if not (found.tags and _writes_letters(choice, found)):
        return
    made: dict[str, Any] = {}
    reasons = []
    if found.rows <= FEW_FORMS:
        made |= {"share": 0.5, "letters": "substrings", "kept": KEPT}
        reasons.append("invented stems, as forms are few (from 700 forms: 3 to 6 points)")
    if found.features:
        if found.joint_tags and timed.plan.is_recurrent:
            why = f"features such as {found.joint_tags} are read as their parts"
            choice.set("data.split_tags", True, why)
        why = "features that training does not have are read as <?>, which some of its own become"
        choice.set("data.unknown_tags", UNKNOWN_TAGS, why)
        made = {"share": 0.0, **made, "copies": COPIES}
        reasons.append("copies: words with unknown features stay as they are")
    if made:
        choice.set("data.hallucination", made, "; ".join(reasons))


def _model(choice: Choice, found: Found, timed: Timed) -> None:
    plan = timed.plan
    if found.task == "language model":
        choice.set("data.max_length", plan.block, f"of the blocks of the text, {plan.like}")
    for number, (key, value) in enumerate(plan.model.items()):
        why = f"{plan.name} ({plan.evidence})" if number == 0 else plan.like
        choice.set(f"model.{key}", value, why)
    dropout = _dropout(timed)
    why = plan.like if dropout == plan.dropout else _passes(timed.passes)
    choice.set("model.dropout", dropout, why)
    if found.task in ("text to text", "audio to text"):
        both = choice.get("data.tokens.both") is not None and found.sound is None
        tied = "all" if both else "target" if family_of(found) == "sentences" else "none"
        reasons = {"all": "one vocabulary for both sides", "none": "few tokens: little to share"}
        reason = reasons.get(tied, "input and output of the decoder")
        choice.set("model.tie_embeddings", tied, reason)
        # benchmarks/words.py, 700 forms: 43.7 % right in place of 38.3 with a Conformer in six
        # languages, 37.3 in place of 32.8 with a recurrent network in three.
        if _writes_letters(choice, found):
            decoder = {**plan.model["decoder"], "copying": True}
            why = "both sides use the same letters: a letter that training never saw is copied"
            if found.features and plan.is_recurrent:
                decoder["tag_attention"] = True
                why += "; features are a set, which the decoder reads: new combinations are too"
            choice.set("model.decoder", decoder, why)
            # benchmarks/words.py, 700 forms, a Transformer in three languages: 47.2 % right in
            # place of 42.2. Such a model is not exported, nor is one that copies.
            encoder = plan.model.get("encoder", {})
            if found.features and encoder.get("positions") == "sinusoidal":
                why = "the place of a letter does not depend on the number of tags"
                choice.set("model.encoder", {**encoder, "tag_positions": "zero"}, why)
    if found.task == "text to label":
        choice.set("model.ngrams", plan.model["ngrams"], _why_ngrams(choice, found, plan))
    if found.task == "words to tags" and found.source is not None:
        words = max(found.source.repeated, 10)
        choice.set(
            "model.characters",
            {**plan.model["characters"], "words": words},
            "words seen once have their letters alone, as unknown words do",
        )
    for key, value in plan.audio.items():
        choice.set(f"audio.{key}", value, plan.like)
    if found.sound is not None and found.sound.seconds.median < 100 * WORD_SECONDS:
        why = "recordings of a word: their own mean is that of its vowel, which would be taken away"
        choice.set("audio.normalize", "global", why)
    if found.sound is not None and found.sound.too_short > SHORT_FOR_CTC:
        share = f"{found.sound.too_short:.0%} of the recordings would be too short for CTC"
        choice.set("audio.subsampling", 2, share)
    if choice.get("audio.sample_rate") == 8000 and choice.get("audio.mel_bands") == 80:
        choice.set("audio.mel_bands", 40, "8 kHz has no higher bands")
        masks = SpecAugment(**plan.audio["spec_augment"])
        masked = plan.audio["spec_augment"] | {
            "frequency_mask_bands": masks.frequency_mask_bands // 2
        }
        choice.set("audio.spec_augment", masked, f"{plan.like}, masks of half as many bands")
    if found.sound is not None and found.sound.in_long > MUCH and plan.longest > MOST_FRAMES:
        longest = -(-found.sound.seconds.maximum // 1000) * 1000
        why = f"{found.sound.in_long:.0%} of the sound is in recordings longer than {LONG} s"
        frames = min(max(longest, MOST_FRAMES), plan.longest)
        choice.set("data.max_length", frames, f"frames of 10 ms: {why}")


def _dropout(timed: Timed) -> float:
    """By the passes over the training set, with no more than a little where updates are few."""
    plan = timed.plan
    dropout = plan.dropout
    if not isinstance(dropout, float):
        dropout = next(value for passes, value in dropout if timed.passes < passes)
    return min(dropout, plan.short_dropout) if timed.is_short else dropout


def _passes(number: float) -> str:
    if number < 1.5:
        return f"about {100 * min(number, 1):.0f} % of the training set"
    return f"about {number:.0f} passes over the training set"


# Of a recurrent network on 100 words, with batches of 128 tokens and 800 updates: 40.2 % of the
# phones wrong in place of 42.0 of Korean, 46.9 in place of 49.8 of Adyghe (one seed; on the
# validation sets 41.3 and 41.4, 48.6 and 49.2). Of other networks it was not measured.
def _rate(timed: Timed) -> float:
    """Of a batch that is smaller than the one that the plan's was chosen with, a lower one: as the
    square root of its size (Malladi et al. 2022). Of few updates, a higher one."""
    rate: float = timed.plan.train["lr"]
    if timed.is_short:
        rate *= timed.plan.short_rate
    if timed.plan.is_recurrent:
        rate *= min(timed.batch / timed.plan.batch[1], 1) ** 0.5
    return float(f"{rate:.2g}")


def _train(choice: Choice, found: Found, timed: Timed, minutes: float) -> None:
    passes = timed.updates * timed.passes / timed.expected
    choice.set("train.steps", timed.updates, _passes(passes))
    whole = int(minutes) if minutes == int(minutes) else minutes
    choice.set("train.minutes", whole, "training ends here if it has not ended before")
    choice.set("train.batch_tokens", timed.batch, "a pass has at least a few batches")
    choice.set("train.schedule", "cosine", "ends with the updates or the minutes")
    warmup = round(timed.plan.warmup * timed.expected)
    choice.set("train.warmup", warmup, f"{100 * timed.plan.warmup:.0f} % of the updates")
    for key, value in timed.plan.train.items():
        choice.set(f"train.{key}", value, timed.plan.like)
    if (rate := _rate(timed)) != timed.plan.train["lr"]:
        why = (
            "less as batches are smaller"
            if rate < timed.plan.train["lr"]
            else "more as updates are few"
        )
        choice.set("train.lr", rate, f"{timed.plan.like}, {why}")
    choice.set("train.log_every", min(max(timed.expected // 40, 1), 100), "about forty lines")
    if found.rows > STREAMED and found.sound is None and found.task != "language model":
        choice.set("data.streaming", True, "more rows than should be kept on disk twice")
        for side, tokens in choice.get("data.tokens").items():
            reason = choice.reasons.get(f"data.tokens.{side}", "")
            more = f"{reason}; learned from a sample"
            choice.set(f"data.tokens.{side}", tokens | {"sample": LEARNED_FROM}, more)


# ------------------------------------------------------------------- validation, metrics, decoding


METRICS = {
    "words": ["exact", "cer"],
    "phones": ["exact", "per"],
    "sentences": ["bleu", "chrf"],
    "text to label": ["accuracy", "f1", "calibration"],
    "words to tags": ["accuracy", "known", "unknown", "f1"],
    "entities": ["entity_f1", "accuracy", "known", "unknown"],
    "language model": ["bits_per_character", "perplexity"],
    "audio to text": ["cer", "wer"],
    "audio to label": ["accuracy", "f1", "calibration"],
}


METRICS_ARE = {
    "exact": "whole outputs that are right",
    "bleu": "n-grams of words",
    "chrf": "n-grams of characters, of phrases or of words without spaces",
    "accuracy": "labels that are right",
    "entity_f1": "whole entities, such as names: most words are outside of one",
    "bits_per_character": "how well the next letter is predicted",
    "cer": "characters that are wrong",
    "per": "phones that are wrong",
}


def _metrics(choice: Choice, found: Found) -> list[str]:
    family = family_of(found)
    if family == "words" and choice.get("data.tokens.target.level") == "symbol":
        family = "phones"
    if family == "words to tags" and found.target.entities:
        family = "entities"
    if family in ("words", "sentences") and _is_unspaced(found.target):
        return ["chrf", "bleu"]
    if family == "words" and not found.target.is_words:  # phrases: few are right as a whole
        return ["chrf", "exact"]
    if family == "audio to text" and found.target.is_symbols:
        return ["per"]
    return METRICS[family]


def _validation(
    choice: Choice, found: Found, timed: Timed, machine: Machine, minutes: float
) -> None:
    metrics = _metrics(choice, found)
    # On a CPU decoding takes as long as many updates: less of it where there is little time.
    slow = machine.device == "cpu" and found.task in ("text to text", "audio to text")
    reads = machine.device == "cpu" and found.task == "language model"
    averaged = (timed.plan.train.get("average") or {}).get("count", 0)
    # An average of the best of them: the first half is too early for it.
    times = 4 if (slow or reads) and minutes < SHORT else max(8, 2 * averaged)
    every = max(-(-timed.expected // times), 10)  # rounded up: the last is at the end, not before
    choice.set("validation.every", every, f"about {times} times")
    if found.task != "language model":
        limit, why = None, "all of it"
        if slow:
            limit, why = int(min(max(50 * minutes, 40), 500)), "decoding takes time"
        elif machine.device == "cpu" and minutes < SHORT:
            limit, why = int(max(1000 * minutes, 100)), "all would take much of the time"
        choice.set("validation.limit", limit, why)
    if RECIPE_TASKS[found.task] == "transduce":
        choice.set("validation.decoding", "chosen", "beam and the like, on the validation set")
    metric, why = metrics[0], "decides the best checkpoint"
    if found.task == "language model":
        metric = "loss"
    elif family_of(found) == "sentences" and timed.expected < EARLY:
        metric, why = "loss", f"{why}: after so few updates nothing that is written is right"
    elif metric == "exact" and len(metrics) > 1 and _held_out(choice, found) < COARSE:
        metric, why = metrics[1], f"{why}: of so few, whole outputs that are right say too little"
    choice.set("validation.metric", metric, why)
    choice.set("metrics", metrics, METRICS_ARE.get(metrics[0], ""))


def _held_out(choice: Choice, found: Found) -> float:
    """Sources of the validation part, about; of a file of its own it is not known."""
    split = choice.get("data.valid.split")
    if split is None:
        return float("inf")
    first, last = (float(end.rstrip("%")) for end in split.split("-"))
    return found.sources * (last - first) / 100


# Of letters, early ends are often among the best four of a step, however unlikely they are: with
# patience 1 these end the search, and a Hungarian form of log-probability -2.2 was given up for its
# first letters, of -6.7.
PATIENCE = "search on while a better output is possible: early ends are many where letters are few"


def _decoding(choice: Choice, found: Found, timed: Timed) -> None:
    if found.task == "text to text" and found.source is not None:
        choice.set("decode.beam", 5, "a little better than greedy search")
        choice.set("decode.patience", None, PATIENCE)
        sizes = _sizes(choice, found)
        ratio = sizes[1].percentile_95 / max(sizes[0].median, 1)
        if ratio > 2:
            choice.set("decode.max_ratio", round(min(1.5 * ratio, 50.0), 1), "targets are longer")
    elif found.task == "audio to text":
        for key, value in timed.plan.decode.items():
            choice.set(f"decode.{key}", value, timed.plan.like)
        choice.set("decode.patience", None, PATIENCE)
        choice.set("decode.length_penalty", 0.0, timed.plan.like)
        choice.set("decode.max_ratio", 1.0, "a token for each encoder state at most")
    elif found.task == "language model":
        choice.set("decode.beam", 1, "the likeliest text is a dull one: --sample")
        choice.set("decode.max_extra", 300, "tokens generated after a prompt")


# -------------------------------------------------------------------------------------- in words


def _about(
    choice: Choice, found: Found, timed: Timed, machine: Machine, minutes: float
) -> list[str]:
    parts = []
    for part in ("train", "valid", "test"):
        corpus = choice.get(f"data.{part}")
        if corpus is not None:
            parts.append(f"{part} {_where_it_is(corpus)}")
    how = " by position" if found.task == "language model" else " by a hash of the source"
    split = "split" in choice.get("data.train")
    tokens = {
        side: choice.get(f"data.tokens.{side}.level") for side in ("both", "source", "target")
    }
    levels = ", ".join(
        f"{level}s of {side}" if side != "both" else f"{level}s, one vocabulary"
        for side, level in tokens.items()
        if level is not None
    )
    unit = "frames" if found.sound is not None else "tokens"
    time = f"up to {timed.updates:,} updates of {timed.batch:,} {unit}"
    if timed.possible < timed.updates:
        whole = f"{timed.possible:,} updates of {timed.batch:,} {unit}"
        time = f"about {whole} in {duration(60 * minutes)}"
    few = [
        f"Few rows: one part of {_held_out_of_few(found)} sources is held out, which also chooses "
        f"the checkpoint. Its score means little."
        if "test" not in found.corpora
        else f"Few rows: the checkpoint is chosen by {_held_out_of_few(found)} sources, which is "
        f"mostly chance."
    ]
    return [
        f"Task: {found.task}. Parts: {', '.join(parts)}{how if split else ''}.",
        f"Model: {timed.plan.name}{f'; {levels}' if levels else ''}.",
        f"Training: {time}, on {machine.words}.",
        *(few if is_few(found) else []),
        *choice.notes,
    ]


def _where_it_is(corpus: dict[str, Any]) -> str:
    """A part in short: 0-80%, split = train, or the name of its file."""
    where = corpus.get("where")
    named = "" if where is None else f"{where['column']} = {where['value']}"
    file = corpus.get("file") or corpus.get("text") or corpus.get("source")
    return " ".join(filter(None, [named, corpus.get("split")])) or str(file)
