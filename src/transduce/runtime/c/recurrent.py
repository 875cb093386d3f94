"""ctypes structures of a recurrent decoder and its step: the same as in recurrent.c."""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int32, c_int64

from transduce.runtime.c.product import Address, Weight

CELLS = ("elman", "gru", "lstm", "lstm-peephole")  # as numbered in recurrent.c
NO_ATTENTION, DOT, ADDITIVE, LOCATION = range(4)


class Cell(ctypes.Structure):
    _fields_ = (("from_input", Weight), ("from_state", Weight), ("peepholes", Address))


class Recurrent(ctypes.Structure):
    _fields_ = (
        ("cell", ctypes.POINTER(Cell)),
        ("layers", c_int64),
        ("width", c_int64),
        ("kind", c_int32),
        ("skip", c_int32),
        ("score", c_int32),
        ("normalised", c_int32),
        ("scale", c_float),
        ("context_in_input", c_int32),
        ("context_in_output", c_int32),
        ("query", Weight),
        ("energy", Address),
        ("readout", Weight),
        ("sum", Weight),
        ("table", Address),
        ("vocabulary", c_int64),
        ("table_scale", c_float),
        ("kernel", c_int32),
    )


class RecurrentStep(ctypes.Structure):
    _fields_ = (
        ("rows", c_int64),
        ("tokens", Address),
        ("h", Address),
        ("c", Address),
        ("query", Address),
        ("source", Address),
        ("keys", Address),
        ("values", Address),
        ("longest", c_int64),
        ("lengths", Address),
        ("head", Weight),
        ("log_probs", Address),
        ("room", Address),
    )


RECURRENT_STRUCTURES: tuple[type[ctypes.Structure], ...] = (Cell, Recurrent, RecurrentStep)
