"""Demos: a real model, trained in minutes, evaluated, and its attention plotted."""
