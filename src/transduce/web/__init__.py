"""Models in a browser: the C library as WebAssembly, driven by JavaScript modules (runtime/)."""
