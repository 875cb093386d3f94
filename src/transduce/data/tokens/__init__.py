"""Tokens: characters, subwords, words, bytes or labels as ids, and how vocabularies are learnt."""
