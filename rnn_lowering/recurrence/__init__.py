"""The equations of RNN, GRU and LSTM, their repetition over time, and the equivalent of a whole node."""
