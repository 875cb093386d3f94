"""The parts of tools/make_site.py: which pages there are, and what is made for the site."""
