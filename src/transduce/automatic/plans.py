"""The plans: networks and training settings by task and size, each with what it was measured by.

Everything here comes from recipes that were trained and scored (docs/reference/results.md). Where a
value was not measured for such a case, its evidence says so. `choose.py` picks a plan and fits it
to a file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

Dropouts = tuple[tuple[float, float], ...]
"""Fewer passes over the training set than these, and the dropout for them."""


@dataclass(frozen=True)
class Plan:
    """A network and how it is trained."""

    name: str
    """In words: a small Transformer."""
    evidence: str
    """Where its settings were measured, and what they reached."""
    model: dict[str, Any]
    train: dict[str, Any]
    batch: tuple[int, int]
    """Least and most tokens of a batch: a small training set is seen in about BATCHES of them."""
    seconds: dict[str, float]
    """Of an update with the largest batch, on one core of a Neoverse-N1 and on an H200. Some are
    estimates: they decide how many updates fit into the minutes, which the clock ends anyway. Those
    of an H200 are of benchmarks/to_quality.py where its races have such a network."""
    updates: tuple[int, int]
    """Fewest and most that paid."""
    passes: int
    """Passes over the training set that paid, between these."""
    warmup: float
    """Share of the updates."""
    dropout: float | Dropouts
    """Always the same, or by the passes over the training set."""
    rows: float = 0
    """For training sets of at least so many rows (of audio, minutes; of running text, letters)."""
    audio: dict[str, Any] = field(default_factory=dict)
    tokens: dict[str, Any] = field(default_factory=dict)
    """More settings of subwords."""
    tokens_from: float = 0
    """Passes over the training set from which they pay."""
    decode: dict[str, Any] = field(default_factory=dict)
    longest: int = 3000
    """Frames of the longest recordings that paid."""
    block: int = 256
    """Of running text: the length of the blocks that it is cut into."""
    short_rate: float = 1.0
    """Factor of the learning rate where the time allows fewer updates than the fewest."""
    short_dropout: float = 1.0
    """The most dropout there."""
    enough: float = 0.5
    """Share of its updates that the time must allow, for it to be taken in place of a smaller."""
    overhead: float = 0.0
    """Seconds of an update on a CPU core that neither a smaller batch nor faster products save: its
    many small operations. Measured on a Xeon at 2.5 GHz with batches of 64; 0: not measured."""

    @property
    def like(self) -> str:
        """Why a value of it was taken, in short."""
        named = re.match(r"recipes? ([\w-]+)", self.evidence)
        return f"as in {named[1]}" if named else self.name

    @property
    def is_recurrent(self) -> bool:
        """Whether a recurrent network reads and another writes."""
        return "gru-attention" in self.model.values()


BATCHES = 16  # of a pass over a small training set

# pronounce has 0.0 with 3 passes, sigmorphon-small 0.1 with 5; inflection of Georgian with 11:
# 56.5 % without, 61.0 % with 0.3 and twice the width.
DROPOUTS: Dropouts = ((4, 0.0), (8, 0.1), (float("inf"), 0.3))

# Words: letters in, letters or phones out.
RECURRENT = Plan(
    "a recurrent network with attention",
    "recipe sigmorphon-small: 23.3 % of words wrong after 6 minutes on one core",
    {"preset": "gru-attention", "width": 128, "decoder": {"context": "output"}},
    {"lr": 4e-3, "label_smoothing": 0.1},
    batch=(128, 512),
    seconds={"cpu": 0.082, "cuda": 0.012},
    updates=(800, 6000),
    # Words right of validation sets, from 800 words with 60 passes and about 290 (5,000 updates):
    # Hungarian 67.8 and 79.8 %, French 60.7 and 77.6, Icelandic 54.2 and 68.2, Korean 62.7 and 67.8
    # (with 2,000 updates 68.7), Adyghe 64.0 and 63.1. From 100 words with 800 and 2,000 updates:
    # Korean 15.1 and 19.6 %, Hungarian 7.1 and 9.8. One seed.
    passes=290,
    warmup=0.06,
    dropout=DROPOUTS,
    # On 1,000 words with 280 to 350 updates: with dropout 0.1 in place of 0.3, 60.0 % of the words
    # are right in place of 52.4 of Korean, 61.3 in place of 51.1 of French. With 1,090 updates it
    # makes no difference (Korean: 62.7 and 63.6; validation 68.7 both). One seed.
    short_dropout=0.1,
    overhead=0.018,
)
# From 800 words, width 192 in place of 128, both with 5,000 updates, words right of validation
# sets: Korean 69.0 and 68.6 %, Adyghe 64.3 and 61.4, French 74.2 and 71.6, Hungarian 79.1 and 78.6,
# Icelandic 69.6 and 66.1 (means of two seeds), in 1.45 times the time. Width 256 (one seed): 70.0,
# 62.4, 77.6, 76.9, 65.6. With 2,000 updates it made no difference. From 100 words, 9.5 and 8.2 % in
# the mean of the five languages.
WIDE_RECURRENT = replace(
    RECURRENT,
    name="a wider recurrent network with attention",
    evidence="from 800 words two in a hundred more are right than with width 128",
    model={**RECURRENT.model, "width": 192},
    seconds={"cpu": 0.13, "cuda": 0.014},
    enough=1.0,
)
# Forms of words by their features, from 700: twice the updates bring a point at most, and further
# seeds for an ensemble more (docs/reference/tried.md).
INFLECTION = replace(RECURRENT, updates=(800, 6000), passes=60)
CONFORMER = Plan(
    "a Conformer encoder, a Transformer decoder, R-Drop",
    "recipe cmudict, with more dropout for fewer words, as sigmorphon: 14.1 % of words wrong",
    {
        "width": 256,
        "encoder": {
            "kind": "conformer", "layers": 4, "heads": 4, "feed_forward": 512, "kernel": 7,
            "positions": "sinusoidal",
        },
        "decoder": {"layers": 4, "heads": 4, "feed_forward": 1024},
    },
    {"lr": 1e-3, "label_smoothing": 0.1, "r_drop": 3.0, "ema": 0.999},
    batch=(1024, 8192),
    seconds={"cpu": 25.0, "cuda": 0.0085},
    # From 800 words, with 1,500, 3,000 and 5,000 updates, words right of validation sets: Korean
    # 72.2, 73.1 and 73.6 %, Hungarian 87.3, 90.0 and 89.8, French 82.2, 83.6 and 83.6, Adyghe 70.7,
    # 70.4 and 70.7, Icelandic 79.8, 79.3 and 80.4. From 3,600, with 2,470 and 5,000: Korean 79.1
    # and 78.2, Icelandic 89.8 and 90.9. One seed.
    updates=(4000, 10_000),
    passes=150,
    warmup=0.1,
    dropout=0.3,
)  # fmt: skip
CONFORMER_OF_MANY = replace(
    CONFORMER,
    evidence="recipe cmudict: 22.0 % of words wrong with 109,000 rows, a Transformer 0.6 more",
    train=CONFORMER.train | {"r_drop": 2.0},
    dropout=0.2,
    rows=60_000,
)

# Sentences: subwords in, subwords out.
TINY = Plan(
    "a small Transformer",
    "recipe multi30k-en-de-small: 28.6 BLEU after 8 minutes on one core",
    {
        "preset": "transformer-tiny",
        "encoder": {"feed_forward": 256},
        "decoder": {"feed_forward": 256},
    },
    {"lr": 4e-3, "label_smoothing": 0.1},
    batch=(256, 1024),
    seconds={"cpu": 0.306, "cuda": 0.008},
    # English to German, BLEU of the validation set, one or two seeds. From 1,000 pairs with 1,000,
    # 2,000 and 4,000 updates 12.0, 13.3 and 14.0.
    updates=(4000, 8000),
    passes=40,
    warmup=0.1,
    # With dropout 0, 0.1, 0.2 and 0.3: from 10,000 pairs with 6 passes 23.0, 21.6 and 19.3 (0.2);
    # from 29,000 with 8 passes 32.8, 31.8, 29.9 and 28.8; from 10,000 with 12 passes 23.7, 25.3 and
    # 25.0 (0.2), with 25 passes (0.1 on) 28.5, 28.5 and 26.4; from 1,000 with 25 passes 8.2, 9.8,
    # 9.4 and 6.2, with 45 (0.1 on) 11.1, 12.1 and 12.0, with 90 passes (0.2 to 0.4) 13.3, 13.3 and
    # 12.8.
    dropout=((9, 0.0), (16, 0.1), (float("inf"), 0.2)),
    # From 1,000 pairs (2,000 subwords) with 30 passes 5.7 in place of 10.0, with 75 passes 13.9 in
    # place of 12.5, with 230 passes 15.7 in place of 13.4; from 10,000 with 25 passes 26.9 in place
    # of 28.5.
    tokens={"bpe_dropout": 0.1},
    tokens_from=60,
    enough=0.14,
    overhead=0.03,
)
# English to German with width 64 and 128, BLEU of the validation set, one seed: from 10,000 pairs
# in one, two and four minutes of a core 16.6 and 10.1, 22.0 and 23.0, 24.4 and 25.3; from 1,000 in
# 60 and 150 seconds 10.6 and 9.9, 13.9 and 13.9. Width 128 has 440 to 490 updates in a minute.
# With twice the rate, in a minute 18.9 in place of 16.6 from 10,000 pairs, 11.9 in place of 10.6
# from 1,000.
NARROW = replace(
    TINY,
    name="a small and narrow Transformer",
    evidence="in a minute of a core it learns more than one of width 128",
    model={**TINY.model, "width": 64},
    train={**TINY.train, "lr": 8e-3},
    seconds={"cpu": 0.175, "cuda": 0.008},
)
SMALL = Plan(
    "a Transformer of 4 + 4 layers, R-Drop",
    "recipe multi30k-en-de: 40.7 BLEU with 29,000 pairs",
    {
        "width": 256,
        "encoder": {"layers": 4, "heads": 4, "feed_forward": 512},
        "decoder": {"layers": 4, "heads": 4, "feed_forward": 512},
    },
    {"lr": 2.5e-3, "label_smoothing": 0.1, "r_drop": 3.0, "ema": 0.999},
    batch=(1024, 4096),
    seconds={"cpu": 19.0, "cuda": 0.008},
    # English to German, BLEU of the validation set, one seed. From 10,000 pairs with 3,450, 6,000,
    # 8,000 and 12,000 updates 34.8, 36.7, 37.3 and 37.0; from 1,000 with 2,000, 4,000 and 8,000
    # 16.7, 16.8 and 17.3. Half the rate: 36.7 to 35.6 and 16.8 to 17.4; dropout 0.2: 37.5 and 17.6;
    # 0.4 with few updates: 34.8 to 32.1 and 14.9 to 14.9.
    updates=(8000, 8000),
    passes=80,
    enough=0.25,
    warmup=0.25,
    dropout=0.3,
    tokens={"bpe_dropout": 0.1},
)
BASE = Plan(
    "the base Transformer",
    "Vaswani et al. 2017; its speed is of benchmarks/train_speed.py, its quality was not measured "
    "here",
    {"preset": "transformer-base"},
    {"lr": 1e-3, "label_smoothing": 0.1, "ema": 0.999},
    batch=(8192, 24_576),
    seconds={"cpu": 300.0, "cuda": 0.032},
    updates=(8000, 100_000),
    passes=20,
    warmup=0.1,
    dropout=0.1,
    rows=300_000,
)

# Labels of texts.
BAG = Plan(
    "averaged embeddings of words and word pairs (as fastText)",
    "recipe imdb-pairs: 89.6 % right, an LSTM 87.5 %, a Transformer 87.8 %",
    {
        "width": 32,
        "encoder": {"kind": "pooled"},
        "pooling": "mean",
        "ngrams": {"max_n": 2, "size": 500_000},
        "word_dropout": 0.3,
    },
    {
        "lr": 5e-3, "betas": [0.9, 0.999], "weight_decay": 0.0, "label_smoothing": 0.0,
        "clip_norm": 0.0,
    },
    batch=(512, 8192),
    seconds={"cpu": 0.12, "cuda": 0.003},
    updates=(1200, 8000),
    passes=6,
    warmup=0.0,
    # Twice the rate: of 1,000 film reviews 85.4 % in place of 83.8 with 400 updates, and 86.4 in
    # place of 86.0 with 600; of 100 paragraphs in twenty languages 98.5 in place of 97.3. 1,200
    # updates are as good as that: 86.6 and 98.5 (one seed).
    short_rate=2.0,
    overhead=0.09,  # all rows of the table are updated
    dropout=0.0,
)  # fmt: skip

# A tag for each word.
TAGGER = Plan(
    "an LSTM over words and their letters",
    "recipe ewt-small: 94.5 % right after 5 minutes on one core",
    {
        "width": 160,
        "encoder": {"kind": "recurrent", "cell": "lstm"},
        "characters": {"kind": "lstm", "width": 64},
        "word_dropout": 0.1,
    },
    {"lr": 4e-3, "label_smoothing": 0.0, "ema": 0.99},
    batch=(128, 512),
    seconds={"cpu": 0.106, "cuda": 0.02},
    updates=(400, 4000),
    passes=10,
    warmup=0.03,
    # On 1,000 sentences with 125 to 137 updates: 80.9 % of the tags are right, 86.0 with twice the
    # rate, 85.0 with dropout 0.1; with both and 75 updates 84.5 (one seed).
    short_rate=2.0,
    short_dropout=0.1,
    overhead=0.035,
    dropout=0.4,
)
WIDE_TAGGER = Plan(
    "two layers of LSTMs over words and their letters",
    "recipe ewt-tagger: 95.1 % right",
    {
        "width": 384,
        "encoder": {"kind": "recurrent", "cell": "lstm", "layers": 2},
        "characters": {"kind": "lstm", "width": 128},
        "word_dropout": 0.1,
    },
    {"lr": 3e-3, "label_smoothing": 0.0, "ema": 0.995},
    batch=(256, 1024),
    seconds={"cpu": 0.9, "cuda": 0.03},
    updates=(800, 8000),
    passes=25,
    warmup=0.04,
    overhead=0.08,
    dropout=0.5,
)

# Running text.
SMALL_LANGUAGE_MODEL = Plan(
    "a small Transformer of letters",
    "recipe shakespeare-small",
    {
        "width": 128,
        "decoder": {"layers": 4, "heads": 4, "feed_forward": 512, "positions": "rotary"},
    },
    {"lr": 2e-3, "betas": [0.9, 0.99], "label_smoothing": 0.0},
    batch=(256, 512),
    seconds={"cpu": 0.1, "cuda": 0.006},
    updates=(500, 8000),
    passes=10,
    warmup=0.03,
    dropout=DROPOUTS,
    block=64,
)
LANGUAGE_MODEL = Plan(
    "a Transformer of 6 layers",
    "recipe shakespeare: 1.415 nats a letter, nanoGPT 1.470",
    {
        "width": 384,
        "decoder": {
            "layers": 6, "heads": 6, "feed_forward": 1536, "activation": "gelu",
            "positions": "rotary", "attention_dropout": 0.2,
        },
    },
    {
        "lr": 1e-3, "betas": [0.9, 0.99], "weight_decay": 0.1, "label_smoothing": 0.0,
        "r_drop": 1.0, "ema": 0.998,
    },
    batch=(4096, 16_384),
    seconds={"cpu": 70.0, "cuda": 0.02},
    updates=(1000, 3000),
    passes=50,
    warmup=0.04,
    dropout=0.3,
)  # fmt: skip
LARGE_LANGUAGE_MODEL = Plan(
    "a Transformer of 8 layers over subwords",
    "the language model of film reviews in docs/guides/training.md (Muon: 4.25 nats, AdamW 4.53)",
    {
        "width": 512,
        "decoder": {
            "layers": 8, "heads": 8, "feed_forward": 2048, "activation": "gelu",
            "positions": "rotary",
        },
    },
    {"lr": 8e-3, "optimizer": "muon", "weight_decay": 0.1, "label_smoothing": 0.0},
    batch=(16_384, 32_768),
    seconds={"cpu": 400.0, "cuda": 0.037},
    updates=(2000, 50_000),
    passes=10,
    warmup=0.05,
    dropout=0.1,
    rows=2e7,
)  # fmt: skip

# Sound.
SMALL_SPEECH = Plan(
    "a small Conformer with CTC",
    "recipe asterisk-small: 28.5 % of characters wrong from 24 minutes of one speaker",
    {
        "width": 128,
        "ctc_weight": 0.5,
        "encoder": {
            "kind": "conformer", "layers": 3, "heads": 4, "feed_forward": 256, "kernel": 15,
            "positions": "sinusoidal",
        },
        "decoder": {"layers": 1, "heads": 4, "feed_forward": 256},
    },
    {"lr": 2e-3},
    batch=(1000, 2000),
    seconds={"cpu": 0.25, "cuda": 0.025},
    updates=(1000, 6000),
    passes=43,
    warmup=0.1,
    dropout=0.1,
    decode={"beam": 4, "ctc_weight": 0.5},
    audio={
        "mel_bands": 40,
        "channels": 32,
        "speed_perturbation": [0.9, 1.0, 1.1],
        "spec_augment": {"time_mask_frames": 40, "frequency_mask_bands": 8},
    },
)  # fmt: skip
SHORT_SPEECH = Plan(
    "a Conformer with CTC, more dropout and masks",
    "recipe asterisk: 18.2 % of characters wrong from 24 minutes of one speaker",
    {
        "width": 144,
        "ctc_weight": 0.5,
        "encoder": {
            "kind": "conformer", "layers": 6, "heads": 4, "feed_forward": 576, "kernel": 15,
            "positions": "sinusoidal",
        },
        "decoder": {"layers": 1, "heads": 4, "feed_forward": 576},
    },
    {"lr": 2e-3, "average": {"of": "best", "count": 5}},
    batch=(2000, 8000),
    seconds={"cpu": 2.7, "cuda": 0.015},
    updates=(1500, 4000),
    # 12 of 432 recordings are longer than 15 s, of up to 73 s, and have 29 % of the words: without
    # them 51.7 % of the words are wrong in place of 45.7 (three seeds). For the smaller network it
    # makes no difference: 63.3 and 62.2 %.
    longest=9000,
    passes=220,
    warmup=0.25,
    dropout=0.2,
    decode={"beam": 4, "ctc_weight": 0.5},
    audio={
        "mel_bands": 80,
        "channels": 64,
        "normalize": "global",
        "speed_perturbation": [0.8, 0.9, 1.0, 1.1, 1.2],
        "spec_augment": {
            "time_masks": 4, "time_mask_frames": 40, "time_mask_share": 0.1,
            "frequency_mask_bands": 16,
        },
    },
)  # fmt: skip
SPEECH = Plan(
    "a Conformer with CTC",
    "recipe mboshi: 12.2 % of characters wrong from 4 hours, three seeds",
    {
        "width": 144,
        "ctc_weight": 0.3,
        "encoder": {
            "kind": "conformer", "layers": 6, "heads": 4, "feed_forward": 576, "kernel": 15,
            "positions": "sinusoidal",
        },
        "decoder": {"layers": 1, "heads": 4, "feed_forward": 576},
    },
    {"lr": 2e-3, "label_smoothing": 0.1, "average": {"of": "best", "count": 10}},
    batch=(8000, 24_000),
    seconds={"cpu": 8.0, "cuda": 0.02},
    updates=(2500, 6000),
    longest=9000,  # as of the plan before
    passes=70,
    warmup=0.375,  # with a fifth, one seed in three did not learn to attend
    dropout=0.1,
    rows=60,
    decode={"beam": 8, "ctc_weight": 0.3},
    audio={
        "mel_bands": 80,
        "channels": 64,
        "normalize": "global",
        "speed_perturbation": [0.8, 0.9, 1.0, 1.1, 1.2],
        "spec_augment": {"time_mask_frames": 40, "time_mask_share": 0.1},
    },
)  # fmt: skip
SOUND_LABELS = Plan(
    "a small Conformer, its states averaged",
    "recipe digits: 98 % of the validation labels of spoken digits right, one seed",
    {
        "width": 64,
        "pooling": "mean",
        "encoder": {"kind": "conformer", "layers": 2, "heads": 4, "feed_forward": 128, "kernel": 7},
    },
    {"lr": 2e-3},
    batch=(750, 1500),
    seconds={"cpu": 0.08, "cuda": 0.015},
    updates=(600, 4000),
    passes=30,
    warmup=0.1,
    overhead=0.03,
    dropout=0.1,
    audio={
        "mel_bands": 40,
        "channels": 16,
        "speed_perturbation": [0.8, 0.9, 1.0, 1.1, 1.25],
        "background_noise": {"before": 0.0, "after": 0.0, "snr": [10.0, 40.0]},
        "spec_augment": {
            "time_masks": 1, "time_mask_frames": 10, "time_mask_share": 0.2,
            "frequency_masks": 1, "frequency_mask_bands": 6,
        },
    },
)  # fmt: skip

# By what is learnt, from the smallest to the largest: the largest that the time allows is taken.
PLANS: dict[str, tuple[Plan, ...]] = {
    "words": (RECURRENT, WIDE_RECURRENT, CONFORMER, CONFORMER_OF_MANY),
    "sentences": (NARROW, TINY, SMALL, BASE),
    "text to label": (BAG,),
    "words to tags": (TAGGER, WIDE_TAGGER),
    "language model": (SMALL_LANGUAGE_MODEL, LANGUAGE_MODEL, LARGE_LANGUAGE_MODEL),
    "audio to text": (SMALL_SPEECH, SHORT_SPEECH, SPEECH),
    "audio to label": (SOUND_LABELS,),
}
