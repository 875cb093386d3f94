"""A model from data alone: a recipe is chosen and trained, time that is left goes into an ensemble,
and the end is a score on rows that were held out."""
