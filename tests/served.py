"""A real server on loopback with tiny models, for the clients of other services."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import soundfile
from language import language_model
from tiny_models import tiny
from tiny_sounds import audio_model, noise

from transduce.serving.app import build_app
from transduce.serving.engine import Engine
from transduce.serving.models import Catalogue, Served
from transduce.serving.server import Server, listen, url_of
from transduce.serving.settings import ServiceSettings
from transduce.tasks.model import Model


def english_german() -> Model:
    return tiny(banned=True)


def german_english() -> Model:
    return tiny(seed=5, banned=True)


def speech() -> Model:
    return audio_model()


def tea_model() -> Model:
    return language_model()


def catalogue() -> Catalogue:
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
    soundfile.write(path, noise(seconds), 4000)
    return path


@contextmanager
def served(models: Catalogue, settings: ServiceSettings | None = None) -> Iterator[str]:
    """The address of a server that runs in a thread of this process."""
    settings = settings or ServiceSettings()
    engine = Engine(models, settings.limits)
    listening = listen("127.0.0.1", 0)
    server = Server(build_app(engine, settings))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])), daemon=True)
    thread.start()
    try:
        yield url_of(listening)
    finally:
        server.should_exit = True
        thread.join()
