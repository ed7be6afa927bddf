"""Files as lazy sequences of raw rows: one module for each container."""
