"""The live engine: the sessions of all speakers of a model advance together, in one thread.

It runs beside the thread that decodes requests, and takes turns with it where both use the same
model. Each round takes at most one piece of audio of each session, so nobody waits for a client
that sent an hour at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from transduce.errors import ModelError, TransduceError
from transduce.models.streaming import is_streaming
from transduce.serving.errors import (
    BadRequest,
    NotFound,
    Overloaded,
    ServiceError,
    Unready,
    as_service_error,
)
from transduce.serving.limits import Limits
from transduce.serving.live.capacity import Capacity, probe
from transduce.serving.live.stream import LiveStream
from transduce.serving.metrics import Metrics
from transduce.serving.models import Catalogue, Served
from transduce.serving.threads import post
from transduce.tasks.live import LiveRecogniser, LiveSession, Transcript
from transduce.tasks.speech import SpeechModel


class LiveEngine:
    """Live recognition with the models of a catalogue. Use it from one event loop."""

    def __init__(
        self,
        catalogue: Catalogue,
        limits: Limits,
        metrics: Metrics,
        chunk_ms: float | None = None,
    ) -> None:
        """chunk_ms: of sessions that ask for no other, with models that read in chunks. Raises
        ModelError where none does, or where one cannot read in those."""
        self.catalogue, self.limits, self.metrics = catalogue, limits, metrics
        self.chunk_ms = chunk_ms
        if chunk_ms is not None:
            self._check_chunk(chunk_ms)
        self.turns = {name: FairLock() for name in catalogue}
        self.streams: set[LiveStream] = set()
        """Those that are open."""
        self.draining = asyncio.Event()
        """Set when the server is about to stop: sessions end, with their last transcripts."""
        self.ahead_bytes = 0
        """Of messages of all connections that were read and wait."""
        self.capacity = Capacity()
        self.connected = 0
        """Connections that were let in."""
        self._probing: asyncio.Future[None] | None = None
        self._opening = 0
        self._recognisers: dict[tuple[str, str], tuple[LiveRecogniser, set[object]]] = {}
        """By model and settings, with the streams of each."""
        self._condition = threading.Condition()
        self._busy: set[LiveStream] = set()
        self._counts: dict[LiveStream, int] = {}
        self._stopped = False
        self._thread: threading.Thread | None = None

    # ------------------------------------------------------------------------------- use

    def find(self, name: str | None) -> Served:
        """The speech model of a name; without one, the first. Raises NotFound and BadRequest."""
        if name is None or name == "":
            able = [one for one in self.catalogue.values() if can_be_live(one)]
            if not able:
                raise NotFound("no model that can recognise live speech is served")
            return able[0]
        if not can_be_live(served := self.catalogue.find(name)):
            raise BadRequest(f"the model {name} does not recognise live speech")
        return served

    @asynccontextmanager
    async def admitted(self) -> AsyncIterator[None]:
        """A place for a connection, before it is accepted. Raises Overloaded where there are too
        many, or where recognition would not keep up with one more."""
        # One always fits, also where a factor was measured too high, as it would never be corrected
        # otherwise. It need not wait for the measurement, which may take longer than clients wait.
        if self.limits.live_load and self.connected < self.limits.live_sessions:
            probing = self._start_probing()
            if self.connected:
                await asyncio.shield(probing)
        fitting = self.capacity.sessions(self.limits.live_load)
        if self.connected + 1 > min(self.limits.live_sessions, max(1.0, fitting)):
            raise Overloaded("too many live sessions are open; connect again later", 5.0)
        self.connected += 1
        try:
            yield
        finally:
            self.connected -= 1

    def _start_probing(self) -> asyncio.Future[None]:
        """Measure once, with the first connection; those that come meanwhile wait for it."""
        if self._probing is None:
            self._probing = asyncio.ensure_future(asyncio.to_thread(self._probe))
        return self._probing

    def _probe(self) -> None:
        served = next((one for one in self.catalogue.values() if can_be_live(one)), None)
        if served is None:
            return
        assert isinstance(served.model, SpeechModel)
        chunk = self.chunk_ms if reads_in_chunks(served) else None
        settings = {} if chunk is None else {"chunk_ms": chunk}
        # Where it fails, sessions say why, and what they take is measured.
        with self.turns[served.name], contextlib.suppress(Exception):
            self.capacity.add(*probe(served.model.live_recogniser(**settings)))

    async def open(
        self, served: Served, rate: int, tags: Sequence[str] = (), **settings: Any
    ) -> LiveStream:
        """A new session. Raises BadRequest, Overloaded and Unready."""
        if self.chunk_ms is not None and reads_in_chunks(served):
            settings = {"chunk_ms": self.chunk_ms, **settings}
        if self._stopped or self.draining.is_set():
            raise Unready("the server is stopping")
        if len(self.streams) + self._opening >= self.limits.live_sessions:
            self.metrics.rejected(served.name)
            raise Overloaded("too many live sessions are open; connect again later", 5.0)
        key = (served.name, repr(sorted(settings.items())))
        place = object()  # keeps the recogniser until the stream is there
        self._opening += 1
        try:
            if key not in self._recognisers:
                assert isinstance(served.model, SpeechModel)
                self._recognisers[key] = (served.model.live_recogniser(**settings), set())
            recogniser, own = self._recognisers[key]
            own.add(place)
            session = await self._open_session(served, recogniser, rate, tags)
            stream = LiveStream(served, session, self.limits, self._changed)
            own.add(stream)
            self.streams.add(stream)
        except TransduceError as error:
            raise BadRequest(str(error)) from None
        finally:
            self._opening -= 1
            self._leave(place)
        with self._condition:
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="live", daemon=True)
                self._thread.start()
        return stream

    def close(self, stream: LiveStream) -> None:
        """The session is over, or its client has gone."""
        if stream not in self.streams:
            return
        self.streams.discard(stream)
        self.metrics.count_live_audio(stream.served.name, stream.sent_seconds)
        self._leave(stream)
        stream.close()

    def _check_chunk(self, chunk_ms: float) -> None:
        able = [one.model for one in self.catalogue.values() if reads_in_chunks(one)]
        if not able:
            raise ModelError(
                "--chunk-ms needs a speech model that was trained to read in chunks "
                "(model.encoder.chunk), and none of these was; omit it"
            )
        for model in able:
            assert isinstance(model, SpeechModel)
            model.live_recogniser(chunk_ms=chunk_ms)

    async def _open_session(
        self, served: Served, recogniser: LiveRecogniser, rate: int, tags: Sequence[str]
    ) -> LiveSession:
        """A session, made in a thread, which goes on where this is cancelled: what it has made is
        closed then, so that its place in the caches is free again."""
        making = asyncio.ensure_future(
            asyncio.to_thread(self._session, served, recogniser, rate, tags)
        )

        def close(made: asyncio.Future[LiveSession]) -> None:
            if not made.cancelled() and made.exception() is None:
                loop.run_in_executor(None, self._close_session, served, made.result())

        loop = asyncio.get_running_loop()
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            making.add_done_callback(close)
            raise

    def _session(
        self, served: Served, recogniser: LiveRecogniser, rate: int, tags: Sequence[str]
    ) -> LiveSession:
        with self.turns[served.name]:
            return recogniser.session(rate, tags)

    def _close_session(self, served: Served, session: LiveSession) -> None:
        with self.turns[served.name]:
            session.close()

    def _leave(self, stream: object) -> None:
        for key, (_, own) in list(self._recognisers.items()):
            own.discard(stream)
            if not own:
                del self._recognisers[key]

    def stop(self, seconds: float = 30.0) -> None:
        """End the thread, when all connections are closed; what is open is recognised no more."""
        with self._condition:
            self._stopped = True
            self._condition.notify_all()
        if self._thread is not None:
            self._thread.join(seconds)

    def _changed(self, stream: LiveStream) -> None:
        with self._condition:
            self._busy.add(stream)
            self._condition.notify()

    # ----------------------------------------------------------------------------- thread

    def _serve(self) -> None:
        while True:
            with self._condition:
                while not self._busy and not self._stopped:
                    self._condition.wait()
                if self._stopped:
                    return
                busy, self._busy = self._busy, set()
            try:
                again = self._round(busy)
            except Exception as error:  # never the end of the thread
                again = set()
                for stream in busy:
                    self._fail(stream, error)
            with self._condition:
                self._busy |= again

    def _round(self, busy: set[LiveStream]) -> set[LiveStream]:
        """One piece of audio of each stream; which of them have more."""
        start, audio = time.monotonic(), 0.0
        groups: dict[LiveRecogniser, list[LiveStream]] = {}
        arrived: dict[LiveStream, float | None] = {}
        for stream in busy:
            if stream.closed:
                self._forget(stream)
                continue
            before = stream.session.seconds
            try:
                count, arrived[stream] = stream.absorb()
            except Exception as error:
                self._fail(stream, error)
                continue
            audio += stream.session.seconds - before
            self._counts[stream] = self._counts.get(stream, 0) + count
            groups.setdefault(stream.session.recogniser, []).append(stream)
        again: set[LiveStream] = set()
        for streams in groups.values():
            for stream, found in self._step(streams):
                more = stream.session.ready
                self._report(stream, found, more, arrived[stream])
                if more:
                    again.add(stream)
                elif stream.session.ended:
                    self._counts.pop(stream, None)
                    self._post(stream, stream.end)
        self.capacity.add(time.monotonic() - start, audio)
        return again

    def _step(self, streams: list[LiveStream]) -> list[tuple[LiveStream, list[Transcript]]]:
        """One step of those that are ready, and the transcripts of all."""
        ready = [stream for stream in streams if stream.session.ready]
        found: dict[LiveStream, list[Transcript]] = {stream: [] for stream in streams}
        if ready:
            recogniser = ready[0].session.recogniser
            with self.turns[ready[0].served.name]:
                try:
                    new = recogniser.step([stream.session for stream in ready])
                except Exception as error:
                    new, failure = None, error
            if new is None and len(ready) == 1:
                self._fail(ready[0], failure)
                rest = [stream for stream in streams if stream is not ready[0]]
                return [(stream, []) for stream in rest]
            if new is None:  # find out whose it is: the others go on
                return [pair for stream in streams for pair in self._step([stream])]
            found |= dict(zip(ready, new, strict=True))
        return list(found.items())

    def _report(
        self, stream: LiveStream, found: list[Transcript], more: bool, arrived: float | None
    ) -> None:
        session = stream.session
        done = max(0.0, session.seconds - session.buffered_seconds)
        settled = self._counts[stream] - more
        lag = 0.0 if arrived is None else time.monotonic() - arrived
        self._post(stream, self._deliver, stream, found, settled, done, lag)

    def _deliver(self, stream: LiveStream, found: list[Transcript], *progress: Any) -> None:
        stream.deliver(found, *progress)
        if progress[-1]:
            self.metrics.live_lag(stream.served.name, stream.lag)

    def _fail(self, stream: LiveStream, error: Exception) -> None:
        self._forget(stream)
        self._post(stream, stream.end, as_service_error(error))

    def _forget(self, stream: LiveStream) -> None:
        self._close_session(stream.served, stream.session)
        self._counts.pop(stream, None)

    def _post(self, stream: LiveStream, call: Callable[..., None], *values: Any) -> None:
        post(stream.loop, call, *values)


class FairLock:
    """A lock that threads get in the order in which they asked for it: of the two that use a model,
    for requests and for live speech, neither starves."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._asked = self._served = 0

    def __enter__(self) -> None:
        with self._condition:
            own = self._asked
            self._asked += 1
            while own != self._served:
                self._condition.wait()

    def __exit__(self, *_: object) -> None:
        with self._condition:
            self._served += 1
            self._condition.notify_all()


def reads_in_chunks(served: Served) -> bool:
    """Whether a model has a streaming encoder."""
    return isinstance(served.model, SpeechModel) and is_streaming(served.model.network)


def can_be_live(served: Served) -> bool:
    """Whether a model turns speech into text while it is spoken."""
    return isinstance(served.model, SpeechModel)


__all__ = ["LiveEngine", "ServiceError", "can_be_live"]
