"""The page at /: HTML, style and JavaScript modules, and the views of `transduce look`."""
