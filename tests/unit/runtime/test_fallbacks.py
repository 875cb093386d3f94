"""What leaves the fastest implementation says so, once."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tiny_models import tiny
from transduce.errors import TransduceWarning
from transduce.runtime import library
from transduce.runtime.fallbacks import warn_of_plain_cuda
from transduce.runtime.packed_copy import packed
from transduce.runtime.steps import steps_of
from transduce.runtime.transformer import CTransformerSteps

RELATIVE = {"positions": "relative", "relative_buckets": 8, "relative_distance": 12}


@contextmanager
def reported() -> Iterator[list[str]]:
    """The warnings of ours that a new process would show."""
    sentences: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        yield sentences
    sentences += [str(one.message) for one in caught if one.category is TransduceWarning]


@pytest.mark.skipif(library() is None, reason="needs the C library")
@pytest.mark.parametrize(
    ("options", "reason"),
    [(RELATIVE, "relative positions"), ({"head_width": 12}, "head_width"), ({}, "")],
)
def test_a_search_that_leaves_the_c_library_says_why_once(
    options: dict[str, Any], reason: str
) -> None:
    model = tiny(options, options)
    with reported() as sentences:
        model.run(["tea"], max_length=2)
        model.run(["tea"], max_length=2)
        model.to("cpu").run(["tea"], max_length=2)  # its copies are made again
    in_c = isinstance(steps_of(packed(model.network, "float32")), CTransformerSteps)
    assert in_c == (not sentences)
    assert len(sentences) == bool(reason)
    assert all("which would be faster" in one and reason in one for one in sentences)


def test_the_same_of_a_gpu() -> None:
    copying = tiny({}, {"copying": True})
    apart = tiny().network
    apart.read_tags_apart([5])
    for network, reason in [
        (tiny(RELATIVE, RELATIVE).network, "relative positions"),
        (copying.network, "copying"),
        (apart, "tag_attention"),
    ]:
        with reported() as sentences:
            for _ in range(2):
                warn_of_plain_cuda(network)
            warn_of_plain_cuda(tiny().network)
        assert len(sentences) == 1
        assert "CUDA graphs" in sentences[0]
        assert reason in sentences[0]
    with reported() as sentences:  # on a CPU it is searched in C
        copying.run(["tea"], max_length=2)
    assert sentences == []
