"""The engine behind a real server: outputs, batches, streams, cancellation, overload."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import threading
import warnings
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from served import Held, Running, serving, until
from tiny_models import SOURCES, tiny
from transduce.decoding.cuda.graph_slots import Slots
from transduce.decoding.cuda.pool import CudaSearch
from transduce.errors import TransduceWarning
from transduce.runtime import library, why_not
from transduce.serving import scheduler
from transduce.serving.batch import ContinuousBatch
from transduce.serving.limits import Limits
from transduce.serving.settings import ServiceSettings
from transduce.tasks.transduce import load

TEXTS = [text for text in SOURCES if text]
SETTINGS: list[dict[str, Any]] = [
    {},
    {"beam": 1},
    {"beam": 4, "nbest": 3},
    {"beam": 2, "prefix": "te"},
    {"beam": 2, "include": ["cup"]},
    {"beam": 2, "exclude": ["tea", "un"]},
    {"sample": True, "seed": 5, "temperature": 0.8},
    {"attention": True},
    {"mbr": "chrf", "samples": 4},
]


def same(served: dict[str, Any], own: dict[str, Any]) -> None:
    """Equal, but for the last digits of numbers: batches of other sizes round differently."""
    assert served.keys() == own.keys()
    for name, value in own.items():
        if name in ("score", "attention", "probabilities"):
            np.testing.assert_allclose(served[name], value, atol=2e-4, err_msg=name)
        elif name == "nbest":
            assert [one["text"] for one in served[name]] == [one["text"] for one in value]
        else:
            assert served[name] == value, name


def test_outputs_are_those_of_run_whoever_the_neighbours_are() -> None:
    model, own = tiny(), tiny()
    chance = random.Random(2)
    requests = []
    for number in range(32):
        texts = chance.sample(TEXTS, chance.choice([1, 1, 1, 3]))
        requests.append((texts, SETTINGS[number % len(SETTINGS)]))

    async def ask(url: str) -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=url, timeout=200, trust_env=False) as client:
            posts = [
                client.post("/api/run", json={"inputs": texts, **settings})
                for texts, settings in requests
            ]
            return await asyncio.gather(*posts)

    with serving({"tiny": model}) as server:
        answers = asyncio.run(ask(server.url))
    for (texts, settings), answer in zip(requests, answers, strict=True):
        assert answer.status_code == 200, answer.text
        for served, output in zip(
            answer.json()["outputs"], own.run(texts, **settings), strict=True
        ):
            same(served, json.loads(json.dumps(output.to_json())))


def test_what_is_waiting_is_decoded_together() -> None:
    model = tiny()
    held = Held(model)
    sizes: list[int] = []
    run = model.run

    def counted(sources: list[str], **settings: Any) -> Any:
        sizes.append(len(sources))
        return run(sources, **settings)

    model.run = counted  # type: ignore[method-assign]
    with serving({"tiny": model}) as server:
        clients = [threading.Thread(target=server.run, kwargs={"input": "tea", "beam": 1})]
        clients[0].start()
        until(lambda: held.steps > 0, "the first is decoded")
        for number in range(6):  # these arrive meanwhile; two of them ask for something else
            beam = 1 if number % 3 else 2
            clients.append(
                threading.Thread(target=server.run, kwargs={"input": "a cup", "beam": beam})
            )
            clients[-1].start()
        until(lambda: server.engine.waiting == 6, "six are waiting")
        held.free.set()
        for client in clients:
            client.join(timeout=200)
    assert sizes[0] == 1
    assert sorted(sizes[1:]) == [2, 4]


def test_a_wrong_request_does_not_harm_its_neighbours() -> None:
    model = tiny()
    held = Held(model)
    found: dict[str, httpx.Response] = {}

    def ask(server: Running, name: str, **request: Any) -> None:
        found[name] = server.post("/api/run", request)

    with serving({"tiny": model}) as server:
        clients = [threading.Thread(target=server.run, kwargs={"input": "tea"})]
        clients[0].start()
        until(lambda: held.steps > 0, "the first is decoded")
        for name, prefix in (("right", "te"), ("wrong", "#§"), ("other", "a")):
            request = {"input": "uncle", "prefix": prefix}
            clients.append(threading.Thread(target=ask, args=(server, name), kwargs=request))
            clients[-1].start()
        until(lambda: server.engine.waiting == 3, "three are waiting")
        held.free.set()
        for client in clients:
            client.join(timeout=200)
    assert found["wrong"].status_code == 400
    assert "not in this model's vocabulary" in found["wrong"].json()["error"]["message"]
    for name, prefix in (("right", "te"), ("other", "a")):
        assert found[name].status_code == 200
        assert found[name].json()["outputs"][0]["text"].startswith(prefix)


def test_a_stream_is_the_output_of_run_token_by_token() -> None:
    model, own = tiny(), tiny()
    (whole,) = own.run(["a cup of tea"], beam=1, attention=True)
    assert whole.attention is not None
    with serving({"tiny": model}) as server:
        request = {
            "input": "a cup of tea",
            "stream": True,
            "attention": True,
            "alternatives": 2,
        }
        events = []
        with server.client.stream("POST", "/api/run", json=request) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    events.append(json.loads(line[6:]))
    *tokens, last = events
    assert [event["token"] for event in tokens] == whole.tokens
    assert "".join(event["text"] for event in events) == whole.text != ""
    assert last["output"]["text"] == whole.text
    expected = whole.attention.mean(axis=(0, 1))
    for event, row in zip(tokens, expected.tolist(), strict=True):
        assert event["attention"] == pytest.approx(row, abs=2e-4)
        best, *others = event["alternatives"]  # at the longest length, END alone is left
        assert best["token"] == event["token"]
        assert all(best["score"] >= other["score"] for other in others)
    assert len(tokens[0]["alternatives"]) == 2
    total = sum(event["score"] for event in tokens)
    assert total == pytest.approx(whole.log_probability, abs=1e-3)


def test_tokens_of_a_stream_arrive_before_its_end() -> None:
    model = tiny()
    held = Held(model)
    with serving({"tiny": model}) as server:
        request = {"input": "a cup of tea", "stream": True, "min_length": 3}
        with server.client.stream("POST", "/api/run", json=request) as answer:
            lines = answer.iter_lines()
            held.step()
            assert next(lines) == "event: token"  # the second step has not been made
            held.free.set()
            assert "event: output" in list(lines)


@pytest.mark.parametrize(
    ("settings", "connection"),
    [({"beam": 1}, None), ({"beam": 3}, None), ({"sample": True}, None), ({"beam": 1}, "h11")],
)
def test_a_client_that_leaves_frees_its_place_within_a_step(
    settings: dict[str, Any], connection: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if connection is not None:  # other connections than ours do not tell when a client leaves
        monkeypatch.setattr("transduce.serving.server.connection_class", lambda _: connection)
    model, own = tiny(), tiny()
    held = Held(model)
    # Both would take many steps; min_length keeps them from ending early.
    settings = {**settings, "min_length": 30, "max_length": 40}
    with serving({"tiny": model}) as server:
        host, port = server.url.removeprefix("http://").split(":")
        stays: list[Any] = []
        body = json.dumps({"input": "zuko", **settings}).encode()
        head = f"POST /api/run HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        leaves = socket.create_connection((host, int(port)))
        leaves.sendall(head.encode() + body)
        until(lambda: held.steps > 0, "the first is decoded")
        neighbour = threading.Thread(
            target=lambda: stays.extend(server.run(input="iroh made tea", **settings))
        )
        neighbour.start()
        until(lambda: server.engine.waiting == 1, "the neighbour is waiting")
        leaves.close()
        until(lambda: server.engine.running == 0, "its place is free")
        steps = held.steps
        held.step()  # the step that was being made; then the next batch begins
        until(lambda: server.engine.waiting == 0, "the neighbour is decoded")
        assert held.steps <= steps + 1
        held.free.set()
        neighbour.join(timeout=200)
        metrics = server.client.get("/metrics").text
    (expected,) = own.run(["iroh made tea"], **settings)
    assert stays[0]["text"] == expected.text
    assert 'vllm:request_success_total{finished_reason="abort",model_name="tiny"} 1.0' in metrics


def test_a_request_that_takes_too_long_is_answered_and_frees_its_place() -> None:
    model = tiny()
    held = Held(model)
    with serving({"tiny": model}, ServiceSettings(limits=Limits(seconds=0.3))) as server:
        answer = server.post("/api/run", {"input": "zuko", "beam": 1})
        assert answer.status_code == 504
        assert answer.json()["error"]["message"].startswith("the request was not done within 0.3 s")
        assert server.engine.running == 0
        held.free.set()


def test_a_neighbour_in_the_same_batch_is_not_harmed_by_one_that_leaves() -> None:
    model, own = tiny(), tiny()
    held = Held(model)
    settings = {"beam": 2, "min_length": 20, "max_length": 30}
    found: dict[str, Any] = {}

    async def ask(url: str) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=200, trust_env=False) as client:

            async def one(text: str) -> None:
                answer = await client.post("/api/run", json={"input": text, **settings})
                found[text] = answer.json()["outputs"][0]["text"]

            first = asyncio.create_task(one("e tea"))
            while not held.steps:
                await asyncio.sleep(0.005)
            leaves = asyncio.create_task(one("zuko"))
            stays = asyncio.create_task(one("a cup of tea"))
            while server.engine.waiting < 2:
                await asyncio.sleep(0.005)
            while server.engine.waiting:  # both are in the next batch
                held.step()
                await asyncio.sleep(0.001)
            held.step(5)
            leaves.cancel()
            while server.engine.running > 1:
                await asyncio.sleep(0.005)
            held.free.set()
            await asyncio.gather(first, stays)

    with serving({"tiny": model}) as server:
        asyncio.run(ask(server.url))
    assert "zuko" not in found
    for text in ("e tea", "a cup of tea"):
        assert found[text] == own.run([text], **settings)[0].text


def test_what_is_too_much_is_rejected_at_once_and_may_come_back() -> None:
    model = tiny()
    held = Held(model)
    limits = Limits(queue_tokens=100, batch_tokens=50)
    with serving({"tiny": model}, ServiceSettings(limits=limits)) as server:
        clients = []
        for _ in range(4):
            request = {"input": "a cup of tea made uncle iroh", "beam": 1}
            clients.append(threading.Thread(target=server.run, kwargs=request))
            clients[-1].start()
            until(lambda: held.steps > 0, "the first is decoded; the others wait")
        until(lambda: server.engine.waiting == 3, "three are waiting")
        for _ in range(5):  # answered while all others are held
            answer = server.post("/api/run", {"input": "a cup of tea made uncle iroh", "beam": 1})
            assert answer.status_code == 429
            assert int(answer.headers["retry-after"]) >= 1
            assert answer.json()["error"]["code"] == "overloaded"
        assert server.post("/api/run", {"inputs": []}).json()["outputs"] == []
        held.free.set()
        for client in clients:
            client.join(timeout=200)
        server.run(input="a cup of tea made uncle iroh", beam=1)
        metrics = server.client.get("/metrics").text
    assert 'transduce:requests_rejected_total{model_name="tiny"} 5.0' in metrics


def test_what_would_wait_too_long_is_rejected() -> None:
    model = tiny()
    limits = Limits(queue_seconds=0.0001, batch_tokens=50)
    with serving({"tiny": model}, ServiceSettings(limits=limits)) as server:
        server.run(inputs=["a cup of tea made uncle iroh"] * 5, beam=1)  # the speed is known now
        until(lambda: not server.engine._scheduler._batches, "nothing else is decoded")
        held = Held(model)
        clients = []
        for _ in range(2):
            until(lambda: server.engine._admission.wait == 0, "the first should be done by now")
            request = {"input": "a cup of tea made uncle iroh", "beam": 1}
            clients.append(threading.Thread(target=server.run, kwargs=request))
            clients[-1].start()
            until(lambda: held.steps > 0, "the first is decoded")
        until(lambda: server.engine.waiting == 1, "the second is waiting")
        assert server.engine.seconds_queued > limits.queue_seconds
        answer = server.post("/api/run", {"input": "tea", "beam": 1})
        assert answer.status_code == 429
        held.free.set()
        for client in clients:
            client.join(timeout=200)
        until(lambda: server.engine._admission.wait == 0, "the second should be done by now")
        assert server.run(input="tea", beam=1)


def test_the_rest_of_the_batch_that_is_decoded_counts_as_waiting() -> None:
    model = tiny()
    with serving({"tiny": model}, ServiceSettings(limits=Limits(queue_seconds=50))) as server:
        speed = server.engine._admission.speed
        speed.add(10 * speed.batch_tokens, 1e6)  # so slow that one sentence takes minutes
        held = Held(model)
        first = threading.Thread(target=server.run, kwargs={"input": "a cup of tea", "beam": 1})
        first.start()
        until(lambda: held.steps > 0, "the first is decoded")
        assert server.engine.waiting == 0
        assert server.engine.seconds_queued == 0
        answer = server.post("/api/run", {"input": "tea", "beam": 1})
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) > 50
        held.free.set()
        first.join(timeout=200)


def cost_of(engine: Any, text: str) -> int:
    served = engine.catalogue["tiny"]
    plan = engine._plans.find(served, {"beam": 1}, None, "run")
    (cost,) = engine._work["tiny"].costs([text], plan, {}, engine.limits)
    assert isinstance(cost, int)
    return cost


def test_a_slow_model_has_small_batches() -> None:
    """All outputs of a batch come at its end: nobody waits long for those who came later."""
    model = tiny()
    sizes: list[int] = []
    run = model.run

    def counted(sources: list[str], **settings: Any) -> Any:
        sizes.append(len(sources))
        return run(sources, **settings)

    model.run = counted  # type: ignore[method-assign]
    limits = Limits(queue_seconds=1e6, batch_seconds=10.0)
    with serving({"tiny": model}, ServiceSettings(limits=limits)) as server:
        engine = server.engine
        cost = cost_of(engine, "a cup of tea")
        engine._admission.speed.add(1e6 * cost, 1e6 * 3.0)  # a sentence takes three seconds
        server.run(inputs=["a cup of tea"] * 10, beam=1, attention=True)
    assert sizes == [3, 3, 3, 1]


def test_the_batch_of_a_request_counts_as_time_that_it_waits() -> None:
    model = tiny()
    limits = Limits(queue_seconds=10_000.0, batch_seconds=2000.0)
    with serving({"tiny": model}, ServiceSettings(limits=limits)) as server:
        engine = server.engine
        cost = cost_of(engine, "a cup of tea")
        engine._admission.speed.add(1e6 * cost, 1e6 * 5000.0)  # a sentence takes so many seconds
        held = Held(model)
        first = threading.Thread(target=server.run, kwargs={"input": "a cup of tea", "beam": 1})
        first.start()
        until(lambda: held.steps > 0, "the first is decoded")
        second = threading.Thread(target=server.run, kwargs={"input": "tea", "beam": 1})
        second.start()  # it waits 5000, or 1.3 times that, and its batch takes 2000 at most
        until(lambda: engine.waiting == 1, "the second is waiting")
        assert 6200 < engine._admission.wait < 7600
        assert server.post("/api/run", {"input": "tea", "beam": 1}).status_code == 429
        held.free.set()
        first.join(timeout=200)
        second.join(timeout=200)


def test_a_request_ends_in_time() -> None:
    model = tiny()
    held = Held(model)
    with serving({"tiny": model}, ServiceSettings(limits=Limits(seconds=0.3))) as server:
        answer = server.post("/api/run", {"input": "tea"})
        assert answer.status_code == 504
        assert "0.3 s" in answer.json()["error"]["message"]
        until(lambda: server.engine.running == 0, "its place is free")
        held.free.set()


def test_a_small_request_does_not_wait_for_all_of_a_large_one() -> None:
    model = tiny()
    order: list[str] = []

    def ask(server: Running, name: str, inputs: list[str]) -> None:
        server.run(inputs=inputs, beam=1)
        order.append(name)

    held = Held(model)
    limits = Limits(batch_tokens=100)
    with serving({"tiny": model}, ServiceSettings(limits=limits)) as server:
        clients = [threading.Thread(target=ask, args=(server, "large", ["a cup of tea"] * 200))]
        clients[0].start()
        until(lambda: held.steps > 0, "the large one is decoded")
        clients.append(threading.Thread(target=ask, args=(server, "small", ["uncle"])))
        clients[1].start()
        until(lambda: server.engine.waiting == 1, "the small one is waiting")
        held.free.set()
        for client in clients:
            client.join(timeout=200)
    assert order == ["small", "large"]


def test_models_of_every_task(fixture_models: dict[str, str]) -> None:
    models = {name: load(folder) for name, folder in fixture_models.items()}
    with serving(models) as server:
        texts = {"tag": "the dog runs", "classify": "good film", "language_model": "The"}
        for name, text in texts.items():
            (served,) = server.run(model=name, input=text)
            (own,) = models[name].run([text])
            same(served, json.loads(json.dumps(own.to_json())))
        assert server.post("/api/tag", {"input": "the dog"}).json()["model"] == "tag"
        listed = server.client.get("/api/models").json()["models"]
        tasks = {one["name"]: one["task"] for one in listed}
        assert tasks == {"tag": "tag", "classify": "classify", "language_model": "continue"}
        wrong = server.post("/api/tag", {"model": "classify", "input": "the dog"})
        assert wrong.status_code == 400
        refused = server.post("/api/run", {"model": "classify", "input": "good", "beam": 3})
        assert refused.status_code == 400
        assert "beam is not a setting" in refused.json()["error"]["message"]


def test_tags_of_a_request_are_before_each_of_its_texts() -> None:
    model = tiny(tags=["N", "PST", "V"])
    with serving({"m": model}) as server:
        tags = {"tags": ["V;PST"]}
        for settings in ({"beam": 1}, {"beam": 3}, {"prefix": "te"}):
            own = model.run(["<V> <PST> tea", "<V> <PST> <N> zuko", ""], **settings)
            found = server.run(inputs=["tea", "<N> zuko", ""], **tags, **settings)
            assert [one["text"] for one in found] == [one.text for one in own], settings
        asked = {"input": "tea", "attention": True, **tags}
        events = server.post("/api/run", {**asked, "stream": True}).text
        assert '"<V>","<PST>"' in events
        page = server.post("/api/look", {"input": "tea", **tags}).json()
        assert page["axes"]["source"][:2] == ["<V>", "<PST>"]
        for wrong, sentence in (
            (["DAT"], "the model has no tag DAT"),
            (["N"] * 2000, "tags has 2,000 entries"),
        ):
            refused = server.post("/api/run", {"input": "tea", "tags": wrong})
            assert 400 <= refused.status_code < 500
            assert sentence in refused.json()["error"]["message"]


def test_on_a_gpu_requests_enter_while_others_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    model, own = tiny(), tiny()
    for one in (model, own):
        one.network.double()
    search = CudaSearch(model.network, torch.float64)
    monkeypatch.setattr(model, "_fast_search", lambda context: search)
    monkeypatch.setattr(scheduler, "MAX_THREADS", 1)  # as on a GPU
    batches: list[int] = []
    monkeypatch.setattr(model, "run", lambda texts, **_: batches.append(len(texts)))
    joined: list[tuple[ContinuousBatch, int]] = []
    arrived, go = threading.Event(), Slots.go

    def slow(slots: Slots) -> list[bool]:
        arrived.wait(100)  # the first has begun; the others come now
        return go(slots)

    more = ContinuousBatch.more

    def counted(self: ContinuousBatch) -> Any:
        found = more(self)
        joined.append((self, len(found)))
        return found

    monkeypatch.setattr(Slots, "go", slow)
    monkeypatch.setattr(ContinuousBatch, "more", counted)

    async def ask(running: Running) -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=running.url, timeout=200, trust_env=False) as client:
            first = asyncio.ensure_future(
                client.post("/api/run", json={"input": TEXTS[0], "beam": 2})
            )
            await asyncio.to_thread(until, lambda: bool(joined), "the first request")
            rest = [
                asyncio.ensure_future(client.post("/api/run", json={"input": text, "beam": 2}))
                for text in TEXTS[1:]
            ]
            await asyncio.to_thread(until, lambda: running.engine.waiting == len(rest), "the rest")
            arrived.set()
            return await asyncio.gather(first, *rest)

    with serving({"tiny": model}) as running:
        answers = asyncio.run(ask(running))
    expected = own.run(TEXTS, beam=2)
    for answer, output in zip(answers, expected, strict=True):
        same(answer.json()["outputs"][0], json.loads(json.dumps(output.to_json())))
    assert batches == []  # none had to wait for a batch of its own
    assert joined[0][1] == 1
    assert sum(count for batch, count in joined if batch is joined[0][0]) == len(TEXTS)


def test_a_failure_among_slots_harms_its_own_request_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny()

    def fails(feed: Any, **_: Any) -> bool:
        feed.more()
        raise RuntimeError("the device was lost")

    monkeypatch.setattr(model, "run_feed", fails)
    with serving({"tiny": model}) as running:

        def ask() -> httpx.Response:
            body = {"inputs": TEXTS[:2]}
            return httpx.post(f"{running.url}/api/run", json=body, timeout=200, trust_env=False)

        with pytest.warns(TransduceWarning, match="of tiny failed; .*: the device was lost"):
            answer = ask()
        with warnings.catch_warnings(record=True) as reported:
            assert ask().json()["outputs"] == answer.json()["outputs"]
    assert reported == []  # it is said once
    assert [one["text"] for one in answer.json()["outputs"]] == [
        one.text for one in tiny().run(TEXTS[:2])
    ]


def fed(model: Any, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each call of run_feed did the work."""
    calls: list[bool] = []
    run_feed = model.run_feed

    def counted(feed: Any, **settings: Any) -> bool:
        calls.append(run_feed(feed, **settings))
        return calls[-1]

    monkeypatch.setattr(model, "run_feed", counted)
    return calls


@pytest.mark.filterwarnings("ignore:the network has a lens or forward hooks")
def test_a_hook_ends_continuous_batches_for_as_long_as_it_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A lens of another thread does not."""
    model, seen = tiny(), []
    calls = fed(model, monkeypatch)
    with serving({"tiny": model}) as server:
        hook = model.network.decoder.register_forward_hook(lambda *given: seen.append(given))
        server.run(input=TEXTS[0], beam=2)
        hook.remove()
        assert seen
        assert calls == [False]
        with model.lens("decoder.*.cross") as lens:
            server.run(input=TEXTS[0], beam=2)
        assert len(lens) == 0
    assert calls == [False, library() is not None]


def test_what_has_no_continuous_batches_is_not_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny({"kind": "recurrent"}, {"kind": "recurrent"})
    calls = fed(model, monkeypatch)
    with serving({"tiny": model}) as server:
        outputs = server.run(inputs=TEXTS, beam=2) + server.run(inputs=TEXTS, beam=2)
    assert calls == [False]
    expected = [json.loads(json.dumps(one.to_json())) for one in model.run(TEXTS, beam=2)]
    for found, wanted in zip(outputs, expected * 2, strict=True):
        same(found, wanted)


@pytest.mark.skipif(library() is None, reason=f"no library: {why_not()}")
@pytest.mark.parametrize("settings", [{"beam": 1}, {"beam": 3, "nbest": 2}])
def test_threads_decode_side_by_side(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, int]
) -> None:
    """Many clients at once, two threads: each gets what model.run gives."""
    model = tiny()
    monkeypatch.setattr(scheduler.torch, "get_num_threads", lambda: 2)
    names: set[str | None] = set()
    more = ContinuousBatch.more

    def noted(self: ContinuousBatch) -> Any:
        names.add(str(threading.get_ident()))
        return more(self)

    monkeypatch.setattr(ContinuousBatch, "more", noted)
    texts = [" ".join(TEXTS[: 1 + number % len(TEXTS)]) for number in range(60)]

    async def ask(running: Running) -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=running.url, timeout=200, trust_env=False) as client:
            posts = (client.post("/api/run", json={"input": text, **settings}) for text in texts)
            return await asyncio.gather(*posts)

    with serving({"tiny": model}) as running:
        answers = asyncio.run(ask(running))
    for answer, output in zip(answers, model.run(texts, **settings), strict=True):
        same(answer.json()["outputs"][0], json.loads(json.dumps(output.to_json())))
    assert len(names) == 2
