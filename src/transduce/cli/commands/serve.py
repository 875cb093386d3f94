"""The command serve: models as an HTTP service."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from transduce.cli.commands.options import NONE_GIVEN, Device, Precision, option
from transduce.serving.limits import options
from transduce.terminal import say

PANEL = "Limits of what clients may ask for"


class LimitOptions:
    """An option for each limit of the service, from their declaration."""

    def parameters(self) -> list[inspect.Parameter]:
        return [
            option(
                one.name,
                Annotated[
                    type(one.default),
                    typer.Option(one.flag, min=one.minimum, help=one.help, rich_help_panel=PANEL),
                ],
                one.default,
            )
            for one in options()
        ]

    def collected(self, values: dict[str, Any]) -> dict[str, Any]:
        return values


LimitSettings = Annotated[Mapping[str, Any], LimitOptions()]


def serve(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...",
            help="Model folders, also exported ones: FOLDER, NAME=FOLDER or, with its languages, "
            "en-de=FOLDER; a folder may be hf://user/name@revision.",
        ),
    ],
    adapter: Annotated[
        list[str] | None,
        typer.Option(
            help="An adapter of one of the models, served under its own name: NAME=FOLDER; "
            "repeatable."
        ),
    ] = None,
    language_model: Annotated[
        list[str] | None,
        typer.Option(
            help="An n-gram language model in ARPA form, for requests that name it: FILE.arpa or "
            "NAME=FILE.arpa; repeatable."
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0: all of this machine.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: any free one.")] = 5000,
    api_keys: Annotated[
        Path | None, typer.Option(help="File of API keys, one a line; without, none is needed.")
    ] = None,
    cors: Annotated[
        list[str] | None,
        typer.Option(help="Origin whose pages may use the server (CORS); *: any; repeatable."),
    ] = None,
    device: Device = "auto",
    precision: Precision = "auto",
    allowed_hosts: Annotated[
        list[str] | None,
        typer.Option(
            help="Name under which clients reach the server, as example.com or example.com:8080, "
            "besides the address it listens on and localhost; *: any; repeatable."
        ),
    ] = None,
    public_url: Annotated[
        str | None,
        typer.Option(
            help="Address that clients know, where a proxy is in front, as "
            "https://example.com/translate; for links to translated files."
        ),
    ] = None,
    glossary_folder: Annotated[
        Path | None,
        typer.Option(
            "--glossaries",
            help="Folder that keeps the glossaries that clients make (DeepL). Default: they are "
            "gone when the server stops.",
        ),
    ] = None,
    accept_seconds: Annotated[
        float,
        typer.Option(min=0, help="After SIGTERM, how long new connections are still accepted."),
    ] = 2.0,
    drain_seconds: Annotated[
        float,
        typer.Option(min=0, help="After SIGTERM, when the process ends at the latest."),
    ] = 30.0,
    http_processes: Annotated[
        int,
        typer.Option(
            min=0,
            max=64,
            help="Processes (workers) that talk to clients, before the one that decodes. "
            "Default: 0, as many as fit: 1 on a CPU, up to 4 with a GPU and many cores.",
        ),
    ] = 0,
    chunk_ms: Annotated[
        float | None,
        typer.Option(
            help="Live speech with models that read in chunks: milliseconds of a chunk; shorter "
            "ones appear sooner, longer ones are more accurate. Default: as in the recipe."
        ),
    ] = None,
    log: Annotated[bool, typer.Option("--log/--no-log", help="Access log on stderr.")] = True,
    limits: LimitSettings = NONE_GIVEN,
) -> None:
    """Serve models over HTTP, for many clients."""
    from transduce.errors import load_package

    needed = ("starlette", "uvicorn", "websockets", "msgspec", "python_multipart")
    for package in (*needed, "prometheus_client"):
        load_package(package, "serve")
    from transduce.hardware import keep_loaded
    from transduce.serving.app import build_app
    from transduce.serving.auth import Keys
    from transduce.serving.engine import Engine
    from transduce.serving.hosts import Hosts, host_of
    from transduce.serving.limits import Limits
    from transduce.serving.models import open_models
    from transduce.serving.processes.engine import EngineProcess, fitting_processes
    from transduce.serving.server import (
        listen_together,
        open_many_files,
        serve_until_stopped,
        unprotected,
        url_of,
    )
    from transduce.serving.settings import ServiceSettings

    settings = ServiceSettings(
        keys=Keys.read(api_keys) if api_keys else Keys(),
        cors=tuple(cors or ()),
        hosts=Hosts.bound(host, [*(allowed_hosts or ()), *host_of(public_url)]),
        public_url=public_url,
        glossary_folder=glossary_folder,
        limits=Limits(**limits),
        log=sys.stderr if log else None,
        accept_seconds=accept_seconds,
        drain_seconds=drain_seconds,
    )
    if warning := unprotected(host, settings):
        say(warning)
    open_many_files()
    listening = listen_together(host, port, http_processes or fitting_processes(device))
    catalogue = open_models(models, device, precision, adapter or [], language_model or [])
    for served in catalogue.values():
        if about := served.members.about():
            say(f'{served.name} is {about}; a request with "ensemble": [] uses the first alone')
    engine = Engine(catalogue, settings.limits, chunk_ms=chunk_ms)
    keep_loaded()
    with suppress(OSError):  # a server needs no standard output
        print(f"serving {', '.join(engine.catalogue)} at {url_of(listening[0])}", flush=True)
    service = build_app(engine, settings)
    if len(listening) == 1:
        serve_until_stopped(service, listening[0])
    else:
        EngineProcess(service, listening).run()
