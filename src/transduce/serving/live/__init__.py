"""Live speech over WebSocket: sessions that share batches, and what all protocols share."""
