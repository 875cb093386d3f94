"""`transduce tune`: a search over the keys of a recipe, by successive halving with exact resume."""
