"""One model in eight threads at once: each call gives what it gives alone, whatever the others do.

Nothing that belongs to a call may be kept on the network: tags, chunks, prompts, lenses, gates, the
mode. Every kind of model is asked for everything it can do, in another order by each thread.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tiny_whisper
from language import LSTM, language_model
from slow_params import some_slow
from tiny_label_networks import classifier, tagger
from tiny_models import SOURCES, TARGETS, adapter_state, tiny
from tiny_sounds import audio_model, noise, tagged_model
from transduce.adapters import Adapter
from transduce.decoding.output import Output, Score
from transduce.inspection.look.beam import traced
from transduce.tasks import speech as speech_models
from transduce.tasks.live import Transcript

THREADS, RATE = 8, 4000
TEXTS = [source for source in SOURCES if source]
WAVES = [noise(0.6), noise(0.9, 2)]
CHUNK = "chunk: {ms: 160, trained: [40, 320]}"
CHUNKS = f"{{kind: transformer, layers: 1, heads: 2, feed_forward: 32, {CHUNK}}}"

Calls = list[Callable[[], Any]]


def same(found: Any, expected: Any) -> bool:
    """Whether two answers are the same, numbers but for rounding."""
    if isinstance(found, Output | Score | Transcript):
        names = [one.name for one in fields(found)]
        return all(same(getattr(found, name), getattr(expected, name)) for name in names)
    if isinstance(found, np.ndarray):
        return found.shape == expected.shape and np.allclose(found, expected, atol=1e-4)
    if isinstance(found, dict):
        return same([*found.items()], [*expected.items()])
    if isinstance(found, list | tuple):
        there = len(found) == len(expected)
        return there and all(same(*pair) for pair in zip(found, expected, strict=True))
    if isinstance(found, float):
        return bool(np.isclose(found, expected, atol=1e-4, equal_nan=True))
    return bool(found == expected)


def looked(model: Any, sources: Any, **asked: Any) -> Any:
    """What a lens has of a run, and nothing of what other threads run."""
    with model.lens() as lens:
        model.run(sources, **asked)
    return [[seen.source, seen.output, dict(seen.weights)] for seen in lens]


def gated(model: Any, sources: Any, part: str, **asked: Any) -> Any:
    with model.gates() as gates, warnings.catch_warnings():
        gates.gate(part)
        return model.run(sources, **asked)


def beam_steps(model: Any, source: str) -> Any:
    """What `look` draws the tree of a beam from."""
    twin, trace = traced(model)
    return [twin.run([source], beam=2), [step.prefixes for step in trace.steps]]


def text(model: Any) -> Calls:
    return [
        lambda: model.run(TEXTS[:3], beam=3, nbest=2),
        lambda: model.run(TEXTS[:3], beam=2, coverage_penalty=0.8),
        lambda: model.run(TEXTS[:2], attention=True, beam=1),
        lambda: list(model.stream(TEXTS[3])),
        lambda: model.score(SOURCES, TARGETS),
        lambda: looked(model, TEXTS[2:4]),
        lambda: gated(model, TEXTS[2:4], "decoder.1.cross"),
    ]


def recurrent() -> Calls:
    model = tiny({"kind": "recurrent"}, {"kind": "recurrent"})
    return [
        lambda: model.run(TEXTS[:3], beam=3),
        lambda: model.run(TEXTS[:3], beam=2, coverage_penalty=0.8),
        lambda: model.score(SOURCES, TARGETS),
        lambda: looked(model, TEXTS[:2]),
        lambda: beam_steps(model, TEXTS[2]),
    ]


def training() -> Calls:
    """One that is being trained: each call is without dropout, and the mode comes back."""
    model = tiny(model={"width": 16, "dropout": 0.5})
    model.network.train()

    def stays() -> Any:
        found = model.run(TEXTS, beam=1)
        return [found, model.score(SOURCES, TARGETS)]

    return [stays, lambda: list(model.stream(TEXTS[0]))]


def adapted() -> Calls:
    model = tiny(banned=True)
    model.add_adapter(Adapter(Path("other"), adapter_state(model)), "other")
    model.use_adapter("other")
    return text(model)


def speech() -> Calls:
    model = audio_model("model.decoder.layers=2")
    asked = {"rate": RATE, "max_length": 8}
    return [
        lambda: model.run(WAVES, **asked),
        lambda: model.run(WAVES, ctc_weight=0.4, times=True, **asked),
        lambda: model.run(WAVES, coverage_penalty=0.3, **asked),
        lambda: list(model.stream(WAVES[0], **asked)),
        lambda: model.score(WAVES, ["ab", "c"], rate=RATE),
        lambda: looked(model, WAVES, **asked),
    ]


def tagged() -> Calls:
    model = tagged_model()

    def with_tags(*tags: str) -> Calls:
        asked = {"rate": RATE, "tags": tags}
        return [
            lambda: model.run(WAVES, max_length=8, **asked),
            lambda: list(model.stream(WAVES[0], max_length=8, **asked)),
            lambda: model.score(WAVES, ["ab", "c"], **asked),
            lambda: looked(model, WAVES[:1], max_length=4, **asked),
        ]

    return [*with_tags("x"), *with_tags("y"), *with_tags()]


def live() -> Calls:
    model = audio_model("audio.normalize=global", f"model.encoder={CHUNKS}")

    def session() -> Any:
        with model.live(RATE) as fed:
            return fed.feed(WAVES[1]) + fed.finish()

    return [
        session,
        lambda: model.run(WAVES, rate=RATE, max_length=8),
        lambda: model.run(WAVES, rate=RATE, max_length=8, chunk_ms=80),
        lambda: list(model.stream(WAVES[0], rate=RATE, max_length=8, chunk_ms=160)),
    ]


def whisper() -> Calls:
    model, waves = tiny_whisper.our_model(), tiny_whisper.noises(2)
    asked = {"rate": tiny_whisper.RATE}
    once = {**asked, "fallback": False}  # outputs of random weights are all unlikely
    return [
        lambda: model.run(waves, language="de", beam=1, **once),
        lambda: model.run(waves, language="en", timestamps=False, times=True, beam=2, **once),
        lambda: model.run(waves, prompt="tea", **once),
        lambda: model.score(waves, [" tea", " uncle"], language="fr", **asked),
        lambda: list(model.stream(waves[0], language="de", **asked)),
        lambda: model.detect_language(waves, **asked),
        lambda: looked(model, waves[:1], language="en", **asked),
    ]


def labels() -> Calls:
    model = classifier(pooling="attention")
    sources = ["a fine film", "dull , dull", "fine"]
    return [
        lambda: model.run(sources, nbest=2),
        lambda: model.run(sources, attention=True),
        lambda: looked(model, sources[:2]),
    ]


def words() -> Calls:
    model = tagger(characters={"width": 4})
    return [
        lambda: model.run(["the doog runs", "a zebra"]),
        lambda: model.run(["quetzals sleep and eat and eat"]),
        lambda: model.encode(["unseen wordses"]).states_BSD.numpy(),
    ]


def continued(decoder: dict[str, Any] | None = None) -> Calls:
    model = language_model(decoder=decoder)
    return [
        lambda: model.run(["tea", "uncle"], beam=2),
        lambda: model.run(["tea"], sample=True, seed=3),
        lambda: list(model.stream("tea")),
        lambda: model.score(["tea of uncle", "a cup"]),
    ]


KINDS: dict[str, Callable[[], Calls]] = {
    "text": lambda: text(tiny()),
    "int8": lambda: text(tiny().compute_in("int8")),
    "recurrent": recurrent,
    "training": training,
    "adapters": adapted,
    "speech": speech,
    "tagged speech": tagged,
    "live": live,
    "whisper": whisper,
    "classifier": labels,
    "tagger": words,
    "language model": continued,
    "recurrent language model": lambda: continued(LSTM),
}


@pytest.fixture(autouse=True)
def _often() -> Iterator[None]:
    """Threads take turns as often as they can; one core each, so that sums are the same."""
    before, cores = sys.getswitchinterval(), torch.get_num_threads()
    sys.setswitchinterval(1e-4)
    torch.set_num_threads(1)
    yield
    sys.setswitchinterval(before)
    torch.set_num_threads(cores)


@pytest.mark.filterwarnings(
    "ignore:gates are set", "ignore:.*not support", "ignore:the network has"
)
@pytest.mark.parametrize("kind", KINDS)
def test_eight_threads_get_the_answers_given_alone(kind: str) -> None:
    in_threads(KINDS[kind])


def in_threads(make: Callable[[], Calls]) -> None:
    alone = [call() for call in make()]
    calls = make()  # a model that has computed nothing yet: also the first use is shared
    wrong: list[str] = []
    ready = threading.Barrier(THREADS)

    def work(first: int) -> None:
        ready.wait()
        for turn in range(len(calls)):
            number = (first + turn * (first % 2 or -1)) % len(calls)
            try:
                if not same(calls[number](), alone[number]):
                    wrong.append(f"call {number} has another answer")
            except Exception as error:  # any is a finding
                wrong.append(f"call {number}: {type(error).__name__}: {error}")

    threads = [threading.Thread(target=work, args=(first,)) for first in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, f"{len(wrong)} of {THREADS * len(calls)}: {sorted(set(wrong))}"


@pytest.mark.parametrize("kind", some_slow(["tagged speech", "whisper"], ["tagged speech"]))
def test_the_slots_of_a_gpu_are_used_by_one_thread_at_a_time(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if there were a GPU: the pools of slots are kept between calls."""
    monkeypatch.setattr(speech_models, "has_cuda_search", lambda network: True)
    in_threads(lambda: KINDS[kind]()[:3])


def test_a_stream_leaves_nothing_with_its_caller() -> None:
    """Between two pieces: no inference mode, no tag, no chunk, no prompt."""
    chunked = audio_model("audio.normalize=global", f"model.encoder={CHUNKS}")
    tagged, asked = tagged_model(), {"rate": RATE, "max_length": 8}
    heard = tiny_whisper.our_model()
    cases: list[tuple[Any, Iterator[str], Callable[[], Any]]] = [
        (
            tagged,
            tagged.stream(WAVES[0], tags=["x"], **asked),
            lambda: tagged.run(WAVES, tags=["y"], **asked),
        ),
        (
            chunked,
            chunked.stream(WAVES[0], chunk_ms=80, **asked),
            lambda: chunked.run(WAVES, **asked),
        ),
        (
            heard,
            heard.stream(tiny_whisper.noises(1)[0], rate=tiny_whisper.RATE, language="de"),
            lambda: heard.run(
                tiny_whisper.noises(2), rate=tiny_whisper.RATE, language="en", fallback=False
            ),
        ),
    ]
    for model, stream, between in cases:
        expected = between()
        model.network.train()
        assert next(stream)
        assert not torch.is_inference_mode_enabled()
        assert model.network.training
        sum(parameter.sum() for parameter in model.network.parameters()).backward()  # type: ignore[union-attr]
        assert same(between(), expected)
        stream.close()  # type: ignore[attr-defined]
        model.network.eval()


def test_a_lens_sees_what_its_own_thread_runs() -> None:
    """Another thread's runs are neither recorded nor slowed, and gates do not change them."""
    model = tiny()
    expected = model.run(TEXTS)
    with model.lens() as lens, model.gates() as gates:
        gates.gate("decoder.*.cross")
        others: list[Any] = []

        def other() -> None:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                others.append((model.run(TEXTS), model.is_watched))

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    ((found, watched),) = others
    assert same(found, expected)
    assert not watched
    assert len(lens) == 0
