"""Several HTTP processes before one engine.

`http.py` is what an HTTP process does: it talks to clients and passes their requests on.
`engine.py` is the engine's process: it starts the HTTP processes and answers what they pass on.
Between each of them and the engine there is a channel (`channel.py`).
"""
