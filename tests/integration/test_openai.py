"""OpenAI's protocol, with its client."""

from __future__ import annotations

import asyncio
import io
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

import optional
from client_server import english_german, served, skip_without, speech, tea_model, write_wave

skip_without("openai", "soundfile")
openai = optional.package("openai")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served() as address:
        yield f"{address}/v1"


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[Any]:
    with openai.OpenAI(base_url=url, api_key="any", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def wave(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_wave(tmp_path_factory.mktemp("sounds") / "of tea.wav")


def test_models(client: Any) -> None:
    found = {model.id: model for model in client.models.list()}
    assert list(found) == ["en-de", "de-en", "speech", "speech-de", "tea"]
    assert client.models.retrieve("tea").owned_by == "transduce"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("coffee")
    assert caught.value.code == "model_not_found"
    assert "tea" in caught.value.message
    assert caught.value.request_id == caught.value.body["request_id"] != ""


# ------------------------------------------------------------------------------------ audio


def test_transcripts_in_every_format(client: Any, wave: Path) -> None:
    (expected,) = speech().run([wave], times=True)
    create = client.audio.transcriptions.create
    found = create(model="speech", file=wave)
    assert found.text == expected.text != ""
    assert found.usage.seconds == pytest.approx(1.5)
    plain = create(model="speech", file=wave, response_format="text")
    assert plain == expected.text + "\n"
    srt = create(model="speech", file=wave, response_format="srt")
    assert srt.startswith("1\n00:00:0")
    assert expected.text.strip() in srt
    vtt = create(model="speech", file=wave, response_format="vtt")
    assert vtt.startswith("WEBVTT\n")


def test_verbose_transcripts_have_times(client: Any, wave: Path) -> None:
    (expected,) = speech().run([wave], times=True)
    found = client.audio.transcriptions.create(
        model="speech",
        file=wave,
        response_format="verbose_json",
        timestamp_granularities=["word", "segment"],
    )
    assert found.language == "english"
    assert found.duration == pytest.approx(1.5)
    assert [word.word for word in found.words] == [word.text for word in expected.words] != []
    assert found.words[-1].end == pytest.approx(expected.words[-1].end, abs=1e-3)
    (segment,) = found.segments
    assert segment.text == expected.text
    assert math.exp(segment.avg_logprob) == pytest.approx(expected.confidence, rel=1e-4)
    assert segment.tokens == expected.ids
    short = client.audio.transcriptions.create(
        model="speech", file=wave, response_format="verbose_json"
    )
    assert short.words is None
    assert len(short.segments) == 1


def test_a_transcript_is_streamed(client: Any, wave: Path) -> None:
    (expected,) = speech().run([wave], beam=1)
    events = list(client.audio.transcriptions.create(model="speech", file=wave, stream=True))
    *deltas, done = events
    assert len(deltas) > 1
    assert all(event.type == "transcript.text.delta" for event in deltas)
    assert "".join(event.delta for event in deltas) == done.text == expected.text


def test_log_probabilities_of_a_transcript(client: Any, wave: Path) -> None:
    (expected,) = speech().run([wave], times=True)
    found = client.audio.transcriptions.create(model="speech", file=wave, include=["logprobs"])
    assert "".join(one.token for one in found.logprobs) == expected.text
    values = [math.exp(one.logprob) for one in found.logprobs]
    assert values == pytest.approx(expected.probabilities[:-1], rel=1e-4)


@pytest.mark.filterwarnings("ignore:deprecated")
def test_audio_is_translated(client: Any, wave: Path) -> None:
    (expected,) = speech().run([wave])
    create = client.audio.translations.create
    assert create(model="speech-de", file=wave).text == expected.text
    verbose = create(model="speech-de", file=wave, response_format="verbose_json")
    assert verbose.language == "german"
    with pytest.raises(openai.BadRequestError, match="does not translate"):
        create(model="speech", file=wave)
    with pytest.raises(openai.BadRequestError, match="audio/translations"):
        client.audio.transcriptions.create(model="speech-de", file=wave)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"model": "tea"}, "speech model"),
        ({"language": "klingon"}, "understands en, not klingon"),
        ({"chunking_strategy": {"type": "semantic"}}, "auto or server_vad"),
        ({"language": "fr"}, "understands en, not fr"),
        ({"response_format": "diarized_json"}, "verbose_json"),
        ({"timestamp_granularities": ["word"]}, "verbose_json"),
        ({"temperature": 3}, "from 0 to 1"),
        ({"file": ("a.wav", b"no audio")}, "a.wav"),
        ({"stream": True, "response_format": "srt"}, "response_format=json"),
        ({"stream": True, "file": ("a.wav", b"no audio")}, "a.wav"),
    ],
)
def test_what_cannot_be_done_with_audio_is_refused(
    client: Any, wave: Path, asked: dict[str, Any], words: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.audio.transcriptions.create(**{"model": "speech", "file": wave, **asked})
    assert words in caught.value.message
    assert caught.value.type == "invalid_request_error"
    assert "/tmp" not in caught.value.message


@pytest.mark.parametrize(
    "hint",
    [
        {"language": "english"},
        {"language": "EN"},
        {"chunking_strategy": "auto"},
        {"chunking_strategy": {"type": "server_vad", "silence_duration_ms": 200}},
        {"prompt": "It is about the many cups of tea."},
    ],
)
def test_hints_about_audio_are_no_mistake(client: Any, wave: Path, hint: dict[str, Any]) -> None:
    create = client.audio.transcriptions.with_raw_response.create
    found = create(model="speech", file=wave, **hint)
    assert found.parse().text == speech()(wave)
    # What this model cannot use is said.
    assert found.headers.get("x-ignored-parameters") == ("prompt" if "prompt" in hint else None)


def test_names_in_a_prompt_and_hotwords_reach_the_model(client: Any, wave: Path) -> None:
    create, text = client.audio.transcriptions.with_raw_response.create, speech()(wave)
    names = ["cab", "dd"]
    wanted = speech()(wave, hotwords=names)
    assert wanted != text
    listed = create(model="speech", file=wave, prompt="cab, dd.")
    given = create(model="speech", file=wave, extra_body={"hotwords": names})
    assert [listed.parse().text, given.parse().text] == [wanted] * 2
    assert "x-ignored-parameters" not in listed.headers


def test_silence_and_language_are_no_mistake(client: Any, wave: Path) -> None:
    assert client.audio.transcriptions.create(model="speech", file=wave, language="en").text
    held = io.BytesIO(wave.read_bytes())
    held.name = "held.wav"
    assert client.audio.transcriptions.create(model="speech", file=held).text


# ------------------------------------------------------------------------------ completions


def continuation(prompt: str, **settings: Any) -> str:
    return tea_model()(prompt, **settings)[len(prompt) :]


def test_a_completion(client: Any) -> None:
    found = client.completions.create(model="tea", prompt="tea", temperature=0, max_tokens=5)
    (choice,) = found.choices
    assert choice.text == continuation("tea", beam=1, max_length=5)
    assert len(choice.text) == 5
    assert choice.finish_reason == "length"
    assert found.usage.prompt_tokens == 3
    assert found.usage.completion_tokens == 5
    echoed = client.completions.create(
        model="tea", prompt=["tea", "cup"], temperature=0, max_tokens=5, echo=True
    )
    assert [one.index for one in echoed.choices] == [0, 1]
    assert echoed.choices[0].text == "tea" + choice.text
    assert echoed.choices[1].text == "cup" + continuation("cup", beam=1, max_length=5)


def test_a_prompt_is_scored(client: Any) -> None:
    """What tools that compare language models ask for: no new token, or one."""
    model = tea_model()
    (expected,) = model.score(["cup of tea"])
    asked = {"model": "tea", "prompt": "cup of tea", "temperature": 0, "echo": True, "logprobs": 2}
    choice = client.completions.create(**asked, max_tokens=0).choices[0]
    assert choice.text == "cup of tea"
    assert choice.finish_reason == "length"
    found = choice.logprobs
    assert found.tokens == [one.replace("▁", " ") for one in expected.tokens[: len(found.tokens)]]
    assert "".join(found.tokens) == "cup of tea"
    assert found.token_logprobs == pytest.approx(
        expected.token_log_probabilities[: len(found.tokens)], abs=1e-4
    )
    assert found.text_offset == list(range(len("cup of tea")))
    for token, value, top in zip(
        found.tokens, found.token_logprobs, found.top_logprobs, strict=True
    ):
        assert top[token] == value
        assert len(top) in (2, 3)
        assert max(top.values()) >= value
    more = client.completions.create(**asked, max_tokens=3).choices[0]
    assert more.text == "cup of tea" + continuation("cup of tea", beam=1, max_length=3)
    assert more.logprobs.token_logprobs[:10] == pytest.approx(found.token_logprobs, abs=1e-4)
    assert more.logprobs.text_offset == list(range(13))
    for maximum in (0, 3):
        chunks = list(client.completions.create(**asked, max_tokens=maximum, stream=True))
        parts = [one.choices[0] for one in chunks]
        assert "".join(one.text for one in parts) == (choice if not maximum else more).text
        values = [v for one in parts if one.logprobs for v in one.logprobs.token_logprobs]
        assert values == pytest.approx(
            (choice if not maximum else more).logprobs.token_logprobs, abs=1e-4
        )
        assert [one.finish_reason for one in parts if one.finish_reason] == ["length"]


def test_sampling_with_a_seed(client: Any) -> None:
    asked = {"model": "tea", "prompt": "tea", "seed": 7, "max_tokens": 6, "top_p": 0.9}
    one = client.completions.create(**asked, temperature=0.7).choices[0].text
    settings = {"sample": True, "seed": 7, "temperature": 0.7, "top_p": 0.9, "max_length": 6}
    assert one == continuation("tea", **settings)
    several = client.completions.create(**asked, temperature=0.7, n=3)
    texts = [choice.text for choice in several.choices]
    expected = [continuation("tea", **{**settings, "seed": 7 + n}) for n in range(3)]
    assert texts == expected
    streamed = client.completions.create(**asked, temperature=0.7, n=3, stream=True)
    parts = {0: "", 1: "", 2: ""}
    for chunk in streamed:
        for choice in chunk.choices:
            parts[choice.index] += choice.text
    assert list(parts.values()) == texts
    # Without a seed, each draws its own.
    free = {"model": "tea", "prompt": "tea", "max_tokens": 20, "temperature": 2.0}
    assert len({client.completions.create(**free).choices[0].text for _ in range(4)}) > 1


def test_stop_sequences(client: Any) -> None:
    whole = continuation("tea", beam=1, max_length=6)
    stop = whole[3:5]
    asked = {
        "model": "tea",
        "prompt": "tea",
        "temperature": 0,
        "max_tokens": 6,
        "stop": ["?", stop],
    }
    found = client.completions.create(**asked).choices[0]
    assert found.text == whole[: whole.index(stop)]
    assert found.finish_reason == "stop"
    chunks = list(client.completions.create(**asked, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == found.text
    assert chunks[-1].choices[0].finish_reason == "stop"
    # Its tokens are not among those with log-probabilities.
    found = client.completions.create(**asked, logprobs=0).choices[0]
    assert "".join(found.logprobs.tokens) == found.text
    chunks = list(client.completions.create(**asked, logprobs=0, stream=True))
    tokens = [token for chunk in chunks for token in chunk.choices[0].logprobs.tokens]
    assert "".join(tokens) == found.text
    # Nor in a chat.
    chat = {**asked, "messages": [{"role": "user", "content": "tea"}], "logprobs": True}
    del chat["prompt"]
    answer = client.chat.completions.create(**chat).choices[0]
    assert answer.message.content == found.text
    assert "".join(one.token for one in answer.logprobs.content) == found.text
    deltas = [one.choices[0] for one in client.chat.completions.create(**chat, stream=True)]
    assert "".join(one.delta.content or "" for one in deltas) == found.text
    tokens = [token.token for one in deltas for token in one.logprobs.content]
    assert "".join(tokens) == found.text


def test_log_probabilities(client: Any) -> None:
    model = tea_model()
    (output,) = model.run(["tea"], beam=1, max_length=4)
    found = client.completions.create(
        model="tea", prompt="tea", temperature=0, max_tokens=4, logprobs=2
    )
    (choice,) = found.choices
    logprobs = choice.logprobs
    assert "".join(logprobs.tokens) == choice.text == output.text[3:]
    assert sum(logprobs.token_logprobs) == pytest.approx(output.log_probability, abs=1e-4)
    assert logprobs.text_offset == [0, 1, 2, 3]
    for token, value, top in zip(
        logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True
    ):
        assert len(top) == 2
        assert top[token] == value == max(top.values())  # greedy: the likeliest


def test_a_streamed_completion_with_usage(client: Any) -> None:
    whole = client.completions.create(model="tea", prompt="tea", temperature=0, max_tokens=6)
    chunks = list(
        client.completions.create(
            model="tea",
            prompt="tea",
            temperature=0,
            max_tokens=6,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    *tokens, last = chunks
    assert len(tokens) > 3
    assert "".join(one.choices[0].text for one in tokens) == whole.choices[0].text
    assert tokens[-1].choices[0].finish_reason == "length"
    assert last.choices == []
    assert last.usage == whole.usage


@pytest.mark.parametrize(
    ("asked", "words", "param"),
    [
        ({"model": "en-de"}, "no language model", None),
        ({"logit_bias": {"3": 5}}, "does not support logit_bias", "logit_bias"),
        ({"presence_penalty": 1.0}, "does not support presence_penalty", "presence_penalty"),
        ({"suffix": "."}, "does not support suffix", "suffix"),
        ({"best_of": 3}, "best_of", "best_of"),
        ({"prompt": [1, 2]}, "token ids", "prompt"),
        ({"n": 2, "temperature": 0, "logprobs": 1}, "temperature above 0", "n"),
        ({"frequency_penalty": 0.5}, "does not support frequency_penalty", "frequency_penalty"),
        ({"max_tokens": -1}, "max_tokens is -1", "max_tokens"),
        ({"temperature": 5}, "from 0 to 2", "temperature"),
        ({"temperature": "hot"}, "a number", "temperature"),
        ({"stop": list("abcde")}, "above 4", "stop"),
        ({"max_tokens": 0}, "max_tokens is 0", "max_tokens"),
        ({"logprobs": 50}, "from 0 to 5", "logprobs"),
        ({"stream": True, "prompt": 4}, "must be a text", "prompt"),
    ],
)
def test_what_cannot_be_completed_is_refused(
    client: Any, asked: dict[str, Any], words: str, param: str | None
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(**{"model": "tea", "prompt": "tea", **asked})
    assert words in caught.value.message
    assert caught.value.param == param


@pytest.mark.parametrize("more", [{}, {"n": 2}, {"stream": True}, {"n": 2, "stream": True}])
def test_a_prompt_that_is_too_long_has_its_status(client: Any, more: dict[str, Any]) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        client.completions.create(model="tea", prompt="tea" * 10_000, **more)
    assert caught.value.status_code == 413
    assert "characters" in caught.value.message


# ------------------------------------------------------------------------------------- chat


def test_the_last_message_is_translated(client: Any) -> None:
    messages = [
        {"role": "system", "content": "Translate into German."},
        {"role": "user", "content": "uncle"},
        {"role": "assistant", "content": "onkel"},
        {"role": "user", "content": "a cup of tea"},
    ]
    model = english_german()
    found = client.chat.completions.create(model="en-de", messages=messages)
    assert found.choices[0].message.content == model("a cup of tea")
    # The model has not learnt to end: its maximum length has ended it.
    assert found.choices[0].finish_reason == "length"
    chunks = list(client.chat.completions.create(model="en-de", messages=messages, stream=True))
    assert len(chunks) > 3
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks]
    assert "".join(texts) == model("a cup of tea", beam=1)
    assert chunks[0].choices[0].delta.role == "assistant"
    parts = [{"role": "user", "content": [{"type": "text", "text": "a cup of tea"}]}]
    again = client.chat.completions.create(
        model="en-de", messages=parts, logprobs=True, top_logprobs=2, temperature=0
    )
    content = again.choices[0].logprobs.content
    assert "".join(one.token for one in content) == model("a cup of tea", beam=1)
    assert all(len(one.top_logprobs) == 2 for one in content)


CHAT: dict[str, Any] = {
    "model": "en-de",
    "messages": [{"role": "user", "content": "a cup of tea"}],
}


def test_hints_and_defaults_are_no_mistake(client: Any) -> None:
    plain = client.chat.completions.create(**CHAT).choices[0].message.content
    hints = {
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "reasoning_effort": "low",
        "verbosity": "low",
        "frequency_penalty": 0,
        "presence_penalty": 0.0,
        "logit_bias": {},
    }
    found = client.chat.completions.create(**CHAT, **hints)
    assert found.choices[0].message.content == plain != ""


@pytest.mark.parametrize("more", [{"logprobs": True}, {"stop": ["never"]}, {"seed": 3}])
def test_what_should_not_matter_does_not_change_the_answer(
    client: Any, more: dict[str, Any]
) -> None:
    model = english_german()
    assert model("a cup of tea") != model("a cup of tea", beam=1)
    found = client.chat.completions.create(**CHAT, **more).choices[0]
    assert found.message.content == model("a cup of tea")
    if "logprobs" in more:
        (output,) = model.run(["a cup of tea"])
        assert "".join(one.token for one in found.logprobs.content) == output.text
        (score,) = model.score(["a cup of tea"], [output.text])
        values = [one.logprob for one in found.logprobs.content]
        assert values == pytest.approx(score.token_log_probabilities[:-1], abs=1e-4)
        top = client.chat.completions.create(**CHAT, **more, top_logprobs=2).choices[0]
        assert top.message.content == output.text
        assert [one.token for one in top.logprobs.content] == list(output.text)


def test_several_answers_are_the_best_of_a_beam(client: Any) -> None:
    model = english_german()
    beam = max(3, model.recipe.decode.beam)
    (output,) = model.run(["a cup of tea"], nbest=3, beam=beam)
    texts = [one.text for one in output.alternatives]
    found = client.chat.completions.create(**CHAT, n=3)
    assert [one.message.content for one in found.choices] == texts
    assert [one.index for one in found.choices] == [0, 1, 2]
    parts = {0: "", 1: "", 2: ""}
    for chunk in client.chat.completions.create(**CHAT, n=3, stream=True):
        for choice in chunk.choices:
            parts[choice.index] += choice.delta.content or ""
    assert list(parts.values()) == texts
    with pytest.raises(openai.BadRequestError, match="temperature above 0"):
        client.chat.completions.create(**CHAT, n=2, logprobs=True)
    asked = {"model": "tea", "prompt": ["tea", "cup"], "max_tokens": 5, "temperature": 0, "n": 2}
    language = tea_model()
    beam = max(2, language.recipe.decode.beam)
    (of_tea, of_cup) = language.run(["tea", "cup"], nbest=2, beam=beam, max_length=5)
    expected = [one.text[3:] for output in (of_tea, of_cup) for one in output.alternatives]
    completed = client.completions.create(**asked)
    assert [one.text for one in completed.choices] == expected
    texts = [""] * 4
    for chunk in client.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == expected


def test_an_answer_that_was_cut_says_so(client: Any, url: str) -> None:
    cut = client.chat.completions.create(**CHAT, max_tokens=3)
    assert cut.choices[0].finish_reason == "length"
    first = cut.choices[0].message.content[:1]
    stopped = client.chat.completions.create(**CHAT, max_tokens=3, stop=[first])
    assert stopped.choices[0].finish_reason == "stop"
    *_, last = client.chat.completions.create(**CHAT, stream=True)
    (output,) = english_german().run(["a cup of tea"], beam=1)
    assert last.choices[0].finish_reason == ("length" if output.reached_max_length else "stop")
    body = json.dumps({"model": "en-de", "input": "a cup of tea", "max_length": 3}).encode()
    with urlopen(Request(url.removesuffix("v1") + "api/run", body)) as answer:
        assert json.load(answer)["outputs"][0]["finish_reason"] == "length"


def test_a_language_model_continues_the_last_message(client: Any) -> None:
    found = client.chat.completions.create(
        model="tea",
        messages=[{"role": "user", "content": "tea"}],
        temperature=0,
        max_completion_tokens=5,
    )
    assert found.choices[0].message.content == continuation("tea", beam=1, max_length=5)
    assert found.choices[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"model": "speech"}, "audio"),
        ({"messages": [{"role": "system", "content": "tea"}]}, "no message of the user"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"top_logprobs": 2}, "needs logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options needs stream"),
    ],
)
def test_what_chat_cannot_do_is_refused(client: Any, asked: dict[str, Any], words: str) -> None:
    usual = {"model": "en-de", "messages": [{"role": "user", "content": "tea"}]}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{**usual, **asked})
    assert words in caught.value.message


# ----------------------------------------------------------------------------------- others


def test_the_asynchronous_client(url: str, wave: Path) -> None:
    async def use() -> tuple[list[str], str, str]:
        async with openai.AsyncOpenAI(base_url=url, api_key="any") as client:
            words = ["tea", "uncle", "a cup of tea"]
            chats = [
                client.chat.completions.create(
                    model="en-de", messages=[{"role": "user", "content": word}]
                )
                for word in words
            ]
            texts = [one.choices[0].message.content for one in await asyncio.gather(*chats)]
            heard = await client.audio.transcriptions.create(model="speech", file=wave)
            stream = await client.completions.create(
                model="tea", prompt="tea", temperature=0, max_tokens=6, stream=True
            )
            return texts, heard.text, "".join([one.choices[0].text async for one in stream])

    texts, heard, completed = asyncio.run(use())
    model = english_german()
    assert texts == [model("tea"), model("uncle"), model("a cup of tea")]
    assert heard == speech()(wave)
    assert completed == continuation("tea", beam=1, max_length=6)


def test_a_wrong_method_is_the_mistake_of_the_client(url: str) -> None:
    with pytest.raises(HTTPError) as caught:
        urlopen(f"{url}/chat/completions")
    assert caught.value.code == 405
    assert json.load(caught.value)["error"]["type"] == "invalid_request_error"


def test_a_wrong_key() -> None:
    with served(keys=["leaf"]) as url:
        with (
            openai.OpenAI(base_url=f"{url}/v1", api_key="bag") as client,
            pytest.raises(openai.AuthenticationError) as caught,
        ):
            client.models.list()
        assert "API key" in caught.value.message
        assert caught.value.code == "invalid_api_key"
        with openai.OpenAI(base_url=f"{url}/v1", api_key="leaf") as client:
            assert len(client.models.list().data) == 5
