"""Demos: a real model trained here in minutes, scored, tried out and looked into."""
