"""The equations of RNN, GRU and LSTM as values, how they repeat over time, and a whole node made of them."""
