"""Loops and Scans that compute an RNN, GRU or LSTM become the node."""
