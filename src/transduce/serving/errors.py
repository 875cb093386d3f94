"""Errors of the service, with their HTTP status; each protocol gives them its own shape."""

from __future__ import annotations

import sys
import traceback

from transduce.errors import TransduceError


class ServiceError(Exception):
    """An answer other than success: a status, a sentence, and a code for programs."""

    def __init__(
        self, status: int, message: str, code: str, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code = status, message, code
        self.retry_after = retry_after
        """Seconds until a new attempt makes sense."""


class BadRequest(ServiceError):
    def __init__(self, message: str, code: str = "bad_request") -> None:
        super().__init__(400, message, code)


class Unauthorized(ServiceError):
    def __init__(self, message: str = "the API key is missing or unknown") -> None:
        super().__init__(403, message, "unauthorized")


class NotFound(ServiceError):
    def __init__(self, message: str, code: str = "not_found") -> None:
        super().__init__(404, message, code)


class TooLarge(ServiceError):
    def __init__(self, message: str) -> None:
        super().__init__(413, message, "too_large")


class Overloaded(ServiceError):
    """More work is waiting than the limits allow."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(429, message, "overloaded", retry_after)


class Timeout(ServiceError):
    """408: the client sends nothing; 504: decoding takes too long."""

    def __init__(self, message: str, status: int = 504) -> None:
        super().__init__(status, message, "timeout")


class Unready(ServiceError):
    """The server is stopping, or not yet started."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(503, message, "unready", retry_after)


def report(what: str, failure: ServiceError) -> None:
    """Write the traceback of a failure that is ours to standard error."""
    print(f"{what} failed:", file=sys.stderr)
    traceback.print_exception(failure.__cause__ or failure)


def as_service_error(error: Exception) -> ServiceError:
    """A user's mistake is a bad request; anything else is ours, and its text stays in the log."""
    if isinstance(error, ServiceError):
        return error
    if isinstance(error, TransduceError):
        return BadRequest(str(error))
    status = getattr(error, "status_code", None)
    if isinstance(status, int):  # of Starlette's routes: 405
        return ServiceError(status, str(getattr(error, "detail", "")).lower(), "http_error")
    failure = ServiceError(500, "the model failed on this request", "internal_error")
    failure.__cause__ = error
    return failure
