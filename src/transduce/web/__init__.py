"""Models in a browser: the C runtime as WebAssembly, driven by the JavaScript modules in runtime/."""
