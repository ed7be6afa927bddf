"""Small tasks that are drawn in memory: enough to see a real model learn on a CPU."""
