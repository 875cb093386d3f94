"""Commands, a file each: a command parses, calls one function, prints."""
