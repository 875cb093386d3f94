"""Tokenisation: characters, subwords, words, bytes or labels as ids, and training of
vocabularies.
"""
