"""Recipes as people write them: reading and writing YAML, and telling what is wrong with it."""

from transduce.cookbook.explain import nearest
from transduce.cookbook.keys import Key, Section, sections
from transduce.cookbook.read import (
    dump_recipe,
    load_recipe,
    parse_recipe,
    placed,
    read_recipe,
    shipped,
    with_overrides,
)

__all__ = [
    "Key",
    "Section",
    "dump_recipe",
    "load_recipe",
    "nearest",
    "parse_recipe",
    "placed",
    "read_recipe",
    "sections",
    "shipped",
    "with_overrides",
]
