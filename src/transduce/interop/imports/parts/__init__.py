"""What readers of several formats share: vocabularies, weights, recipes."""
