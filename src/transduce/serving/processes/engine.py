"""The engine's process: it starts the HTTP processes, answers what they pass on, starts another one
where one has ended, and ends all of them."""

from __future__ import annotations

import asyncio
import math
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import uvicorn
from starlette.types import Message

from transduce.cores import count_cores
from transduce.errors import TransduceError
from transduce.hardware import pick_device
from transduce.serving.app import Service
from transduce.serving.errors import Overloaded, ServiceError, as_service_error, report
from transduce.serving.exchange import ABORT, LEFT, WHEN_LEFT
from transduce.serving.jobs import Job
from transduce.serving.processes import channel as kinds
from transduce.serving.processes.channel import Channel
from transduce.serving.processes.http import hello_of
from transduce.serving.protocols.answers import to_json
from transduce.serving.server import SPARE_SECONDS, end_at_once, quick_turns

GRACE = 5.0  # seconds in which an HTTP process without a channel has to end
PAUSE = 2.0  # seconds between two starts of an HTTP process in the same place
PING_SECONDS = 2.0  # between two PINGs of each HTTP process
MAX_UNANSWERED = 5  # of them; then it hangs, and clients with it
MAX_UNANSWERED_START = 30  # until it serves
MAX_PROCESSES = 4  # where nobody says how many
CORES_EACH = 4  # of the machine, for each of them
RUN_PATH = "/api/run"  # its errors have the shape of those on the other paths of outputs
GONE = ("the client has gone", True)


def fitting_processes(device: str) -> int:
    """How many HTTP processes a server has where nobody says it. On a CPU, decoding needs the
    cores."""
    if pick_device(device).type == "cpu" or sys.platform == "win32":
        return 1
    return max(1, min(MAX_PROCESSES, count_cores() // CORES_EACH))


class EngineProcess:
    """A service with HTTP processes before it."""

    def __init__(self, service: Service, listening: list[socket.socket]) -> None:
        """listening: a socket for each HTTP process."""
        self.service = service
        self._listening = listening
        self.peers: set[Peer] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._signals = 0
        self._failure: TransduceError | None = None
        self._served = False
        """Whether an HTTP process has served."""

    def run(self) -> None:
        """Serve until SIGTERM or Ctrl-C. Raises TransduceError where no HTTP process can serve."""
        factory = uvicorn.Config("").get_loop_factory()
        with quick_turns(), asyncio.Runner(loop_factory=factory) as runner:
            runner.run(self._serve())
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Do as after a signal; from any thread."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._signalled)

    async def _serve(self) -> None:
        self._loop = loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, self._signalled)
        try:
            for place in range(len(self._listening)):
                await self._start(place)
        except OSError as error:
            self._fail(f"an HTTP process could not be started ({error.strerror})")
        watch = asyncio.create_task(self._watch())
        await self._over.wait()
        watch.cancel()
        await asyncio.to_thread(self.service.engine.stop, self.service.stop_seconds)
        self._last.cancel()

    async def _start(self, place: int) -> None:
        if self._signals:
            return
        own, other = socket.socketpair()
        listening = self._listening[place]
        given = (other.fileno(), listening.fileno())
        command = [sys.executable, "-m", "transduce.serving.processes.http", *map(str, given)]
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=given)
        except OSError:
            own.close()
            raise
        finally:
            other.close()
        peer = Peer(self.service, place, process, self._ended)
        self.peers.add(peer)
        await peer.channel.connect(own)
        models = {name: one.task for name, one in self.service.engine.catalogue.items()}
        hello = hello_of(self.service.settings, models, speaks=place == 0)
        peer.channel.send(kinds.HELLO, hello)

    def _ended(self, peer: Peer) -> None:
        task = asyncio.ensure_future(self._replace(peer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _replace(self, peer: Peer) -> None:
        """An HTTP process has ended, or is about to."""
        status = await asyncio.to_thread(peer.wait)
        self.peers.discard(peer)
        self._served |= peer.ready
        if self._signals:
            self._end_with_last()
        elif self._served or any(one.ready for one in self.peers):
            _say(f"an HTTP process has ended ({status}); another one takes its place")
            await self._start_again(peer)
            self._end_with_last()
        else:
            self._fail(
                f"an HTTP process ended before it could serve ({status}); what it wrote is above"
            )

    async def _start_again(self, peer: Peer) -> None:
        """Start an HTTP process in the place of another one, as soon as the machine lets it."""
        pause = peer.since + PAUSE - time.monotonic()
        while True:
            await asyncio.sleep(max(0.0, pause))
            try:
                return await self._start(peer.place)
            except OSError as error:
                _say(f"no HTTP process could be started ({error.strerror}); it is tried again")
                pause = PAUSE

    def _fail(self, why: str) -> None:
        """End: no HTTP process can serve."""
        if self._failure is None:
            self._failure = TransduceError(f"{why}. --http-processes 1 serves without them")
            self._signalled()

    async def _watch(self) -> None:
        """End HTTP processes that hang (another one takes the place): the kernel still gives them
        connections. PINGs are counted, not seconds, in which this process may have hung itself."""
        while True:
            await asyncio.sleep(PING_SECONDS)
            for peer in self.peers:
                if peer.unanswered == (MAX_UNANSWERED if peer.ready else MAX_UNANSWERED_START):
                    seconds = peer.unanswered * PING_SECONDS
                    _say(f"an HTTP process has not answered for {seconds:g} s, and is ended")
                    peer.process.kill()
                peer.unanswered += 1
                peer.channel.send(kinds.PING)

    def _signalled(self) -> None:
        """The first signal drains, the second does not wait for new requests, the third answers
        what is open with 503: as in Server, which each of the HTTP processes has."""
        service = self.service
        if not self._signals:
            seconds = service.settings.drain_seconds
            self._last = threading.Timer(seconds, end_at_once, [service.settings])
            self._last.daemon = True
            self._last.start()
            # The last part of the time is for answers of 503 and for the threads.
            spare = min(SPARE_SECONDS, seconds / 4)
            service.stop_seconds = spare / 2
            loop = asyncio.get_running_loop()
            loop.call_later(seconds - spare, service.break_off)
            service.drain()
            service.end_live()
            for listening in self._listening:  # so that nobody listens when the others do not
                listening.close()
        self._signals += 1
        if self._signals > 2:
            service.break_off()
        for peer in self.peers:
            peer.channel.send(kinds.DRAIN)
        self._end_with_last()

    def _end_with_last(self) -> None:
        """End where the last HTTP process has ended, after a signal."""
        if self._signals and not self.peers:
            self._over.set()


class Peer:
    """An HTTP process, as the engine's process sees it."""

    def __init__(
        self,
        service: Service,
        place: int,
        process: subprocess.Popen[bytes],
        ended: Callable[[Peer], None],
    ) -> None:
        self.service, self.place, self.ready = service, place, False
        self.unanswered = 0
        """PINGs since the last answer."""
        self.since = time.monotonic()
        self.calls: dict[int, Call | Run] = {}
        """The requests that it has passed on, by their numbers."""
        self.process, self._when_ended = process, ended
        self.channel = Channel(self.received, self.lost)

    def received(self, message: kinds.Message) -> None:
        kind = message[0]
        if kind == kinds.RUN:
            Run(self, *message[1:])
        elif kind == kinds.OPEN:
            Call(self, *message[1:])
        elif kind == kinds.READY:
            self.ready = True
        elif kind == kinds.ALIVE:
            self.unanswered = 0
        elif (call := self.calls.get(message[1])) is not None:
            if kind == kinds.LEFT:
                call.left()
            elif isinstance(call, Call):
                call.received(kind, message[2])

    def lost(self) -> None:
        """It has ended, and so have the connections of its clients."""
        for call in tuple(self.calls.values()):
            call.left()
        self._when_ended(self)

    def wait(self) -> str:
        """How it ended; where it has not, it is made to."""
        try:
            status = self.process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        return f"signal {-status}" if status < 0 else f"status {status}"


class ClientGoneError(OSError):
    """A message could not be sent: the connection has ended."""


class Call:
    """A request or a WebSocket that the application answers, message by message."""

    def __init__(
        self, peer: Peer, number: int, scope: dict[str, Any], tells: bool, first: Message | None
    ) -> None:
        """tells: the HTTP process tells when the connection ends."""
        self._peer, self._number = peer, number
        self._is_socket = scope["type"] == "websocket"
        self._first, self._whole = first, tells and first is not None and not _goes_on(first)
        self._is_left = False
        self._gone = asyncio.Event()
        self._part: asyncio.Future[Message] | None = None
        self._sent: asyncio.Future[tuple[str, bool] | None] | None = None
        self._when_left: set[Callable[[], None]] = set()
        self._tells = tells
        if tells:
            scope["extensions"] = {WHEN_LEFT: self._when_left, ABORT: self._abort}
        scope["headers"] = [(name, value) for name, value in scope["headers"]]
        for name in ("client", "server"):
            scope[name] = tuple(scope[name]) if scope.get(name) else None
        peer.calls[number] = self
        self._task = asyncio.create_task(self._answer(scope))

    async def _answer(self, scope: dict[str, Any]) -> None:
        failed = False
        try:
            await self._peer.service(scope, self._receive, self._send)
        except ClientGoneError:
            pass
        except Exception:
            failed = True
            traceback.print_exc()
        finally:
            self._peer.calls.pop(self._number, None)
            self._peer.channel.send(kinds.DONE, self._number, failed)

    async def _receive(self) -> Message:
        if self._first is not None:
            first, self._first = self._first, None
            return first
        if self._whole:  # there is nothing but the end of the connection
            await self._gone.wait()
        if self._is_left:
            return self._disconnect
        self._part = asyncio.get_running_loop().create_future()
        self._peer.channel.send(kinds.MORE, self._number)
        message = await self._part
        self._whole = self._tells and not _goes_on(message)
        return message

    async def _send(self, message: Message) -> None:
        if self._is_left and not self._is_socket:
            return
        # An answer of several messages is sent as fast as its client takes them.
        waits = self._is_socket or bool(message.get("more_body"))
        problem: tuple[str, bool] | None = GONE
        if not self._is_left:
            self._sent = asyncio.get_running_loop().create_future()
            self._peer.channel.send(kinds.SEND, self._number, message, waits)
            problem = await self._sent if waits else None
        if problem is not None:
            text, is_os_error = problem
            raise ClientGoneError(text) if is_os_error else RuntimeError(text)

    async def _abort(self) -> None:
        self._peer.channel.send(kinds.ABORT, self._number)
        await self._gone.wait()

    @property
    def _disconnect(self) -> Message:
        if self._is_socket:
            return {"type": "websocket.disconnect", "code": 1006}
        return {"type": "http.disconnect"}

    def received(self, kind: int, value: Any) -> None:
        waiting: asyncio.Future[Any] | None = self._part if kind == kinds.PART else self._sent
        if waiting is not None and not waiting.done():
            waiting.set_result(value)

    def left(self) -> None:
        """The connection has ended."""
        self._is_left = True
        self._gone.set()
        self.received(kinds.PART, self._disconnect)
        self.received(kinds.SENT, GONE if self._is_socket else None)
        for call in tuple(self._when_left):
            call()


class Run:
    """A request for outputs, of which an HTTP process has read all."""

    def __init__(
        self,
        peer: Peer,
        number: int,
        request_id: str,
        name: str,
        inputs: list[str],
        settings: dict[str, Any],
        size: int,
    ) -> None:
        """size: the bytes of its body."""
        self._peer, self._number, self._request_id = peer, number, request_id
        self._name, self._size = name, size
        self._job: Job | None = None
        service = peer.service
        peer.calls[number] = self
        service.open.add(self)
        service.in_memory += size
        try:
            service.check_open()
            if service.in_memory > service.settings.limits.memory_bytes:
                raise Overloaded("too many large bodies are being received; send it later", 5.0)
            engine = service.engine
            self._job = engine.submit(engine.catalogue[name], inputs, settings)
            self._late = engine.expire_later(self._job)
            self._job.future.add_done_callback(self._done)
        except Exception as error:
            self.cancel(as_service_error(error))

    def _done(self, future: asyncio.Future[list[Any]]) -> None:
        error = None if future.cancelled() else future.exception()
        if self._number not in self._peer.calls:
            return  # its client went away while this call waited for its turn
        try:
            if error is not None:
                raise error
            shown = [one.to_json() for one in future.result()]
            body = to_json({"model": self._name, "outputs": shown})
        except Exception as failure:
            self.cancel(as_service_error(failure))
        else:
            self._end(200)
            self._peer.channel.send(kinds.RESULT, self._number, 200, body, None)

    def cancel(self, reason: ServiceError | None = None) -> None:
        """Answer with an error."""
        assert reason is not None
        if reason.status >= 500 and reason.code == "internal_error":
            report(f"request {self._request_id}", reason)
        self._end(reason.status)
        after = None if reason.retry_after is None else math.ceil(reason.retry_after)
        body = self._peer.service.shaped(RUN_PATH, reason, self._request_id).body
        self._peer.channel.send(kinds.RESULT, self._number, reason.status, bytes(body), after)

    def left(self) -> None:
        """Its client has gone."""
        self._end(LEFT)

    def _end(self, status: int) -> None:
        service = self._peer.service
        self._peer.calls.pop(self._number, None)
        service.open.discard(self)
        service.in_memory -= self._size
        service.engine.metrics.responded("POST", status)
        if self._job is not None:
            self._late.cancel()
            self._job.future.cancel()
            service.engine.close(self._job)


def _goes_on(message: Message) -> bool:
    """Whether more of a body follows."""
    return message["type"] != "http.request" or bool(message.get("more_body"))


def _say(what: str) -> None:
    sys.stderr.write(f"transduce: {what}\n")
    sys.stderr.flush()
