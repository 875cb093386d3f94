"""ctypes structures of a stack of layers, a decoder step and a batch of sources: as in stack.c."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_float, c_int32, c_int64

from transduce.runtime.c.product import Address, Weight

FUNCTIONS = ("relu", "gelu", "silu", "gelu_tanh")  # activation functions, as numbered in parts.h
KINDS = ("self_attention", "cross_attention", "feed_forward")


class Norm(ctypes.Structure):
    _fields_ = (("weight", Address), ("bias", Address), ("epsilon", c_float))


class Sublayer(ctypes.Structure):
    _fields_ = (
        ("kind", c_int32),
        ("norm_before", c_int32),
        ("activation", c_int32),
        ("gated", c_int32),
        ("layer", c_int64),
        ("norm", Norm),
        ("into", Weight),
        ("out_of", Weight),
    )


class Stack(ctypes.Structure):
    _fields_ = (
        ("sublayer", ctypes.POINTER(Sublayer)),
        ("sublayers", c_int64),
        ("layers", c_int64),
        ("width", c_int64),
        ("head_width", c_int64),
        ("last", Norm),
        ("table", Address),
        ("tokens", c_int64),
        ("table_scale", c_float),
        ("kernel", c_int32),
    )


class Step(ctypes.Structure):
    _fields_ = (
        ("rows", c_int64),
        ("step", c_int64),
        ("steps", Address),
        ("slots", Address),
        ("tokens", Address),
        ("embedded", Address),
        ("position", Address),
        ("turns", Address),
        ("past", Address),
        ("most_rows", c_int64),
        ("origins", Address),
        ("most_steps", c_int64),
        ("memory", Address),
        ("memory_length", c_int64),
        ("lengths", Address),
        ("head", Weight),
        ("log_probs", Address),
        ("room", Address),
        ("refused", c_int64),
    )


class Sources(ctypes.Structure):
    _fields_ = (
        ("sources", c_int64),
        ("longest", c_int64),
        ("tokens", Address),
        ("lengths", Address),
        ("embedded", Address),
        ("positions", Address),
        ("turns", Address),
        ("states", Address),
        ("room", Address),
        ("refused", c_int64),
    )


STRUCTURES: tuple[type[ctypes.Structure], ...] = (
    Weight,
    Norm,
    Sublayer,
    Stack,
    Step,
    Sources,
)


def layout(structures: Sequence[type[ctypes.Structure]]) -> list[int]:
    """The size of each structure and the offset of each of its fields, to compare with C."""
    return [
        number
        for structure in structures
        for number in (
            ctypes.sizeof(structure),
            *(getattr(structure, field[0]).offset for field in structure._fields_),
        )
    ]
