"""The command line: commands, their input and output, messages, demos."""
