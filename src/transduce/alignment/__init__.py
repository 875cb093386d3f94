"""Forced alignment of long recordings with their texts: lines, words and phones, with
confidence.
"""
