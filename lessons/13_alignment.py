# %% [markdown]
# # 13. Cross-attention learns alignment
#
# **Claim.** A decoder that is trained only to predict the next token learns by itself where to
# look: at the word that it translates, and at the moment of the sound that it writes down.
#
# **Time.** 35 s; full size 75 s.
#
# The decoder computes a query $q_u$ from what it has written so far; keys $k_t$ and values $v_t$
# come from the states of the encoder. For target token $u$ the weights over source positions $t$
# are
#
# $$\alpha_{u,t} = \frac{e^{q_u \cdot k_t}}{\sum_{t'} e^{q_u \cdot k_{t'}}}, \qquad
# c_u = \sum_t \alpha_{u,t} v_t$$
#
# and $c_u$ is the context from which the token is predicted. Nobody tells the decoder which $t$
# belongs to $u$. The loss only asks for the right token. But the right token can only be known from
# the right place, so training moves the weights there.
#
# To measure this, one must know the right places. So both data sets are made here, together with
# the true alignment.

# %%
import random

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from transduce import recipe
from transduce.data.batches.batch import collate
from transduce.data.tokens.tokenizer import BEGIN, END, SPECIALS, Tokens
from transduce.inspection.analysis import align_words, alignment_error_rate
from transduce.inspection.analysis.alignment import Gold
from transduce.lessons import COLORS, fit, live, panels, show, size, table
from transduce.models import Conformer, Lens
from transduce.tasks.transduce import Transducer

# %% [markdown]
# ## Translation
#
# A few words of English, and a made-up language with French words and the word order of Irish: the
# verb comes first, and adjectives follow their noun. Every target word comes from one source word;
# the pair is called a *link*.

# %%
FRENCH = {
    "the": "le",
    **{"small": "petit", "old": "vieux", "red": "rouge", "wild": "sauvage"},
    **{"dog": "chien", "cat": "chat", "bird": "oiseau", "horse": "cheval"},
    **{"sees": "voit", "likes": "aime", "hears": "entend", "finds": "trouve"},
}
ADJECTIVES, NOUNS, VERBS = (list(FRENCH)[start : start + 4] for start in (1, 5, 9))
draw = random.Random(1)


def sentence() -> tuple[str, str, Gold]:
    """A source, its translation, and which source word each target word is from."""
    phrases = [
        ["the", *draw.sample(ADJECTIVES, draw.random() < 0.6), draw.choice(NOUNS)] for _ in range(2)
    ]
    source = [*phrases[0], draw.choice(VERBS), *phrases[1]]
    verb = len(phrases[0])
    order = [verb]
    for start, phrase in ((0, phrases[0]), (verb + 1, phrases[1])):
        # the article, the noun, then the adjective, if there is one
        order += [start, start + len(phrase) - 1, *([start + 1] if len(phrase) == 3 else [])]
    links = frozenset((place, target) for target, place in enumerate(order))
    return " ".join(source), " ".join(FRENCH[source[place]] for place in order), Gold(links, links)


pairs = [sentence() for _ in range(1500)]
test, training = pairs[:40], pairs[40:]
print(pairs[0][0], "->", pairs[0][1])

english, french = (
    Tokens.train(recipe.Tokens(level="word"), [pair[side] for pair in pairs]) for side in (0, 1)
)
settings = {
    "data": {
        "train": {"name": "made here", "split": "train"},
        "valid": {"name": "made here", "split": "valid"},
        "tokens": {"both": {"level": "word"}},
    },
    "model": {
        "width": 48,
        "dropout": 0.0,
        "encoder": {"kind": "recurrent", "cell": "gru"},
        "decoder": {"kind": "recurrent", "cell": "gru", "attention": "general"},
    },
}
torch.manual_seed(1)
translator = Transducer.create(recipe.read_recipe(settings), english, french)
gold = [pair[2] for pair in test]


def error_rate() -> float:
    """The alignment error rate of attention on the test sentences (Och and Ney 2003)."""
    found = align_words(translator, [p[0] for p in test], [p[1] for p in test], gold=gold)
    return alignment_error_rate(found.links, gold)


def sentences() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    some = draw.sample(training, 48)
    sources, targets = ([pair[side] for pair in some] for side in (0, 1))
    batch = collate(english.encode_batch(sources), french.encode_batch(targets))
    return batch.source_BS, batch.source_lengths_B, batch.target_BT


before = error_rate()
*_, right = fit(translator.network, sentences, size(80, 200), lr=1e-2)
after = error_rate()
table(
    ["attention as alignment", "error rate"],
    [("before training", before), (f"after training ({right:.0%} of the words right)", after)],
)

# %% [markdown]
# The alignment error rate is 1 − 2 |found ∩ gold| / (|found| + |gold|), where *found* are the links
# of attention and *gold* the true ones: 0 if all links are right.
#
# A figure would show one sentence. The page that the next cell writes holds the model: change
# a word, leave an adjective out, and see where each word of the translation looks. It needs nothing
# but a browser.

# %%
live(translator, "alignment-live", [pair[0] for pair in test[:4]])

# %% [markdown]
# ## Speech
#
# The "speech" consists of four tones of random length after random pauses; the text has a letter
# for each tone. A small Conformer reads the waveform and a Transformer decoder writes the letters.
# Each encoder state stands for 40 ms. (`transduce demo speech` draws the same figure for words, but
# there the true times are not known.)

# %%
RATE, HERTZ = 4000, (250, 450, 750, 1200)
LETTERS = "abcd"
noise = np.random.default_rng(1)


def recording(text: list[int]) -> tuple[torch.Tensor, list[tuple[float, float]]]:
    """The sound of a text, and from when to when each of its tones lasts, in seconds."""
    parts, times, place = [np.zeros(int(draw.uniform(0.05, 0.3) * RATE))], [], 0
    for letter in text:
        place = sum(map(len, parts))
        count = int(draw.uniform(0.12, 0.18) * RATE)
        wave = np.sin(2 * np.pi * HERTZ[letter] * np.arange(count) / RATE) * np.hanning(count)
        parts += [0.3 * wave, np.zeros(int(draw.uniform(0.04, 0.14) * RATE))]
        times.append((place / RATE, (place + count) / RATE))
    samples = np.concatenate(parts)
    samples += 0.01 * noise.standard_normal(len(samples))
    return torch.tensor(samples, dtype=torch.float32), times


def recordings(count: int, shortest: int, longest: int):
    """A batch of recordings with lengths and targets, and the true times."""
    texts = [
        [draw.randrange(4) for _ in range(draw.randint(shortest, longest))] for _ in range(count)
    ]
    sounds, times = zip(*map(recording, texts), strict=True)
    target = [torch.tensor([BEGIN, *(len(SPECIALS) + n for n in text), END]) for text in texts]
    lengths_B = torch.tensor([len(sound) for sound in sounds])
    return (pad_sequence(sounds, True), lengths_B, pad_sequence(target, True)), times


torch.manual_seed(1)
listener = Conformer(
    len(SPECIALS) + 4,
    width=32,
    heads=2,
    layers=1,
    feed_forward=64,
    kernel=5,
    positions="sinusoidal",
    decoder_layers=1,
    decoder_heads=1,
    ctc_weight=0.5,
    dropout=0.0,
    sample_rate=RATE,
    mel_bands=16,
    channels=8,
    spec_augment=False,
)
LONGEST = 3
heard, true_times = recordings(40, LONGEST, LONGEST)


def look(network: torch.nn.Module) -> tuple[np.ndarray, np.ndarray, float]:
    """Weights, the second that each state begins at, and the median error of the largest weight."""
    samples_BW, lengths_B, target_BT = heard
    with torch.no_grad(), Lens(network, "decoder.*.cross_attention") as lens:
        network.logits(samples_BW, lengths_B, target_BT[:, :-1])
        states_B = network.encode(samples_BW, lengths_B).lengths_B
    (weights_BHTS,) = lens.weights.values()
    misses = []
    for row, times in enumerate(true_times):
        states = int(states_B[row])
        middle_S = (np.arange(states) + 0.5) * int(lengths_B[row]) / RATE / states
        best_T = weights_BHTS[row, 0, : len(times), :states].argmax(-1).numpy()
        misses += [abs(middle_S[s] - sum(t) / 2) for s, t in zip(best_T, times, strict=True)]
    states = int(states_B[0])
    edges = np.linspace(0, int(lengths_B[0]) / RATE, states + 1)
    return weights_BHTS[0, 0, :LONGEST, :states].numpy(), edges, float(np.median(misses))


network_error = {"before training": look(listener.eval())[2]}
*_, right = fit(listener, lambda: recordings(24, 1, LONGEST)[0], size(600, 900), lr=3e-3)
weights_TS, edges, missed = look(listener)
network_error[f"after training ({right:.0%} of the letters right)"] = missed
table(
    ["largest weight of a letter", "median, seconds from the middle of its tone"],
    network_error.items(),
)

# %%
figure, (words, sounds) = panels(2)
with translator.lens("decoder.attention") as seen:
    translator.score([test[0][0]], [test[0][1]])
entry = seen[0]
source, target = (test[0][side].split() for side in (0, 1))
shown = entry.weights["decoder.attention"].mean(0)[: len(target), : len(source)]
words.imshow(shown, cmap="Greys", vmin=0, vmax=1, aspect="auto")
words.set_xticks(range(len(source)), source, rotation=45)
words.set_yticks(range(len(target)), target)
words.plot(
    *zip(*gold[0].sure, strict=True), "s", markersize=17, markerfacecolor="none", color=COLORS[1]
)
words.set(xlabel="source word", ylabel="word that is written")
words.set_title("Translation: attention, and the true links", fontsize=10, loc="left")
sounds.pcolormesh(edges, np.arange(LONGEST + 1), weights_TS, cmap="Greys", vmin=0, vmax=1)
for row, (start, end) in enumerate(true_times[0]):
    sounds.plot([start, end, end, start, start], [row, row, row + 1, row + 1, row], color=COLORS[1])
text = [LETTERS[int(n) - len(SPECIALS)] for n in heard[2][0, 1 : LONGEST + 1]]
sounds.set_yticks(np.arange(LONGEST) + 0.5, text)
sounds.set(xlabel="seconds", ylabel="letter that is written", ylim=(LONGEST, 0))
sounds.set_title("Speech: attention, and the true tones", fontsize=10, loc="left")
for axes in (words, sounds):
    axes.grid(visible=False)
show(figure, "alignment")

# %% [markdown]
# **What to see.** Left: rows are target words, columns source words, black is a weight of 1; the
# squares mark the true links. Most squares are black inside. Right: rows are letters, the
# horizontal axis is time; the boxes mark when each tone really sounds. The weights lie inside their
# boxes.
#
# What is left of the error in translation is mostly the articles: both *the* become *le*, so to
# look at the wrong one costs nothing. Attention goes where it lowers the loss, not where a linguist
# would draw a link.
#
# ## The claim, asserted

# %%
assert before > 0.6, f"attention of an untrained network is already aligned: {before}"
assert after < 0.35, f"the alignment error rate is {after}"
untrained = next(iter(network_error.values()))
assert missed < 0.1, f"the largest weights miss their tones by {missed} s"
assert missed < untrained / 2, (
    f"an untrained network misses by {untrained} s, a trained by {missed}"
)
print(
    f"Alignment error rate {before:.2f} before training, {after:.2f} after; the largest weight "
    f"misses the middle of its tone by {untrained:.2f} s before, {missed:.3f} s after (medians; a "
    f"state is 0.04 s)."
)

# %% [markdown]
# **What would prove it wrong.** An untrained network that is already aligned; an alignment error
# rate above 0.35 after training; or largest weights that lie more than 0.1 s from their tones, or
# are less than twice as close as before training.
#
# **Where it is only half true.** The speech network here is also trained with CTC
# (`ctc_weight=0.5`), a loss that makes its *encoder* follow the audio; this helps the decoder to
# find the places, although nothing tells attention where to look. Attention is not always an
# alignment: a state of the encoder also knows its neighbours, so a decoder may look one word aside
# and still be right, and deep Transformers spread alignment over many heads. Both data sets are
# made so that every token has one place.
#
# **To try.** Give the translator `"attention": "additive"`: is it as well aligned, and does it
# predict as well? Set `ctc_weight=0.0`: how many updates does the recognizer need now? Train it
# only on texts of the full length (`recordings(16, LONGEST, LONGEST)`).
