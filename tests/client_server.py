"""A real server on loopback with tiny models, for the clients of other services."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import optional
from language import language_model
from tiny_models import tiny
from tiny_sounds import audio_model, noise
from transduce.data.tokens.tokenizer import BEGIN, END, PAD, UNKNOWN
from transduce.tasks.model import Model

NEEDED = ("starlette", "uvicorn", "msgspec", "python_multipart", "prometheus_client")


def skip_without(*packages: str) -> None:
    """Skip a module of tests where the extra serve, or a client, is not installed."""
    optional.skip_without(*NEEDED, *packages)


def english_german() -> Model:
    return tiny(banned=True)


def german_english() -> Model:
    return tiny(seed=5, banned=True)


def speech() -> Model:
    model = audio_model()
    with torch.no_grad():  # or it would say nothing
        model.network.head.bias[[PAD, UNKNOWN, BEGIN, END]] -= torch.tensor([20.0, 20.0, 20.0, 3.0])
    return model


def tea_model() -> Model:
    return language_model()


def catalogue() -> Any:
    from transduce.serving.models import Catalogue, Served

    return Catalogue(
        [
            Served.of("en-de", english_german(), ("en", "de")),
            Served.of("de-en", german_english(), ("de", "en")),
            Served.of("speech", speech(), ("en", "en")),
            Served.of("speech-de", speech(), ("en", "de")),
            Served.of("tea", tea_model()),
        ]
    )


def write_wave(path: Path, seconds: float = 1.5) -> Path:
    import soundfile

    soundfile.write(path, noise(seconds), 4000)
    return path


@contextmanager
def served(keys: Sequence[str] = (), **limits: Any) -> Iterator[str]:
    """The address of a server that runs in a thread of this process."""
    from transduce.serving.app import build_app
    from transduce.serving.auth import Keys
    from transduce.serving.engine import Engine
    from transduce.serving.limits import Limits
    from transduce.serving.server import Server, listen, url_of
    from transduce.serving.settings import ServiceSettings

    settings = ServiceSettings(keys=Keys(keys), limits=Limits(**limits))
    engine = Engine(catalogue(), settings.limits)
    listening = listen("127.0.0.1", 0)
    server = Server(build_app(engine, settings))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])), daemon=True)
    thread.start()
    try:
        yield url_of(listening)
    finally:
        server.should_exit = True
        thread.join()
