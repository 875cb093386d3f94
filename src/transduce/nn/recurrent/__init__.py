"""Recurrent networks: RNN, GRU, LSTM and peephole LSTM cells, and stacks of them."""
