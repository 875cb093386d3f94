"""The command line: commands, what they read and what they print."""
