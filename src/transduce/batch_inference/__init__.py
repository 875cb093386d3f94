"""Offline batch inference: files of any size in shards, on several processes or machines."""
